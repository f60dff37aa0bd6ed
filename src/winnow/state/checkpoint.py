"""Checkpoints that are whole or absent, and that any Hugging Face program can load.

    checkpoints/step-000010/
      config.json, model.safetensors, tokenizer.json ...   what `write_model` wrote: a usable model folder
      adapter/                                             the LoRA adapter, when there is one
      trainer.safetensors                                  optimizer tensors
      trainer.json                                         step, and everything else as JSON
      manifest.json                                        size and SHA-256 of every other file

"step 10" means that ten steps, 0 to 9, are done; a resumed run goes on with step 10. There is no pickle anywhere.

Where the parameters to resume from are: `save_pretrained` writes every parameter in its own precision, so a full model
resumes bit-exactly from the model folder itself. A LoRA run resumes from its base model and `adapter/`; its model
folder is the merged model, for use, from which base and adapter cannot be told apart any more. Either way
trainer.safetensors holds no parameter twice.

A save writes into a folder with a temporary name, makes every byte durable, renames it, and only then removes older
checkpoints; a kill at any moment leaves the newest whole checkpoint in place and at worst a leftover for the next save
to clear away.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from winnow.errors import RunFolderError
from winnow.state.disk import sync, write_json

FOLDER = "checkpoints"
ADAPTER = "adapter"
TENSORS = "trainer.safetensors"
STATE = "trainer.json"
MANIFEST = "manifest.json"
LEFTOVER = ".unfinished-"
SPARE = 1.5  # times the last checkpoint's size that must be free


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose every file was found as it was written."""

    path: Path  # a usable model folder
    step: int  # steps done; the next one to run
    notices: tuple[str, ...] = ()  # newer checkpoints that were passed over, and why


def save(
    folder: Path,
    step: int,
    *,
    write_model: Callable[[Path], None],
    tensors: Mapping[str, Tensor],
    state: Mapping[str, Any],
    keep_last: int,
) -> Path:
    """Write the checkpoint of `step` below the run folder, then remove all but the newest `keep_last`.

    `write_model` fills a folder (see `write_model_folder`); `tensors` may live anywhere and share no memory; `state` is
    strict JSON. A whole checkpoint of this very step is left as it is: it is what the run resumed from.

    Raises RunFolderError when there is too little room or the disk refuses. Older checkpoints are then untouched and
    what was written is removed, so a run may go on and try again later. ValueError for a state that is not JSON.
    """
    home = folder / FOLDER
    final = home / _name(step)
    draft = home / f"{LEFTOVER}{final.name}"
    try:
        home.mkdir(parents=True, exist_ok=True)
        _clear_leftovers(home)
        if not (final.exists() and not list(_damage(final))):
            _check_room(home)
            _write(draft, step, write_model, tensors, state)
            _publish(draft, final)
        _prune(home, step, keep_last)
    except (OSError, SafetensorError) as error:
        raise RunFolderError(f"cannot save checkpoint {final}: {error}; older checkpoints are untouched") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return final


def newest(folder: Path) -> Checkpoint | None:
    """The newest whole checkpoint below a run folder, each file checked against its SHA-256; None when none was saved.

    Raises RunFolderError when there are checkpoints and every one is damaged.
    """
    notices: list[str] = []
    for step, path in reversed(_saved(folder / FOLDER)):
        damage = list(_damage(path))
        if not damage:
            return Checkpoint(path, step, tuple(notices))
        notices.append(f"checkpoint {path} is damaged ({'; '.join(damage)}) and was passed over")
    if notices:
        raise RunFolderError(f"no checkpoint can be used: {'; '.join(notices)}; delete {folder / FOLDER} to start over")
    return None


