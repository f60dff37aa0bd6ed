"""Where a command writes its results: asked before the work, so that nothing is lost after it."""

from __future__ import annotations

import os
from pathlib import Path

from winnow.errors import DataError


def check_new(*outputs: Path) -> None:
    """Refuse to overwrite, and to write where there is no folder. Raises DataError."""
    for place, path in enumerate(outputs):
        if path in outputs[:place]:
            raise DataError(f"two things would be written to {path}; name different files")
        if os.path.lexists(path):  # a link to nothing would be written through
            raise DataError(f"{path} already exists; choose another file to write, or remove it")
        if not path.parent.is_dir():
            raise DataError(f"there is no folder {path.parent} to write {path.name} into; make it, or choose another")
