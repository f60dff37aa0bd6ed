"""Saves, finds and loads checkpoints. A checkpoint is whole or absent.

    checkpoints/step-000010/
      config.json, model.safetensors, tokenizer.json ...   written by `write_model`: a usable model folder
      adapter/                                             the LoRA adapter, when there is one
      trainer.tensors                                      optimizer tensors
      trainer.json                                         step, and everything else as JSON
      manifest.json                                        size and SHA-256 of every other file; the ends of both logs

"step 10" means that ten steps, 0 to 9, are done; a resumed run continues with step 10. There is no pickle anywhere.

A full model resumes bit-exactly from its model folder, which has every parameter in its own precision. Where weights
are rounded from float32 masters, it resumes from the masters in trainer.tensors. A LoRA run resumes from its base
model and `adapter/`. Its model folder is the merged model, from which the adapter cannot be recovered.

Tensors are copied to the host, hashed and written one at a time, so the manifest has the digests of the bytes that were
sent to the disk. After the rename, only sizes are compared: hashing the files again would read them from the system's
cache, and so detect no fault of the disk. A resume hashes every file once, and so detects later damage.

A save writes into a folder with a temporary name, syncs every file, renames the folder, and only then removes older
checkpoints (`prune`). SIGKILL at any moment leaves the newest whole checkpoint in place, and at worst a leftover that
the next save removes. A save fails only where the new checkpoint cannot be written. An old checkpoint that cannot be
removed causes a notice. Files and folders that have no name of a checkpoint or leftover are never changed. Anything but
a folder in the place of a checkpoint, such as a file, is renamed and not deleted. Of a symbolic link, only the link is
removed.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
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
from winnow.state.disk import check_kind, errors_as, is_writable, kind, sync, write_json
from winnow.state.folder import FOLDER, TENSORS, find, path_of
from winnow.state.log import Mark, lost

MANIFEST = "manifest.json"
LEFTOVER = ".unfinished-"  # prefix of a draft, and of a checkpoint that is being removed
REMOVABLE = ("a folder", "a symbolic link")  # of a link, only the link is removed
STATE = "trainer.json"
SPARE = 1.5  # required free space, as a multiple of the last checkpoint's size


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files are all as they were written."""

    path: Path  # a usable model folder
    step: int  # steps done; the next one to run
    notices: tuple[str, ...] = ()  # checkpoints that were skipped or could not be removed, with the reason
    logs: Mapping[str, Mark] = field(default_factory=dict)  # the ends of the run's logs at the save, by file name


def check(folder: Path, needed: int) -> None:
    """Check a folder before a run: raise RunFolderError where it cannot contain checkpoints, or where its disk has less
    than `needed` bytes free, the size of one checkpoint. Only the first save can detect a quota that the system does
    not report.
    """
    home = folder / FOLDER
    with _refusals(folder):
        check_kind(home, "a folder")
        if home.exists() and not is_writable(home):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return
    if usage.total and usage.free < needed:
        raise RunFolderError(
            f"a checkpoint of this run needs {needed / 1e6:.0f} MB, and {usage.free / 1e6:.0f} MB are free in {folder}",
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
    known: Path | None = None,
) -> Checkpoint:
    """Write the checkpoint of `step` below the run folder, then remove all but the newest `keep_last`.

    `write_model` fills a folder and returns the SHA-256 of files that it hashed while writing (see models/save.py).
    `tensors` may be on any device, and must not change until this returns. Where this process has only shares of them,
    `read` returns each one whole. `state` is strict JSON. `logs` are the ends of the run's logs, synced up to there.

    A whole checkpoint of the same step is kept if the logs still have the rows that it relies on: the run has resumed
    from it, or has just saved it. Its files are not hashed again if its path is `known`, from `newest` or
    from an earlier save of this process.

    If there is too little space, the oldest checkpoint is removed, with a notice, and so on; never the newest one.

    Raises RunFolderError if there is too little space nevertheless, or a write fails. The new files are then
    removed, so a run may continue and try again later. ValueError for a state that is not JSON.
    """
    final = path_of(folder, step)
    home = final.parent
    if not ranks.is_writer():
        return Checkpoint(final, step, logs=logs)
    notices: list[str] = []
    problem = f"cannot save checkpoint {final}, and the newest one before it is untouched"
    try:
        with errors_as(RunFolderError, problem, "make room, or repair the folder", code="run_folder.unsaved"):
            check_kind(home, "a folder")
            home.mkdir(parents=True, exist_ok=True)
            sync(folder)
            notices += clear_leftovers(folder)
            saved = _is_saved(final, folder, hashed=known != final)
            while not saved:
                draft = unused(home / f"{LEFTOVER}{final.name}")
                try:
                    _check_room(folder)
                    _write(draft, step, write_model, tensors, read, state, logs)
                    notices += _publish(draft, final)
                    saved = True
                except OSError as error:
                    if not is_full(error) or not (removed := make_room(folder, step, known)):
                        raise
                    notices += removed
                finally:
                    shutil.rmtree(draft, ignore_errors=True)
    except RunFolderError as error:
        for text in notices:  # such as those of removed checkpoints
            error.add_note(text)
        raise
    return Checkpoint(final, step, (*notices, *prune(folder, step, keep_last, known)), logs)


