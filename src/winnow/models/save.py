"""Save a model as a folder that any Hugging Face program loads. Weights are written one by one."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion
from transformers.modeling_utils import remove_tied_weights_from_state_dict

from winnow.models.adapter import (
    ADAPTER_WEIGHTS,
    Numbers,
    dequantized_shapes,
    has_adapter,
    merges,
    plain_model,
    plain_names,
    save_adapter,
)
from winnow.models.folder import GENERATION, WEIGHTS, write_published_files
from winnow.models.tensor_file import FORMAT, write_tensors

ADAPTER = "adapter"  # subfolder with the adapter of a model that is saved merged


def write_model_folder(
    model: Any, files: Mapping[str, bytes], path: Path, read: Callable[[str], Tensor] | None = None
) -> dict[str, str]:
    """Write a Hugging Face model and its published files (`published_files`) as a folder that loads on its own.
    Parameters keep their precision.

    A model with an adapter is not changed: the merged model is written, and the adapter alone in `adapter/`. The result
    does not depend on which adapter is active: another thread may activate a different one meanwhile.

    A model on the meta device has only the shapes: `read` then returns a parameter by its name in the model, in host
    memory. Each is read when it is written, rounded to the precision of the model's, and kept no longer.

    Returns the SHA-256 of the files that were hashed while they were written, by their paths in the folder.
    """
    path.mkdir(parents=True, exist_ok=True)
    plain, changed, digests = plain_model(model), dict[str, Callable[[], Tensor]](), dict[str, str]()
    numbers = Tensor.detach if read is None else _by_name(model, read)
    if has_adapter(model):
        changed = merges(model, None if read is None else numbers)
        digests[f"{ADAPTER}/{ADAPTER_WEIGHTS}"] = save_adapter(model, path / ADAPTER, numbers)
    digests[WEIGHTS] = _write_weights(plain, changed, path / WEIGHTS, numbers)
    _write_settings(plain, path, generation=GENERATION not in files)
    write_published_files(files, path)
    return digests


def _by_name(model: Any, read: Callable[[str], Tensor]) -> Numbers:
    """A function that reads the numbers of a parameter on the meta device, and returns any other tensor."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return lambda tensor: read(names[id(tensor)]).to(tensor.dtype) if tensor.is_meta else tensor.detach()


def _write_weights(plain: Any, changed: Mapping[str, Callable[[], Tensor]], path: Path, numbers: Numbers) -> str:
    """Write a transformers model's weights, some of them `changed`, by their published names; tied ones once."""
    state = dict(plain_names(plain.state_dict(keep_vars=True).items())) | dequantized_shapes(plain)
    state = remove_tied_weights_from_state_dict(state, plain)
    state = {name: tensor for name, tensor in state.items() if name not in (plain._keys_to_ignore_on_save or ())}

    def weight(name: str) -> Tensor:
        return changed[name]() if name in changed else numbers(state[name])

    return write_tensors(path, *_published(plain, state, weight), metadata=FORMAT)


def _published(
    plain: Any, state: Mapping[str, Tensor], weight: Callable[[str], Tensor]
) -> tuple[dict[str, Tensor], Callable[[str], Tensor]]:
    """The layout of a model's file, and a function that returns each of its tensors.

    Some architectures keep weights in another form than the published one (the experts of a mixture in one tensor), and
    transformers can convert them back. Each of the module's tensors is converted alone. Where a published tensor
    consists of several of them, all are converted at once, in memory beside the model.
    """
    shapes = {name: tensor.detach().to("meta") for name, tensor in state.items()}
    layout = revert_weight_conversion(plain, dict(shapes))
    parts = {name: revert_weight_conversion(plain, {name: shape}) for name, shape in shapes.items()}
    origin = {published: name for name, made in parts.items() for published in made}
    if origin.keys() != layout.keys() or sum(map(len, parts.values())) != len(layout):
        converted = revert_weight_conversion(plain, {name: weight(name) for name in state})
        return layout, converted.__getitem__

    @functools.lru_cache(maxsize=2)  # in a file, the two tensors of a layer's experts alternate
    def convert(name: str) -> dict[str, Tensor]:
        return dict(revert_weight_conversion(plain, {name: weight(name)}))

    return layout, lambda published: convert(origin[published])[published]


def _write_settings(plain: Any, path: Path, *, generation: bool) -> None:
    """Write config.json and, with `generation`, generation_config.json, as `save_pretrained` does."""
    config = copy.deepcopy(plain.config)
    config.dtype, config.architectures = str(plain.dtype).removeprefix("torch."), [type(plain).__name__]
    config.save_pretrained(path)
    if generation and plain.can_generate():
        plain.generation_config.save_pretrained(path)
