"""What a checkpoint holds, and how it is saved and found again: it is whole or absent.

    checkpoints/step-000010/
      config.json, model.safetensors, tokenizer.json ...   what `write_model` wrote: a usable model folder
      adapter/                                             the LoRA adapter, when there is one
      trainer.safetensors                                  optimizer tensors
      trainer.json                                         step, and everything else as JSON
      manifest.json                                        size and SHA-256 of every other file; where both logs ended

"step 10" means that ten steps, 0 to 9, are done; a resumed run continues with step 10. There is no pickle anywhere.

The parameters to resume from: a model folder has every parameter in its own precision, so a full model resumes
bit-exactly from that, or, where its weights are rounded from float32 masters, from those in trainer.safetensors. A LoRA
run resumes from its base model and `adapter/`; its model folder is the merged model, for use, from which base and
adapter cannot be separated any more.

Tensors are written one by one and hashed as they are written: nothing but the one under way is copied to the host, and
the digests in the manifest are of the bytes that were given to the disk. After the rename, sizes alone are compared.
Hashing the files again there would read what the system still holds in memory, and so show no fault of the disk; what a
disk loses later a resume finds, which hashes every file once.

A save writes into a folder with a temporary name, syncs every file, renames the folder, and only then removes older
checkpoints (checkpoint_cleanup.py). A kill at any moment leaves the newest whole checkpoint in place and at worst a
leftover that the next save removes. Where an old checkpoint cannot be removed, a notice says so: a save fails only
where the new checkpoint itself cannot be written. Files and folders with other names than those of a save are never
touched. Whatever is no folder (a file, say) where a checkpoint belongs is renamed, not deleted; of a link, only the
link is removed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from winnow import ranks
from winnow.errors import RunFolderError
from winnow.models.tensor_file import write_tensors
from winnow.state.checkpoint_cleanup import LEFTOVER, REMOVABLE, clear_leftovers, delete, prune, unused
from winnow.state.checkpoint_manifest import damages, marks_in, write_manifest
from winnow.state.checkpoint_names import FOLDER, TENSORS, find, path_of
from winnow.state.disk import InTheWay, check_kind, kind, sync, write_json
from winnow.state.log_marks import Mark, lost

STATE = "trainer.json"
SPARE = 1.5  # times the last checkpoint's size that must be free


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose every file was found as it was written."""

    path: Path  # a usable model folder
    step: int  # steps done; the next one to run
    notices: tuple[str, ...] = ()  # which checkpoints were passed over or could not be removed, and why
    logs: Mapping[str, Mark] = field(default_factory=dict)  # where the run's logs ended, by file name


def check(folder: Path, needed: int) -> None:
    """Before a run: raise RunFolderError where its folder cannot hold checkpoints, or its disk has less than `needed`
    bytes free, one checkpoint's size. A full quota that the system does not report shows only at the first save.
    """
    with _refusals(folder):
        check_kind(folder / FOLDER, "a folder")
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return
    if usage.total and usage.free < needed:
        raise RunFolderError(
            f"a checkpoint of this run takes {needed / 1e6:.0f} MB, and {usage.free / 1e6:.0f} MB are free in {folder}",
            remedy="make room, or choose another folder with the key output",
            key="output",
            code="run_folder.unwritable",
        )


def save(
    folder: Path,
    step: int,
    *,
    write_model: Callable[[Path], Mapping[str, str]],
    tensors: Mapping[str, Tensor],
    read: Callable[[str], Tensor] | None = None,
    state: Mapping[str, Any],
    keep_last: int,
    logs: Mapping[str, Mark] = MappingProxyType({}),
    known: Checkpoint | None = None,
) -> Checkpoint:
    """Write the checkpoint of `step` below the run folder, then remove all but the newest `keep_last`.

    `write_model` fills a folder and returns the SHA-256 of files that it hashed as it wrote them (see models/save.py);
    `tensors` may live anywhere, and stay as they are until this returns; where this process has only shares of them,
    `read` gives each one whole; `state` is strict JSON; `logs` say where the
    run's logs end, which are on the disk up to there. A whole checkpoint of this very step is left as it is, where the
    logs still hold what it relies on: it is what the run resumed from, or has just saved. The files of one that is
    `known`, from `newest` or from an earlier save of this process, are not hashed again to know that.

    Raises RunFolderError where there is too little room or a write fails. Older checkpoints are then untouched and the
    new files are removed, so a run may continue and try again later. ValueError for a state that is not JSON.
    """
    final = path_of(folder, step)
    home = final.parent
    if not ranks.is_writer():
        return Checkpoint(final, step, logs=logs)
    notices: list[str] = []
    try:
        check_kind(home, "a folder")
        home.mkdir(parents=True, exist_ok=True)
        sync(folder)
        notices += clear_leftovers(folder)
        if not _is_saved(final, folder, hashed=known is None or known.path != final):
            _check_room(folder)
            draft = unused(home / f"{LEFTOVER}{final.name}")
            try:
                _write(draft, step, write_model, tensors, read, state, logs)
                notices += _publish(draft, final)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
    except OSError as error:
        raise RunFolderError(
            f"cannot save checkpoint {final}: {error}; older checkpoints are untouched",
            remedy="make room, or repair the folder",
            code="run_folder.unsaved",
        ) from error
    return Checkpoint(final, step, (*notices, *prune(folder, step, keep_last)), logs)


