"""A model without its weights: every shape that its config.json implies, and no number. What that says of its size."""

from __future__ import annotations

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from winnow.errors import DataError
from winnow.models.load import DTYPES, read_config


def meta_model(path: str, *, dtype: str) -> PreTrainedModel:
    """The model on the meta device: it can be measured and adapted, and takes no memory. Raises DataError where there
    are no settings, or none that make a causal language model.
    """
    config = read_config(path)
    try:
        with torch.device("meta"):
            model: PreTrainedModel = AutoModelForCausalLM.from_config(
                config, dtype=DTYPES[dtype], attn_implementation="sdpa"
            )
    except Exception as error:  # every family's own
        raise DataError(
            f"model.path: transformers makes no causal language model of config.json of {path!r}; it said: "
            f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        ) from error
    return model


def weight_bytes(model: nn.Module, dtype: torch.dtype | None = None) -> int:
    """Of all parameters and tables, as they are or in another precision; tied ones count once."""
    return sum(t.numel() * (dtype or t.dtype).itemsize for t in (*model.parameters(), *model.buffers()))
