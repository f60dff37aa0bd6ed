"""Checkpoints that are whole or absent, and that any Hugging Face program can load.

    checkpoints/step-000010/
      config.json, model.safetensors, tokenizer.json ...   what `write_model` wrote: a usable model folder
      adapter/                                             the LoRA adapter, when there is one
      trainer.safetensors                                  optimizer tensors
      trainer.json                                         step, and everything else as JSON
      manifest.json                                        size and SHA-256 of every other file; where both logs ended

"step 10" means that ten steps, 0 to 9, are done; a resumed run goes on with step 10. There is no pickle anywhere.

Where the parameters to resume from are: `save_pretrained` writes every parameter in its own precision, so a full model
resumes bit-exactly from the model folder itself. A LoRA run resumes from its base model and `adapter/`; its model
folder is the merged model, for use, from which base and adapter cannot be told apart any more. Either way
trainer.safetensors holds no parameter twice.

A save writes into a folder with a temporary name, makes every byte durable, renames it, and only then removes older
checkpoints; a kill at any moment leaves the newest whole checkpoint in place and at worst a leftover for the next save
to clear away. What cannot be removed is said in a notice and changes nothing else: a save fails only where the new
checkpoint itself cannot be written. What stands below another name than a save would use is never touched, and what is
no folder (a file, say) where a checkpoint belongs is moved aside, not deleted; of a link, only the link is.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from winnow import ranks
from winnow.errors import RunFolderError
from winnow.state.disk import InTheWay, check_kind, kind, sync, write_json
from winnow.state.log_marks import Mark, lost

FOLDER = "checkpoints"
TENSORS = "trainer.safetensors"
STATE = "trainer.json"
MANIFEST = "manifest.json"
LEFTOVER = ".unfinished-"
OURS = ("a folder", "a symbolic link")  # what a save may remove; of a link, only the link
SPARE = 1.5  # times the last checkpoint's size that must be free


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose every file was found as it was written."""

    path: Path  # a usable model folder
    step: int  # steps done; the next one to run
    notices: tuple[str, ...] = ()  # what was passed over, or could not be removed, and why
    logs: Mapping[str, Mark] = field(default_factory=dict)  # where the run's logs ended, by file name


def check(folder: Path, needed: int) -> None:
    """Before a run: raise RunFolderError where its folder cannot take checkpoints, or its disk has less than `needed`
    bytes, one checkpoint's size. What a disk or a quota does not tell is not known before the first save.
    """
    home = folder / FOLDER
    with _refusals(home):
        check_kind(home, "a folder")
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return
    if usage.total and usage.free < needed:
        raise RunFolderError(
            f"a checkpoint of this run takes {needed / 1e6:.0f} MB, and {usage.free / 1e6:.0f} MB are free in {folder}"
            f"; make room, or choose another `output`"
        )


def save(
    folder: Path,
    step: int,
    *,
    write_model: Callable[[Path], None],
    tensors: Mapping[str, Tensor],
    state: Mapping[str, Any],
    keep_last: int,
    logs: Mapping[str, Mark] = MappingProxyType({}),
) -> Checkpoint:
    """Write the checkpoint of `step` below the run folder, then remove all but the newest `keep_last`.

    `write_model` fills a folder (see models/save.py); `tensors` may live anywhere and share no memory; `state` is
    strict JSON; `logs` say where the run's logs end, which are on the disk up to there. A whole checkpoint of this very
    step is left as it is, where the logs still hold what it relies on: it is what the run resumed from.

    Raises RunFolderError when there is too little room or the disk refuses. Older checkpoints are then untouched and
    what was written is removed, so a run may go on and try again later. ValueError for a state that is not JSON.
    """
    home = folder / FOLDER
    final = home / _name(step)
    if not ranks.is_writer():
        return Checkpoint(final, step, logs=logs)
    notices: list[str] = []
    try:
        check_kind(home, "a folder")
        home.mkdir(parents=True, exist_ok=True)
        sync(folder)
        notices += _clear_leftovers(home)
        if not _is_saved(final, folder):
            _check_room(home)
            draft = _unused(home / f"{LEFTOVER}{final.name}")
            try:
                _write(draft, step, write_model, tensors, state, logs)
                notices += _publish(draft, final)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        raise RunFolderError(f"cannot save checkpoint {final}: {error}; older checkpoints are untouched") from error
    return Checkpoint(final, step, (*notices, *_prune(home, step, keep_last)), logs)


