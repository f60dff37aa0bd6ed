"""Files that are whole or absent, whatever moment the process is killed at."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def sync(path: Path) -> None:
    """Wait until a file's bytes, or a folder's entries, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, data: Any) -> None:
    """Replace `path` by `data` as strict JSON in one atomic move.

    Raises OSError when the disk refuses, ValueError for a number that is not finite; `path` is then as it was.
    """
    text = json.dumps(data, indent=1, allow_nan=False)
    draft = draft_of(path)
    draft.write_text(text + "\n", encoding="utf-8")
    sync(draft)
    draft.replace(path)
    sync(path.parent)


def draft_of(path: Path) -> Path:
    """Where `write_json` prepares a file before it moves it."""
    return path.with_name(f".{path.name}.draft")