def newest(folder: Path) -> Checkpoint | None:
    """The newest whole checkpoint below a run folder, each file checked against its SHA-256; None if there is none.

    A checkpoint that is damaged or cannot be read is skipped with a notice.

    Raises RunFolderError if checkpoints exist and none can be used, or where their folder cannot be read.
    """
    notices: list[str] = []
    with _refusals(folder):
        saved = find(folder)
    for step, path in reversed(saved):
        damage = list(damages(path))
        if not damage:
            return Checkpoint(path, step, tuple(notices), marks_in(path))
        notices.append(f"checkpoint {path} is damaged ({'; '.join(damage)}) and was skipped")
    if notices:
        raise RunFolderError(
            f"no checkpoint can be used: {'; '.join(notices)}",
            remedy=f"delete {folder / FOLDER} to start over",
            code="run_folder.damaged",
        )
    return None


def load(checkpoint: Checkpoint) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors (on the CPU) and the state that were passed to `save`. The model is loaded from `checkpoint.path`.

    The file of tensors is mapped: a tensor uses memory only when it is read.

    Raises RunFolderError if the files cannot be read any more.
    """
    problem = f"checkpoint {checkpoint.path} was whole a moment ago and cannot be read now"
    remedy = "try again, or delete it to resume from the checkpoint before it"
    with errors_as(
        RunFolderError, problem, remedy, code="run_folder.damaged", of=(OSError, ValueError, SafetensorError)
    ):
        saved = json.loads((checkpoint.path / STATE).read_text(encoding="utf-8"))
        return load_file(checkpoint.path / TENSORS), saved["state"]


def _write(
    draft: Path,
    step: int,
    write_model: Callable[[Path], Mapping[str, str]],
    tensors: Mapping[str, Tensor],
    read: Callable[[str], Tensor] | None,
    state: Mapping[str, Any],
    logs: Mapping[str, Mark],
) -> None:
    """Fill a draft folder and sync it, its manifest last."""
    draft.mkdir()
    try:
        digests = dict(write_model(draft))
    except Exception as error:  # libraries raise exceptions of any type on a full disk
        number = error.errno if isinstance(error, OSError) else None
        raise OSError(number, f"writing the model raised {type(error).__name__}: {error}") from error
    digests[TENSORS] = write_tensors(draft / TENSORS, tensors, read)
    write_json(draft / STATE, {"step": step, "state": dict(state)}, indent=None)
    files = sorted(path for path in draft.rglob("*") if path.is_file())
    for path in files:
        sync(path)
    write_manifest(draft, step, files, logs, digests)
    for path in (draft, *draft.rglob("*/")):
        sync(path)


def _publish(draft: Path, final: Path) -> list[str]:
    """Rename the draft to its final name and compare the sizes there. Returns notices.

    What had that name is renamed, and then removed if it may be an earlier checkpoint.
    """
    existing = kind(final)
    aside_name = f"{LEFTOVER}old-{final.name}" if existing in REMOVABLE else f"{final.name}-moved-aside"
    aside = unused(final.with_name(aside_name))
    if existing:
        final.replace(aside)
    try:
        draft.replace(final)
    except OSError:
        if existing:
            aside.replace(final)
        raise
    sync(final.parent)
    if damage := list(damages(final, hashed=False)):
        raise OSError(f"the files differ from what was written: {'; '.join(damage)}")
    if not existing or existing in REMOVABLE:
        return list(delete(aside)) if existing else []
    return [f"{final} was {existing}, where a checkpoint belongs; it is now called {aside.name}"]


def _is_saved(final: Path, folder: Path, *, hashed: bool) -> bool:
    """Whether `final` is a whole checkpoint, and the logs still have the rows that it relies on."""
    if kind(final) != "a folder" or any(damages(final, hashed=hashed)):
        return False
    return all(lost(folder / name, mark) is None for name, mark in marks_in(final).items())


def _check_room(folder: Path) -> None:
    saved = [path for _, path in find(folder) if kind(path) == "a folder"]
    try:
        needed = int(SPARE * sum(file.stat().st_size for path in saved[-1:] for file in path.rglob("*")))
        free = shutil.disk_usage(folder / FOLDER).free
    except OSError:
        return  # the size of the old checkpoint is unknown: try to save
    if free < needed:
        raise OSError(errno.ENOSPC, f"{free / 1e6:.0f} MB are free and {needed / 1e6:.0f} MB are needed")


def is_full(error: BaseException | None) -> bool:
    """Whether an error is that of a full disk or quota, or was raised because of one."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__
    return False


def make_room(run: Path, step: int, known: Path | None = None) -> list[str]:
    """Remove a checkpoint before `step`: one that the resume skipped, or the oldest if a whole, newer one is before
    `step`. Returns notices; [] if it removes none. `known` is as in `prune`.
    """
    whole, skipped = _older(run, step, known)
    if not skipped and all(any(damages(path, hashed=False)) for path in whole[1:]):
        return []
    least = [*skipped, *whole][0]
    failures = list(_discard(least))
    if kind(least) is not None:
        return []
    return [f"the disk is full: {least} was removed to make room for {path_of(run, step).name}", *failures]


