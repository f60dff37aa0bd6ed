"""How a model becomes a folder that any Hugging Face program loads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from winnow.models.adapter import has_adapter, merged_weights, plain_model, plain_names, save_adapter
from winnow.models.published_files import write_published_files

ADAPTER = "adapter"  # the folder with the adapter of a model that is saved with its adapter added in


def write_model_folder(model: Any, files: Mapping[str, bytes], path: Path) -> None:
    """Write a Hugging Face model and its published files (published_files.py) as a folder that loads on its own.
    Parameters keep their precision.

    A model with an adapter is left as it is; what is written is the merged model, and in `adapter/` the adapter alone.
    """
    plain, state = plain_model(model), None
    if has_adapter(model):
        state = dict(plain_names(plain.state_dict().items()))
        for name, weight in merged_weights(model):
            state[name] = weight.cpu()  # one by one: a save needs no second model on the device
        save_adapter(model, path / ADAPTER)
    plain.save_pretrained(path, state_dict=state)
    write_published_files(files, path)  # last: over the generation settings that transformers wrote
