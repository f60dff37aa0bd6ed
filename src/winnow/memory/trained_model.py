"""A model that a run trains, as shapes: the policy, or a value model beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import nn

from winnow.config import AdapterCritic, Config, ModelCritic, OptimizerSection, SharedCritic
from winnow.memory import footprint
from winnow.memory.plan import Phase
from winnow.models.adapter import add_lora, plain_model
from winnow.models.device import keeps_masters, keeps_value_masters
from winnow.models.folder import relabel_errors
from winnow.models.meta import meta_model

if TYPE_CHECKING:
    from winnow.models.meta import MetaModel


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedModel:
    """A model that a run trains: the policy, or a value model beside it. Its modules are on the meta device."""

    name: str = ""  # of its parts, before "weights" and "gradients"; "" for the policy
    reads: MetaModel  # its passes go through this model
    held: nn.Module  # in memory for it alone, at all times; its trained parameters get gradients
    holds_layers: bool  # `held` includes `reads`, and is not only an adapter or a head on the policy
    optimizer: OptimizerSection
    masters: bool  # it has float32 masters
    quantized: bool = False  # `held` has 4-bit matrices
    updated: Phase = "update"  # when it is trained
    summed: Phase = "sums"  # when its gradients are summed over ranks
    smaller: tuple[str, ...] = ()  # advice on how to train fewer numbers
    lighter: tuple[str, ...] = ()  # advice on how to hold fewer bytes of weights
    optimizer_key: str = "optimizer"  # table of the optimizer's keys

    @property
    def master_bytes(self) -> int:
        """Bytes of the masters of all trained parameters, where there are masters. A float32 head has one too."""
        return footprint.master_bytes(self.held) if self.masters else 0

    def moment_bytes(self, ranks: int = 1) -> int:
        """Bytes of the optimizer's state besides masters, or of that of a share."""
        moments = footprint.optimizer_bytes(self.held, eight_bit=self.optimizer.moments == "8bit", ranks=ranks)
        return moments + footprint.sample_bytes(self.held, masters=self.masters, ranks=ranks)


def policy_model(config: Config, model: MetaModel) -> TrainedModel:
    """The policy as a trained model. Its adapter is float32 on a 16-bit base."""
    section = config.model
    return TrainedModel(
        reads=model,
        held=model,
        holds_layers=True,
        optimizer=config.optimizer,
        masters=keeps_masters(config),
        quantized=section.quantization is not None,
        smaller=() if section.lora else ("train a model.lora",),
        lighter=_lighter_weights(config),
    )


def policy_shapes(config: Config, *, computes: bool = False) -> MetaModel:
    """The policy on the meta device, with its adapter where one is trained. With `computes`, it consists of
    transformers' own modules (`without_numbers`).

    Raises DataError if its model has no settings, and ConfigError for an adapter that does not fit it.
    """
    section = config.model
    lora, bits = section.lora, section.quantization
    own = computes or lora is not None
    model = meta_model(section.path, dtype=section.dtype, adaptable=own, quantization=bits)
    return model if lora is None else cast("MetaModel", add_lora(model, **lora.model_dump(), seed=0))


def _lighter_weights(config: Config) -> tuple[str, ...]:
    if config.model.quantization is not None:
        return ()
    base = "a model.lora on model.dtype = 'bfloat16'"
    whole = () if config.model.dtype == "bfloat16" else (f"train {base}",)
    return (*whole, f"train {base} with model.quantization = 'nf4'")


def value_model(config: Config, policy: MetaModel) -> TrainedModel | None:
    """The configured value model, None without one. `policy` includes its adapter, where one is trained.

    Raises DataError if its model has no settings, and ConfigError for adapters that do not fit it.
    """
    critic = config.critic
    if critic is None:
        return None
    if isinstance(critic, SharedCritic):
        return TrainedModel(
            name="value model ",
            reads=policy,
            held=_value_head(policy),
            holds_layers=False,
            optimizer=config.optimizer,
            masters=keeps_value_masters(config),
        )
    own: nn.Module
    if isinstance(critic, AdapterCritic):
        reads = _with_value_adapter(config, critic, policy)
        own = nn.ParameterList(p for p in reads.parameters() if p.requires_grad)
    else:
        reads = own = value_model_shapes(config, critic)
    can_adapt = isinstance(critic, ModelCritic) and critic.lora is None
    return TrainedModel(
        name="value model ",
        reads=reads,
        held=nn.ModuleList([own, _value_head(reads)]),
        holds_layers=own is reads,
        optimizer=critic.optimizer,
        masters=keeps_value_masters(config),
        quantized=own is reads and not can_adapt and config.model.quantization is not None,
        updated="value update",
        summed="value sums",
        smaller=(*(("train a critic.lora",) if can_adapt else ()), "set critic.form = 'shared'"),
        optimizer_key="critic.optimizer",
    )


def _with_value_adapter(config: Config, critic: AdapterCritic, policy: MetaModel) -> MetaModel:
    """The policy with the value model's adapter, on the same layers. With the same rank it also has the same shapes."""
    lora = config.model.lora
    assert lora is not None, "check_combinations refuses a run without it"
    rank = (critic.lora or lora).rank
    if rank == lora.rank:
        return policy
    bits = config.model.quantization
    base = meta_model(config.model.path, dtype=config.model.dtype, adaptable=True, quantization=bits)
    return cast("MetaModel", add_lora(base, **{**lora.model_dump(), "rank": rank}, seed=0))


def value_model_shapes(config: Config, critic: ModelCritic, *, computes: bool = False) -> MetaModel:
    """A separate model, without its output layer unless that is its embedding. `computes` as in `policy_shapes`."""
    adapted = critic.lora is not None
    bits = config.model.quantization if adapted else None
    path = critic.path or config.model.path
    with relabel_errors("model.path" if critic.path is None else "critic.path"):
        model = meta_model(path, dtype=config.model.dtype, adaptable=computes or adapted, quantization=bits)
    if critic.lora is not None:
        with relabel_errors("critic.lora", of="model.lora"):
            model = cast("MetaModel", add_lora(model, **critic.lora.model_dump(), seed=0))
    plain_model(model).set_output_embeddings(nn.Identity())
    return model


def _value_head(model: MetaModel) -> nn.ParameterList:
    """[1, H] and a bias, in float32 or float64. torch's linear layer would draw random numbers (models/meta.py)."""
    causal = plain_model(model)
    width, dtype = causal.config.get_text_config().hidden_size, torch.promote_types(causal.dtype, torch.float32)
    shapes = ((1, width), (1,))
    return nn.ParameterList(nn.Parameter(torch.empty(shape, device="meta", dtype=dtype)) for shape in shapes)