def load(checkpoint: Checkpoint) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors (on the CPU) and the state that `save` was given. The model is loaded from `checkpoint.path`."""
    saved = json.loads((checkpoint.path / STATE).read_text(encoding="utf-8"))
    return load_file(checkpoint.path / TENSORS), saved["state"]


def write_model_folder(model: Any, tokenizer: Any, path: Path) -> None:
    """Write a Hugging Face model (or one wrapped by peft) and its tokenizer as a folder that loads on its own.

    Parameters keep their precision. A peft model is left as it is: merged weights are computed beside it, because
    merging and unmerging in place would not give the base weights back bit by bit.
    """
    if hasattr(model, "get_base_model"):
        model.get_base_model().save_pretrained(path, state_dict=_merged(model))
        model.save_pretrained(path / ADAPTER, save_embedding_layers=False)
    else:
        model.save_pretrained(path)
    tokenizer.save_pretrained(path)


def _merged(model: Any) -> dict[str, Tensor]:
    """The base model's state with every adapter added in, under the base model's own names.

    Merged weights go to the CPU one by one, so that a save needs no second model on the device.
    """
    base = model.get_base_model()
    state = {
        name.replace(".base_layer.", "."): value for name, value in base.state_dict().items() if ".lora_" not in name
    }
    for name, module in base.named_modules():
        if hasattr(module, "get_delta_weight"):
            weight = module.get_base_layer().weight.detach()
            delta = sum(module.get_delta_weight(adapter).detach() for adapter in module.active_adapters)
            state[f"{name}.weight"] = (weight + delta).to("cpu", weight.dtype)
    return state


def _write(
    draft: Path,
    step: int,
    write_model: Callable[[Path], None],
    tensors: Mapping[str, Tensor],
    state: Mapping[str, Any],
) -> None:
    """Fill a draft folder and make it durable, its manifest last."""
    draft.mkdir()
    try:
        write_model(draft)
    except Exception as error:  # a full disk surfaces as whatever type the model's own libraries like
        raise OSError(f"writing the model raised {type(error).__name__}: {error}") from error
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, draft / TENSORS)
    write_json(draft / STATE, {"step": step, "state": dict(state)})
    files = sorted(path for path in draft.rglob("*") if path.is_file())
    for path in files:
        sync(path)
    write_json(
        draft / MANIFEST,
        {
            "step": step,
            "files": {
                path.relative_to(draft).as_posix(): {"bytes": path.stat().st_size, "sha256": _sha256(path)}
                for path in files
            },
        },
    )
    for path in (draft, *draft.rglob("*/")):
        sync(path)


def _publish(draft: Path, final: Path) -> None:
    """Give the draft its name, verify it there; a damaged folder of that name is moved out of the way."""
    if final.exists():
        _discard(final)
    draft.replace(final)
    sync(final.parent)
    if damage := list(_damage(final)):
        raise OSError(f"read back otherwise than written: {'; '.join(damage)}")


def _damage(path: Path) -> Iterator[str]:
    """What is wrong with a checkpoint, in words; nothing when it is whole."""
    try:
        files = json.loads((path / MANIFEST).read_bytes())["files"]
        for name, expected in files.items():
            file = path / name
            if not file.is_file():
                yield f"{name} is missing"
            elif file.stat().st_size != expected["bytes"]:
                yield f"{name} has {file.stat().st_size} bytes instead of {expected['bytes']}"
            elif _sha256(file) != expected["sha256"]:
                yield f"{name} has changed"
    except FileNotFoundError:
        yield f"{MANIFEST} is missing"
    except (ValueError, LookupError, TypeError, AttributeError):
        yield f"{MANIFEST} cannot be read"


def _saved(home: Path) -> list[tuple[int, Path]]:
    """(step, path) of every checkpoint, whole or not, oldest first."""
    found = ((re.fullmatch(r"step-(\d+)", path.name), path) for path in home.glob("step-*"))
    return sorted((int(match[1]), path) for match, path in found if match)


def _prune(home: Path, step: int, keep_last: int) -> None:
    """Remove checkpoints older than `step` beyond the newest `keep_last - 1` of them.

    Newer ones are damaged leftovers of an abandoned future; the run overwrites them when it gets there.
    """
    older = [path for saved, path in _saved(home) if saved < step]
    for path in older[: max(0, len(older) - (keep_last - 1))]:
        _discard(path)


def _discard(path: Path) -> None:
    """Rename first, so that a kill halfway leaves a leftover instead of a damaged checkpoint."""
    leftover = path.with_name(f"{LEFTOVER}old-{path.name}")
    path.replace(leftover)
    shutil.rmtree(leftover)


def _clear_leftovers(home: Path) -> None:
    for path in home.glob(f"{LEFTOVER}*"):
        shutil.rmtree(path)


def _check_room(home: Path) -> None:
    saved = _saved(home)
    if not saved:
        return
    needed = int(SPARE * sum(file.stat().st_size for file in saved[-1][1].rglob("*") if file.is_file()))
    free = shutil.disk_usage(home).free
    if free < needed:
        raise OSError(f"{free / 1e6:.0f} MB are free and {needed / 1e6:.0f} MB are needed")


def _name(step: int) -> str:
    return f"step-{step:06d}"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
