"""Weights that stay in the files of a model folder until a part of them is read.

A model of them is made on the meta device, where it has shapes and uses no memory. Its buffers (rotary frequencies) are
computed, as no file has them. So a rank of a sharded run reads only its rows of each matrix (learner/sharding.py), and
an engine's copy is made tensor by tensor.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from winnow.models.adapter import plain_model, plain_names
from winnow.models.folder import refused, weight_files

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Place = tuple[Path, str]  # a file, and the tensor's name in it
ALL = slice(None)


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
        known: dict[int, Any] = {id(b): b.to(self.device, copy=True) for b in model.buffers()}
        for name, parameter in plain_names(plain_model(model).named_parameters()):
            if parameter.is_meta:
                number = self.read_like(name, parameter)
                known[id(parameter)] = nn.Parameter(number.to(dtype or number.dtype), parameter.requires_grad)
        for parameter in model.parameters():
            if not parameter.is_meta:  # an adapter's
                known[id(parameter)] = nn.Parameter(
                    parameter.detach().to(self.device, copy=True), parameter.requires_grad
                )
        return copy.deepcopy(model, known)


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


def empty(model: Any, dtype: torch.dtype, device: torch.device) -> SavedWeights:
    """Move a model's parameters from host memory to `whole`. The model keeps their shapes, in precision `dtype`."""
    whole = {name: parameter.detach() for name, parameter in model.named_parameters()}
    made: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for key, parameter in list(module._parameters.items()):
            if parameter is not None:
                shape = torch.empty(parameter.shape, dtype=dtype, device="meta")
                module._parameters[key] = made.setdefault(id(parameter), nn.Parameter(shape, parameter.requires_grad))
        for key, buffer in list(module._buffers.items()):
            if buffer is not None:
                module._buffers[key] = buffer.to(device)
    model.config.dtype = dtype
    return SavedWeights(device, whole=whole)


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
