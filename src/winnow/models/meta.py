"""A model without weights: every shape that its config.json implies, on the meta device, and its size in bytes."""

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
    """The model on the meta device: it has shapes and uses no memory.

    With `adaptable`, it consists of transformers' own modules, which an adapter needs and `quantization` too. Importing
    them takes seconds, so otherwise they are used only for a family that `skeleton` does not support. Raises DataError
    where there are no settings, or none of a causal language model.
    """
    config = read_config(path)
    try:
        model = None if adaptable else skeleton(config, DTYPES[dtype])
        model = _by_transformers(config, DTYPES[dtype]) if model is None else model
    except Exception as error:  # exceptions of the families' code have no common base
        raise DataError(
            f"model.path: transformers makes no causal language model of config.json of {path!r} "
            f"({type(error).__name__}: {str(error).partition(chr(10))[0]})",
            remedy="choose another model, or correct its config.json",
            key="model.path",
            code="data.unfit_model",
        ) from error
    if quantization is not None:
        to_4bit_shapes(model)
    return model


def _by_transformers(config: Any, dtype: torch.dtype) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    return model


def weight_bytes(model: nn.Module, dtype: torch.dtype | None = None) -> int:
    """Bytes of all parameters and buffers, as they are or in another precision; tied ones count once."""
    return sum(t.numel() * (dtype or t.dtype).itemsize for t in (*model.parameters(), *model.buffers()))