def newest(folder: Path) -> Checkpoint | None:
    """The newest whole checkpoint below a run folder, each file checked against its SHA-256; None when none was saved.

    One that is damaged, or that the disk does not give back, is passed over with a notice.

    Raises RunFolderError when there are checkpoints and none can be used, or when their folder cannot be read.
    """
    notices: list[str] = []
    with _refusals(folder / FOLDER):
        saved = _saved(folder / FOLDER)
    for step, path in reversed(saved):
        damage = list(_damage(path))
        if not damage:
            return Checkpoint(path, step, tuple(notices), _logs(path))
        notices.append(f"checkpoint {path} is damaged ({'; '.join(damage)}) and was passed over")
    if notices:
        raise RunFolderError(f"no checkpoint can be used: {'; '.join(notices)}; delete {folder / FOLDER} to start over")
    return None


def load(checkpoint: Checkpoint) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors (on the CPU) and the state that `save` was given. The model is loaded from `checkpoint.path`.

    Raises RunFolderError when the disk no longer gives them back.
    """
    try:
        saved = json.loads((checkpoint.path / STATE).read_text(encoding="utf-8"))
        return load_file(checkpoint.path / TENSORS), saved["state"]
    except (OSError, ValueError, SafetensorError) as error:
        raise RunFolderError(
            f"checkpoint {checkpoint.path} was whole a moment ago and cannot be read now: {error}; try again, or "
            f"delete it to go on from the one before it"
        ) from error


def _write(
    draft: Path,
    step: int,
    write_model: Callable[[Path], None],
    tensors: Mapping[str, Tensor],
    state: Mapping[str, Any],
    logs: Mapping[str, Mark],
) -> None:
    """Fill a draft folder and make it durable, its manifest last."""
    draft.mkdir()
    try:
        write_model(draft)
    except Exception as error:  # a full disk surfaces as whatever type the model's own libraries like
        raise OSError(f"writing the model raised {type(error).__name__}: {error}") from error
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, draft / TENSORS)
    write_json(draft / STATE, {"step": step, "state": dict(state)}, indent=None)
    files = sorted(path for path in draft.rglob("*") if path.is_file())
    for path in files:
        sync(path)
    write_json(
        draft / MANIFEST,
        {
            "step": step,
            "logs": {name: dataclasses.asdict(mark) for name, mark in logs.items()},
            "files": {
                path.relative_to(draft).as_posix(): {"bytes": path.stat().st_size, "sha256": _sha256(path)}
                for path in files
            },
        },
    )
    for path in (draft, *draft.rglob("*/")):
        sync(path)


def _publish(draft: Path, final: Path) -> list[str]:
    """Give the draft its name and verify it there. What stood there is moved out of the way, and removed where a save
    of ours may have left it. Returns notices.
    """
    standing = kind(final)
    aside = _unused(final.with_name(f"{LEFTOVER}old-{final.name}" if standing in OURS else f"{final.name}-moved-aside"))
    if standing:
        final.replace(aside)
    try:
        draft.replace(final)
    except OSError:
        if standing:
            aside.replace(final)
        raise
    sync(final.parent)
    if damage := list(_damage(final)):
        raise OSError(f"read back otherwise than written: {'; '.join(damage)}")
    if not standing or standing in OURS:
        return list(_delete(aside)) if standing else []
    return [f"{final} was {standing}, where a checkpoint belongs; it is now called {aside.name}"]


def _damage(path: Path) -> Iterator[str]:
    """What is wrong with a checkpoint, in words; nothing when it is whole."""
    try:
        check_kind(path, "a folder", follow=True)
        check_kind(path / MANIFEST, "a file", follow=True)
        _logs(path)
        for name, expected in _manifest(path)["files"].items():
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
    except OSError as error:
        yield error.strerror or str(error)


def _manifest(path: Path) -> dict[str, Any]:
    return dict(json.loads((path / MANIFEST).read_bytes()))


def _logs(path: Path) -> dict[str, Mark]:
    """Where the logs ended; empty where nobody wrote it down, or somebody removed it."""
    return {name: Mark(**mark) for name, mark in _manifest(path).get("logs", {}).items()}


def _is_saved(final: Path, folder: Path) -> bool:
    if kind(final) != "a folder" or any(_damage(final)):
        return False
    return all(lost(folder / name, mark) is None for name, mark in _logs(final).items())


def _saved(home: Path) -> list[tuple[int, Path]]:
    """(step, path) of all that is called like a checkpoint, whole or not, oldest first. Raises OSError."""
    if kind(home, follow=True) is None:
        return []
    found = ((re.fullmatch(r"step-(\d+)", path.name), path) for path in home.iterdir())
    return sorted((int(match[1]), path) for match, path in found if match)


def _prune(home: Path, step: int, keep_last: int) -> list[str]:
    """Remove checkpoints older than `step` beyond the newest `keep_last - 1` of them; notices of those that stay.

    Newer ones are damaged leftovers of an abandoned future; the run overwrites them when it gets there.
    """
    try:
        saved = _saved(home)
    except OSError as error:
        return [f"older checkpoints were not removed: {error}"]
    older = [path for of, path in saved if of < step and kind(path) in OURS]
    return [text for path in older[: max(0, len(older) - (keep_last - 1))] for text in _discard(path)]


def _discard(path: Path) -> Iterator[str]:
    """Rename first, so that a kill halfway leaves a leftover instead of a damaged checkpoint."""
    leftover = _unused(path.with_name(f"{LEFTOVER}old-{path.name}"))
    try:
        path.replace(leftover)
    except OSError as error:
        yield f"the old checkpoint {path} could not be removed ({error.strerror}) and is as it was"
        return
    yield from _delete(leftover)


def _clear_leftovers(home: Path) -> Iterator[str]:
    for path in sorted(home.glob(f"{LEFTOVER}*")):
        if kind(path) in OURS:
            yield from _delete(path)


def _delete(leftover: Path) -> Iterator[str]:
    """Remove as much as can be removed of a folder, or a link but not what it leads to; a notice of what stays."""
    try:
        if kind(leftover) == "a folder":
            shutil.rmtree(leftover)
        else:
            leftover.unlink()
    except OSError as error:
        shutil.rmtree(leftover, ignore_errors=True)
        yield f"{leftover}, which no run needs any more, could not be removed ({error}); remove it by hand"


def _check_room(home: Path) -> None:
    saved = [path for _, path in _saved(home) if kind(path) == "a folder"]
    try:
        needed = int(SPARE * sum(file.stat().st_size for path in saved[-1:] for file in path.rglob("*")))
        free = shutil.disk_usage(home).free
    except OSError:
        return  # an old checkpoint that cannot be measured is no reason not to try
    if free < needed:
        raise OSError(f"{free / 1e6:.0f} MB are free and {needed / 1e6:.0f} MB are needed")


def _unused(path: Path) -> Path:
    """A path at which nothing stands: this one, or the first of it with a number."""
    numbered = (path.with_name(f"{path.name}-{number}") for number in itertools.count(1))
    return next(free for free in itertools.chain([path], numbered) if kind(free) is None)


@contextmanager
def _refusals(home: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        remedy = "move it away" if isinstance(error, InTheWay) else "repair that"
        raise RunFolderError(f"cannot use {home}: {error.strerror}; {remedy}, or choose another `output`") from error


def _name(step: int) -> str:
    return f"step-{step:06d}"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
