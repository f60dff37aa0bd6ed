"""Places and names of a run's checkpoints: `checkpoints/step-000010` below the run folder.

This module imports no torch.
"""

from __future__ import annotations

import re
from pathlib import Path

from winnow.state.disk import kind

FOLDER = "checkpoints"
TENSORS = "trainer.safetensors"  # in a checkpoint: moments, and trained tensors that the model folder does not contain
_NAME = re.compile(r"step-(\d+)")


def path_of(run: Path, step: int) -> Path:
    """The path of the checkpoint after `step` steps."""
    return run / FOLDER / f"step-{step:06d}"


def is_checkpoint_path(path: Path) -> bool:
    """Whether a path is named like a checkpoint of a run."""
    return path.parent.name == FOLDER and _NAME.fullmatch(path.name) is not None


def find(run: Path) -> list[tuple[int, Path]]:
    """(step, path) of everything that is named like a checkpoint of a run, whole or not, oldest first.

    Raises OSError where the folder of the checkpoints cannot be read.
    """
    folder = run / FOLDER
    if kind(folder, follow=True) is None:
        return []
    matches = ((_NAME.fullmatch(path.name), path) for path in folder.iterdir())
    return sorted((int(match[1]), path) for match, path in matches if match)


def paths(run: Path) -> list[Path]:
    """The paths of `find`; none where the folder of the checkpoints cannot be read."""
    try:
        return [path for _, path in find(run)]
    except OSError:
        return []