def newest(folder: Path) -> Checkpoint | None:
    """The newest whole checkpoint below a run folder, each file checked against its SHA-256; None when none was saved.

    One that is damaged or cannot be read is passed over with a notice.

    Raises RunFolderError when there are checkpoints and none can be used, or when their folder cannot be read.
    """
    notices: list[str] = []
    with _refusals(folder):
        saved = find(folder)
    for step, path in reversed(saved):
        damage = list(damages(path))
        if not damage:
            return Checkpoint(path, step, tuple(notices), marks_in(path))
        notices.append(f"checkpoint {path} is damaged ({'; '.join(damage)}) and was passed over")
    if notices:
        raise RunFolderError(
            f"no checkpoint can be used: {'; '.join(notices)}",
            remedy=f"delete {folder / FOLDER} to start over",
            code="run_folder.damaged",
        )
    return None


def load(checkpoint: Checkpoint) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors (on the CPU) and the state that `save` was given. The model is loaded from `checkpoint.path`.

    The file is mapped: a tensor takes memory when it is read.

    Raises RunFolderError when they cannot be read any more.
    """
    try:
        saved = json.loads((checkpoint.path / STATE).read_text(encoding="utf-8"))
        return load_file(checkpoint.path / TENSORS), saved["state"]
    except (OSError, ValueError, SafetensorError) as error:
        raise RunFolderError(
            f"checkpoint {checkpoint.path} was whole a moment ago and cannot be read now: {error}",
            remedy="try again, or delete it to resume from the checkpoint before it",
            code="run_folder.damaged",
        ) from error


def _write(
    draft: Path,
    step: int,
    write_model: Callable[[Path], Mapping[str, str]],
    tensors: Mapping[str, Tensor],
    read: Callable[[str], Tensor] | None,
    state: Mapping[str, Any],
    logs: Mapping[str, Mark],
) -> None:
    """Fill a draft folder and make it durable, its manifest last."""
    draft.mkdir()
    try:
        digests = dict(write_model(draft))
    except Exception as error:  # a full disk is reported as an exception of any type, depending on the model's library
        raise OSError(f"writing the model raised {type(error).__name__}: {error}") from error
    digests[TENSORS] = write_tensors(draft / TENSORS, tensors, read)
    write_json(draft / STATE, {"step": step, "state": dict(state)}, indent=None)
    files = sorted(path for path in draft.rglob("*") if path.is_file())
    for path in files:
        sync(path)
    write_manifest(draft, step, files, logs, digests)
    for path in (draft, *draft.rglob("*/")):
        sync(path)


def _publish(draft: Path, final: Path) -> list[str]:
    """Give the draft its final name and compare sizes there. Whatever had that name is renamed, and removed where it
    may be an earlier checkpoint. Returns notices.
    """
    found = kind(final)
    aside_name = f"{LEFTOVER}old-{final.name}" if found in REMOVABLE else f"{final.name}-moved-aside"
    aside = unused(final.with_name(aside_name))
    if found:
        final.replace(aside)
    try:
        draft.replace(final)
    except OSError:
        if found:
            aside.replace(final)
        raise
    sync(final.parent)
    if damage := list(damages(final, hashed=False)):
        raise OSError(f"read back otherwise than written: {'; '.join(damage)}")
    if not found or found in REMOVABLE:
        return list(delete(aside)) if found else []
    return [f"{final} was {found}, where a checkpoint belongs; it is now called {aside.name}"]


def _is_saved(final: Path, folder: Path, *, hashed: bool) -> bool:
    """Whether there is a whole checkpoint whose rows the logs still hold."""
    if kind(final) != "a folder" or any(damages(final, hashed=hashed)):
        return False
    return all(lost(folder / name, mark) is None for name, mark in marks_in(final).items())


def _check_room(folder: Path) -> None:
    saved = [path for _, path in find(folder) if kind(path) == "a folder"]
    try:
        needed = int(SPARE * sum(file.stat().st_size for path in saved[-1:] for file in path.rglob("*")))
        free = shutil.disk_usage(folder / FOLDER).free
    except OSError:
        return  # the size of an old checkpoint is not known: try to save
    if free < needed:
        raise OSError(f"{free / 1e6:.0f} MB are free and {needed / 1e6:.0f} MB are needed")


@contextmanager
def _refusals(folder: Path) -> Iterator[None]:
    """An OSError inside becomes a RunFolderError about the run's folder of checkpoints."""
    try:
        yield
    except OSError as error:
        remedy = "move it away" if isinstance(error, InTheWay) else "repair the folder"
        raise RunFolderError(
            f"cannot use {folder / FOLDER}: {error.strerror}",
            remedy=f"{remedy}, or choose another folder with the key output",
            key="output",
            code="run_folder.unreadable",
        ) from error
