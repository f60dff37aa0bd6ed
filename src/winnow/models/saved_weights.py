"""Weights that stay in the files of a model folder until a part of them is read.

A model of them is made on the meta device, where it has shapes and uses no memory. Its buffers (rotary frequencies) are
computed, as no file has them. So a rank of a sharded run reads only its rows of each matrix (learner/sharding.py), and
an engine's copy is made tensor by tensor.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from winnow.models.adapter import plain_model, plain_names
from winnow.models.folder import refused, weight_files

if TYPE_CHECKING:
    from transformers import PreTrainedModel

M = TypeVar("M", bound=nn.Module)
Place = tuple[Path, str]  # a file, and the tensor's name in it
ALL = slice(None)


def with_tensors(model: M, parameter: Callable[[Tensor], Tensor], buffer: Callable[[Tensor], Tensor]) -> M:
    """A copy of a model with what these functions return for its parameters and buffers. Shared ones stay shared."""
    made: dict[int, Any] = {id(b): buffer(b) for b in model.buffers()}
    made |= {id(p): nn.Parameter(parameter(p), p.requires_grad) for p in model.parameters()}
    return copy.deepcopy(model, made)


@dataclass(frozen=True)
class SavedWeights:
    """The weights of a model, by the parameters' names in the plain model (without an adapter)."""

    device: torch.device  # of the tensors that are made of them
    places: Mapping[str, Place] = field(default_factory=dict)
    whole: Mapping[str, Tensor] = field(default_factory=dict)  # in host memory, where the files have another form

    def read(self, name: str, rows: slice = ALL) -> Tensor:
        """Rows of a weight in host memory, in the precision of its file. Raises DataError if it cannot be read."""
        if name in self.whole:
            return self.whole[name][rows]
        path, key = self.places[name]
        try:
            with safe_open(path, framework="pt") as file:  # opened each time: what is read stays mapped until it closes
                found: Tensor = file.get_slice(key)[rows]
        except (OSError, SafetensorError) as error:
            raise refused(
                f"model.path: {key!r} cannot be read from {path} ({error})", "copy the file again", "data.unreadable"
            ) from error
        return found

    def read_like(self, name: str, like: Tensor) -> Tensor:
        """A whole weight on `device`, in the precision of `like`."""
        return self.read(name).to(dtype=like.dtype).to(self.device, copy=True)

    def copy_of(self, model: PreTrainedModel, dtype: torch.dtype | None = None) -> PreTrainedModel:
        """A copy of the model with all numbers, on `device`. `model` is on the meta device, but for an adapter.

        With `dtype`, each weight is rounded to it after it was rounded to the model's precision.
        """
        names = {id(parameter): name for name, parameter in plain_names(plain_model(model).named_parameters())}

        def numbers(parameter: Tensor) -> Tensor:
            if not parameter.is_meta:  # an adapter's
                return parameter.detach().to(self.device, copy=True)
            return self.read_like(names[id(parameter)], parameter).to(dtype or parameter.dtype)

        return with_tensors(model, numbers, lambda buffer: buffer.to(self.device, copy=True))


def on_meta_device(config: Any, dtype: torch.dtype) -> PreTrainedModel:
    """The model of these settings, in transformers' own modules, on the meta device."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    return model


def read_later(config: Any, folder: Path, dtype: torch.dtype, device: torch.device) -> tuple[Any, SavedWeights] | None:
    """A model on the meta device and its weights in a folder's files.

    None where a file has another form than the module (the experts of a mixture), or lacks a weight.
    """
    model: Any = on_meta_device(config, dtype)
    if any(getattr(model, kept, None) for kept in ("_keep_in_fp32_modules", "_keep_in_fp32_modules_strict")):
        return None
    places = _places(model, folder)
    if places is None or not _compute_buffers(model, device):
        return None
    return model, SavedWeights(device, places)


def emptied(model: Any, dtype: torch.dtype, device: torch.device) -> tuple[Any, SavedWeights]:
    """A copy of a model with only the shapes of its parameters, in precision `dtype`, and the parameters as `whole`."""
    whole = {name: parameter.detach() for name, parameter in model.named_parameters()}
    shapes = with_tensors(model, lambda p: torch.empty(p.shape, dtype=dtype, device="meta"), lambda b: b.to(device))
    shapes.config.dtype = dtype
    return shapes, SavedWeights(device, whole=whole)


def _places(model: nn.Module, folder: Path) -> dict[str, Place] | None:
    """The place of every parameter, which a file may have under any name of a tied one. None unless each is there."""
    saved: dict[str, tuple[Path, list[int]]] = {}
    try:
        for file in weight_files(folder):
            with safe_open(folder / file, framework="pt") as opened:
                for key in opened.keys():  # noqa: SIM118
                    saved[key] = (folder / file, opened.get_slice(key).get_shape())
    except (OSError, SafetensorError):
        return None  # the loader of whole models has the message
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    places: dict[str, Place] = {}
    for name, parameter in model.named_parameters():
        key = next((each for each in names[id(parameter)] if each in saved), None)
        if key is None or saved[key][1] != list(parameter.shape):
            return None
        places[name] = (saved[key][0], key)
    return places


@torch.no_grad()
def _compute_buffers(model: Any, device: torch.device) -> bool:
    """Compute the buffers, as transformers does when it loads a model. False where it would read one from a file, or
    does not compute it.
    """
    for module in model.modules():
        for key, buffer in list(module._buffers.items()):
            if buffer is None:
                continue
            if key not in module._non_persistent_buffers_set or not buffer.is_floating_point():
                return False
            module._buffers[key] = torch.full_like(buffer, torch.nan, device="cpu")
        if module._buffers:
            model._init_weights(module)
        for key, buffer in list(module._buffers.items()):
            if buffer is not None:
                if not buffer.isfinite().all():
                    return False
                module._buffers[key] = buffer.to(device)
    return True