def _older(run: Path, step: int, known: Path | None) -> tuple[list[Path], list[Path]]:
    """The checkpoints before `step` up to `known`, and those after it, which are damaged: the resume skipped them."""
    older = [path for of, path in find(run) if of < step and kind(path) in REMOVABLE]
    end = older.index(known) + 1 if known in older else len(older)
    return older[:end], older[end:]


def _refusals(folder: Path) -> AbstractContextManager[None]:
    """An OSError inside becomes a RunFolderError about the run's folder of checkpoints."""
    remedy = "repair the folder, or choose another one with the key output"
    problem = f"cannot use {folder / FOLDER}"
    return errors_as(RunFolderError, problem, remedy, key="output", code="run_folder.unreadable")


def write_manifest(
    folder: Path, step: int, files: Iterable[Path], logs: Mapping[str, Mark], digests: Mapping[str, str]
) -> None:
    """Write the manifest of `files` in a checkpoint's folder. `digests` are by path in the folder; a file without one
    is read and hashed. Raises OSError.
    """
    names = {path.relative_to(folder).as_posix(): path for path in files}
    sizes_and_digests = {
        name: {"bytes": path.stat().st_size, "sha256": digests.get(name) or _sha256(path)}
        for name, path in names.items()
    }
    marks = {name: dataclasses.asdict(mark) for name, mark in logs.items()}
    write_json(folder / MANIFEST, {"step": step, "logs": marks, "files": sizes_and_digests})


def marks_in(path: Path) -> dict[str, Mark]:
    """The ends of the logs when the checkpoint was saved, by file name; empty where the manifest lists no logs."""
    return {name: Mark(**mark) for name, mark in _manifest_of(path).get("logs", {}).items()}


def damages(path: Path, *, hashed: bool = True) -> Iterator[str]:
    """The damages of a checkpoint, in words: files of another size or, with `hashed`, SHA-256 than in the manifest."""
    try:
        check_kind(path, "a folder", follow=True)
        check_kind(path / MANIFEST, "a file", follow=True)
        marks_in(path)
        for name, expected in _manifest_of(path)["files"].items():
            file = path / name
            if not file.is_file():
                yield f"{name} is missing"
            elif file.stat().st_size != expected["bytes"]:
                yield f"{name} has {file.stat().st_size} bytes instead of {expected['bytes']}"
            elif hashed and _sha256(file) != expected["sha256"]:
                yield f"{name} has changed"
    except FileNotFoundError:
        yield f"{MANIFEST} is missing"
    except (ValueError, LookupError, TypeError, AttributeError):
        yield f"{MANIFEST} cannot be read"
    except OSError as error:
        yield error.strerror or str(error)


def _manifest_of(path: Path) -> dict[str, Any]:
    return dict(json.loads((path / MANIFEST).read_bytes()))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def prune(run: Path, step: int, keep_last: int, known: Path | None = None) -> list[str]:
    """Remove the checkpoints older than `step`, except the newest `keep_last - 1` up to `known`; returns notices.

    `known` is the checkpoint that the run has loaded or saved last. Later ones are damaged, and the resume skipped
    them. They are removed once the run has passed their steps.
    """
    try:
        whole, skipped = _older(run, step, known)
    except OSError as error:
        return [f"older checkpoints were not removed: {error}"]
    return [text for path in (*whole[: max(0, len(whole) - (keep_last - 1))], *skipped) for text in _discard(path)]


def clear_leftovers(run: Path) -> Iterator[str]:
    """Remove the leftovers of interrupted saves; yields notices."""
    for path in sorted((run / FOLDER).glob(f"{LEFTOVER}*")):
        if kind(path) in REMOVABLE:
            yield from delete(path)


def delete(leftover: Path) -> Iterator[str]:
    """Remove as much of a folder as possible, or a link without its target; yields a notice where something stays."""
    try:
        if kind(leftover) == "a folder":
            shutil.rmtree(leftover)
        else:
            leftover.unlink()
    except OSError as error:
        shutil.rmtree(leftover, ignore_errors=True)
        yield f"{leftover}, which no run needs any more, could not be removed ({error}); remove it manually"


def unused(path: Path) -> Path:
    """The path itself if nothing exists there, else the first unused one with a number after its name."""
    numbered = (path.with_name(f"{path.name}-{number}") for number in itertools.count(1))
    return next(free for free in itertools.chain([path], numbered) if kind(free) is None)


def _discard(path: Path) -> Iterator[str]:
    """Rename, then delete: SIGKILL during the deletion leaves a leftover instead of a damaged checkpoint."""
    leftover = unused(path.with_name(f"{LEFTOVER}old-{path.name}"))
    try:
        path.replace(leftover)
    except OSError as error:
        yield f"the old checkpoint {path} could not be removed ({error.strerror}) and is unchanged"
        return
    yield from delete(leftover)
