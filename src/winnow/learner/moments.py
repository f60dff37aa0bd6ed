"""AdamW's moments in float32 by torch, or in 8 bits by bitsandbytes (Dettmers et al. 2022, arXiv 2110.02861).

8-bit moments have a scale per block of 256 numbers; with them, tensors of fewer than 4,096 numbers keep float32
moments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, Literal

import torch
from torch import Tensor

from winnow.models.bnb import LEAST_8BIT, MOMENT_BLOCK, bitsandbytes

Moments = Literal["float32", "8bit"]

FLOAT32_KEYS = ("step", "exp_avg", "exp_avg_sq")  # torch's state of a parameter
EIGHT_BIT_KEYS = ("step", "state1", "state2", "absmax1", "absmax2")  # bitsandbytes'; absmax: scales of blocks


def adamw(moments: Moments, **options: Any) -> Callable[..., torch.optim.Optimizer]:
    """A function that makes an AdamW optimizer for a list of parameters; `options` are torch's."""
    if moments == "8bit":
        return partial(bitsandbytes().optim.AdamW8bit, **options, min_8bit_size=LEAST_8BIT)
    return partial(torch.optim.AdamW, **options, fused=True)


def to_tensors(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """An optimizer's state of one parameter as tensors, for safetensors.

    bitsandbytes counts updates in an integer, which becomes a tensor. Its code tables (qmap) are the same for all
    parameters and are omitted.
    """
    tensors = {key: value for key, value in state.items() if isinstance(value, Tensor) and not key.startswith("qmap")}
    if isinstance(step := state.get("step"), int):
        tensors["step"] = torch.tensor(step, dtype=torch.float32)
    return tensors


def from_tensors(tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Any]:
    """The inverse of `to_tensors`."""
    state: dict[str, Any] = {key: value.to(device) for key, value in tensors.items()}
    if "state1" in state:
        state["step"] = int(state["step"].item())
    if "absmax1" in state:
        state |= {"qmap1": _codes(device, signed=True), "qmap2": _codes(device, signed=False)}
    return state


def saved_shape(moments: Moments, key: str, shape: torch.Size) -> torch.Size | None:
    """Shape of the tensor `key` of a parameter of shape `shape`; None where such moments have no such tensor."""
    if key not in (EIGHT_BIT_KEYS if moments == "8bit" else FLOAT32_KEYS):
        return None
    if key == "step":
        return torch.Size([])
    return torch.Size([-(-shape.numel() // MOMENT_BLOCK)]) if key.startswith("absmax") else shape


@cache
def _codes(device: torch.device, *, signed: bool) -> Tensor:
    codes: Tensor = bitsandbytes().functional.create_dynamic_map(signed=signed)
    return codes.to(device)
