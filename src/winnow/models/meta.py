"""A model without its weights: every shape that its config.json implies, and no number. What that says of its size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch import nn

from winnow.errors import DataError
from winnow.models.bnb import to_4bit_shapes
from winnow.models.load import DTYPES, read_config
from winnow.models.skeleton import Skeleton, skeleton

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    MetaModel: TypeAlias = PreTrainedModel | Skeleton  # parameters, buffers, settings, and an output layer


def meta_model(
    path: str, *, dtype: str, adaptable: bool = False, quantization: Literal["nf4"] | None = None
) -> MetaModel:
    """The model on the meta device: it can be measured, and takes no memory. Raises DataError where there are no
    settings, or none that make a causal language model.

    `adaptable`: of transformers' own modules, which an adapter goes on. They take seconds to import, and are used
    without that only for a family that `skeleton` does not know. `quantization` presumes it.
    """
    config = read_config(path)
    try:
        made = None if adaptable else skeleton(config, DTYPES[dtype])
        made = _by_transformers(config, DTYPES[dtype]) if made is None else made
    except Exception as error:  # every family's own
        raise DataError(
            f"model.path: transformers makes no causal language model of config.json of {path!r} "
            f"({type(error).__name__}: {str(error).partition(chr(10))[0]})",
            remedy="choose another model, or correct its config.json",
            key="model.path",
            code="data.unfit_model",
        ) from error
    if quantization is not None:
        to_4bit_shapes(made)
    return made


def _by_transformers(config: Any, dtype: torch.dtype) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    return model


def weight_bytes(model: nn.Module, dtype: torch.dtype | None = None) -> int:
    """Of all parameters and tables, as they are or in another precision; tied ones count once."""
    return sum(t.numel() * (dtype or t.dtype).itemsize for t in (*model.parameters(), *model.buffers()))
