"""Where a command writes its results: asked before the work, so that nothing is lost after it."""

from __future__ import annotations

from pathlib import Path

from winnow.errors import DataError


def check_new(*outputs: Path) -> None:
    """Refuse to overwrite, and to write where there is no folder. Raises DataError."""
    for path in outputs:
        if path.exists():
            raise DataError(f"{path} already exists; choose another --output, or remove it")
        if not path.parent.is_dir():
            raise DataError(f"--output: there is no folder {path.parent}; make it, or choose another")
