"""The manifest of a checkpoint: size and SHA-256 of each of its files, and the ends of the run's logs at the save."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from winnow.state.disk import check_kind, write_json
from winnow.state.log_marks import Mark

MANIFEST = "manifest.json"


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
    return {name: Mark(**mark) for name, mark in _read(path).get("logs", {}).items()}


def damages(path: Path, *, hashed: bool = True) -> Iterator[str]:
    """The damages of a checkpoint, in words. There are none if each file has the size that the manifest lists, and with
    `hashed` also the SHA-256.
    """
    try:
        check_kind(path, "a folder", follow=True)
        check_kind(path / MANIFEST, "a file", follow=True)
        marks_in(path)
        for name, expected in _read(path)["files"].items():
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


def _read(path: Path) -> dict[str, Any]:
    return dict(json.loads((path / MANIFEST).read_bytes()))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
