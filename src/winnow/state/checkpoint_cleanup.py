"""Removes older checkpoints, and the leftovers of an interrupted save.

A path that cannot be removed stays and is named in a notice. No save fails because of it.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

from winnow.state.checkpoint_names import FOLDER, find
from winnow.state.disk import kind

LEFTOVER = ".unfinished-"  # prefix of a draft, and of a checkpoint that is being removed
REMOVABLE = ("a folder", "a symbolic link")  # of a link, only the link is removed


def prune(run: Path, step: int, keep_last: int) -> list[str]:
    """Remove the checkpoints older than `step`, except the newest `keep_last - 1`; returns notices.

    Newer checkpoints are damaged ones that the resume skipped. The run overwrites them when it reaches their steps.
    """
    try:
        saved = find(run)
    except OSError as error:
        return [f"older checkpoints were not removed: {error}"]
    older = [path for of, path in saved if of < step and kind(path) in REMOVABLE]
    return [text for path in older[: max(0, len(older) - (keep_last - 1))] for text in _discard(path)]


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
