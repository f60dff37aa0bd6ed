"""Shapes of a value model: the model that its passes go through, and what it holds beside the policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import nn

from winnow.config import Config, CriticSection
from winnow.models.adapter import add_lora, plain_model
from winnow.models.meta import meta_model
from winnow.models.model_folder import relabel_errors

if TYPE_CHECKING:
    from winnow.models.meta import MetaModel


@dataclass(frozen=True, slots=True)
class ValueShapes:
    """Modules on the meta device. All of `held` is in memory at all times; its trained parameters get gradients."""

    reads: MetaModel  # policy, its base with another adapter, or a separate model; computes no logits
    held: nn.Module  # a head, an adapter and a head, or a model and a head


def value_shapes(config: Config, policy: MetaModel) -> ValueShapes | None:
    """Shapes of the configured value model, None without one. `policy` includes its adapter, where one is trained.

    Raises DataError where its model has no settings, and ConfigError for adapters that do not fit it.
    """
    critic = config.critic
    if critic is None:
        return None
    if critic.form == "shared":
        return ValueShapes(policy, _value_head(policy))
    if critic.form == "adapter":
        return _adapter(config, critic, policy)
    model = _model(config, critic)
    return ValueShapes(model, nn.ModuleList([model, _value_head(model)]))


def _adapter(config: Config, critic: CriticSection, policy: MetaModel) -> ValueShapes:
    """An adapter on the layers of the policy's adapter. With the same rank it also has the same shapes."""
    lora = config.model.lora
    assert lora is not None, "check_combinations refuses a run without it"
    rank, reads = (critic.lora or lora).rank, policy
    if rank != lora.rank:
        bits = config.model.quantization
        base = meta_model(config.model.path, dtype=config.model.dtype, adaptable=True, quantization=bits)
        reads = cast("MetaModel", add_lora(base, **{**lora.model_dump(), "rank": rank}, seed=0))
    adapter = nn.ParameterList(p for p in reads.parameters() if p.requires_grad)
    return ValueShapes(reads, nn.ModuleList([adapter, _value_head(reads)]))


def _model(config: Config, critic: CriticSection) -> MetaModel:
    """A separate model without its output layer, unless the embedding is the same matrix."""
    adapted = critic.lora is not None
    bits = config.model.quantization if adapted else None
    path = critic.path or config.model.path
    with relabel_errors("model.path" if critic.path is None else "critic.path"):
        model = meta_model(path, dtype=config.model.dtype, adaptable=adapted, quantization=bits)
    if critic.lora is not None:
        with relabel_errors("critic.lora", of="model.lora"):
            model = cast("MetaModel", add_lora(model, **critic.lora.model_dump(), seed=0))
    plain_model(model).set_output_embeddings(nn.Identity())
    return model


def _value_head(model: MetaModel) -> nn.ParameterList:
    """[1, H] and a bias, in float32 or float64. torch's linear layer would draw random numbers (models/skeleton.py)."""
    causal = plain_model(model)
    width, dtype = causal.config.get_text_config().hidden_size, torch.promote_types(causal.dtype, torch.float32)
    shapes = ((1, width), (1,))
    return nn.ParameterList(nn.Parameter(torch.empty(shape, device="meta", dtype=dtype)) for shape in shapes)
