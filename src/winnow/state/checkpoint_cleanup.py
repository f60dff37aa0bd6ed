"""What a save may remove: older checkpoints, and the leftovers of a save that was interrupted.

Whatever cannot be removed stays and is named in a notice; no save fails because of it.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

from winnow.state.checkpoint_names import FOLDER, find
from winnow.state.disk import kind

LEFTOVER = ".unfinished-"  # how the name of a draft, or of a checkpoint that is being removed, begins
REMOVABLE = ("a folder", "a symbolic link")  # of a link, only the link is removed


def prune(run: Path, step: int, keep_last: int) -> list[str]:
    """Remove checkpoints older than `step` beyond the newest `keep_last - 1` of them; returns notices.

    Newer ones are damaged ones that the resume has passed over; the run overwrites them when it reaches their steps.
    """
    try:
        saved = find(run)
    except OSError as error:
        return [f"older checkpoints were not removed: {error}"]
    older = [path for of, path in saved if of < step and kind(path) in REMOVABLE]
    return [text for path in older[: max(0, len(older) - (keep_last - 1))] for text in _discard(path)]


def clear_leftovers(run: Path) -> Iterator[str]:
    """Remove what interrupted saves have left; yields notices."""
    for path in sorted((run / FOLDER).glob(f"{LEFTOVER}*")):
        if kind(path) in REMOVABLE:
            yield from delete(path)


def delete(leftover: Path) -> Iterator[str]:
    """Remove as much of a folder as can be removed, or a link but not its target; yields a notice of what stays."""
    try:
        if kind(leftover) == "a folder":
            shutil.rmtree(leftover)
        else:
            leftover.unlink()
    except OSError as error:
        shutil.rmtree(leftover, ignore_errors=True)
        yield f"{leftover}, which no run needs any more, could not be removed ({error}); remove it by hand"


def unused(path: Path) -> Path:
    """A path at which there is nothing yet: this one, or the first of it with a number."""
    numbered = (path.with_name(f"{path.name}-{number}") for number in itertools.count(1))
    return next(free for free in itertools.chain([path], numbered) if kind(free) is None)


def _discard(path: Path) -> Iterator[str]:
    """Rename first, so that a kill halfway leaves a leftover instead of a damaged checkpoint."""
    leftover = unused(path.with_name(f"{LEFTOVER}old-{path.name}"))
    try:
        path.replace(leftover)
    except OSError as error:
        yield f"the old checkpoint {path} could not be removed ({error.strerror}) and is as it was"
        return
    yield from delete(leftover)
