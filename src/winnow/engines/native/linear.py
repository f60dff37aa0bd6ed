"""Copies of the weights of linear layers while rollouts are sampled on a CPU: packed ones, and joined ones (plain.py).

A packed copy has the memory layout that is fastest for matrix products.
"""

from __future__ import annotations

import contextlib
import platform
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from winnow.memory import footprint
from winnow.models.meta import MODEL_TYPES

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from winnow.models.meta import MetaModel


MIN_NUMEL = 2**16  # of a weight; for smaller ones and few rows, the call of oneDNN costs more than it saves
DTYPES = (torch.float32, torch.bfloat16)
_JOINED = re.compile(r"(.*)\.(?:q|k|v|gate|up)_proj\.(?:weight|bias)")


def packable(device: str, dtype: torch.dtype) -> bool:
    """Whether weights of a precision can be packed: on x86, in float32, and in bfloat16 if oneDNN supports it."""
    if device != "cpu" or dtype not in DTYPES or platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return dtype != torch.bfloat16 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


class PackedLinear:
    """The function of a linear layer, computed with a packed copy of its weight."""

    def __init__(self, layer: nn.Linear) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight.default(layer.weight.detach())
        self._bias, self._product = layer.bias, torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, states: Tensor) -> Tensor:
        out: Tensor = self._product(states, self._weight, self._bias, "none", [], "")
        return out


@contextlib.contextmanager
def packed(model: PreTrainedModel) -> Iterator[None]:
    """Inside this context the large linear layers of a model on a CPU multiply by packed copies of their weights.

    The copies are made at its start and freed at its end, so they are never older than the weights. Making them takes
    as long as decoding two or three tokens. Gradients are not supported.
    """
    layers = [
        layer
        for layer in model.modules()
        if type(layer) is nn.Linear
        and "forward" not in vars(layer)  # no other package has replaced it
        and layer.weight.numel() > MIN_NUMEL
        and packable(layer.weight.device.type, layer.weight.dtype)
    ]
    try:
        for layer in layers:
            # An instance attribute replaces the class's `forward`, and hooks are still called
            vars(layer)["forward"] = PackedLinear(layer)
        yield
    finally:
        for layer in layers:
            vars(layer).pop("forward", None)


def packed_bytes(model: MetaModel, dtype: torch.dtype) -> int:
    """Memory of the copies of all large matrices, except those of 4 bits and an embedding that is not also the output
    layer.
    """
    head = footprint.head(model)
    large = (p for name, p in model.named_parameters() if p.ndim == 2 and (p is head or "embed" not in name))
    return sum(p.numel() * dtype.itemsize for p in large if p.numel() > MIN_NUMEL and p.is_floating_point())


def joined_bytes(model: MetaModel, dtype: torch.dtype) -> int:
    """Memory of the copies of small matrices that plain.py makes, from names and shapes alone. It is an upper
    bound: with some adapters and hooks, no copy is made.
    """
    if model.config.model_type not in MODEL_TYPES:
        return 0
    blocks = defaultdict[str, list[Tensor]](list)  # the matrices and biases of each attention and of each MLP
    for name, parameter in model.named_parameters():
        if joined := _JOINED.fullmatch(name):
            blocks[joined[1]].append(parameter)
    small = (block for block in blocks.values() if all(p.numel() <= MIN_NUMEL for p in block))
    return sum(parameter.numel() * dtype.itemsize for block in small for parameter in block)
