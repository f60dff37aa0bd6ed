"""What a run reads besides its configuration: digests of the files that the configuration names, by key.

    {"reward.use": {"mine.py": "sha256:..."}, "task.path": {"train.jsonl": "sha256:..."}, "model.path": {...}}

A file of at most 64 MiB is hashed whole. Of a larger one, weights as a rule, its length and 1,024 blocks spread evenly
over it are: other weights differ everywhere, while an edit of a few bytes between two blocks goes unnoticed. Modules
that a user's file imports, functions passed as objects, and data sets read from the hub have no digest.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from winnow.config import Config, dump
from winnow.errors import DataError
from winnow.models.model_folder import cached_folder, on_hub, settings_folder

WHOLE = 64 * 2**20  # bytes up to which every byte counts
BLOCKS, BLOCK = 1024, 4096
MODEL_FILES = (".json", ".safetensors", ".model", ".txt", ".jinja")  # what a loader may open

Digests = dict[str, dict[str, str]]


def digests(config: Config, base: Path, *, below: str = "") -> Digests:
    """{key of the configuration: {file: digest}} for every file that it names and that is there; of the keys that begin
    with `below` alone, so that no weights are read where nobody asks for them.
    """
    found: Digests = {}
    for key, value in ((key, value) for key, value in _texts(dump(config)) if key.startswith(below)):
        for name, path in _files(key, value, base):
            found.setdefault(key, {})[name] = digest(path)
    return found


def digest(path: Path) -> str:
    """Of one file: see above for what it tells apart."""
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= WHOLE:
            return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
        sampled = hashlib.sha256(str(size).encode())
        for place in range(BLOCKS):
            file.seek(place * (size - BLOCK) // (BLOCKS - 1))
            sampled.update(file.read(BLOCK))
    return f"sampled-sha256:{sampled.hexdigest()}"


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """(dotted key, text) of every text in a configuration; members of a list go by the list's key."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _texts(inner, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        for inner in value:
            yield from ((key, text) for _, text in _texts(inner, key))
    elif isinstance(value, str):
        yield key, value


def _files(key: str, value: str, base: Path) -> Iterator[tuple[str, Path]]:
    """(name, path) of the files that a key's text stands for."""
    if ".py:" in value:
        name = value.rpartition(":")[0]
        yield from _if_file(name, base / name)
    elif key == "model.path":
        yield from _in_folder(_model_folder(value), MODEL_FILES)
    elif key == "prompt.template":
        yield from _if_file(value, base / value)
    elif key.startswith("task.") and key != "task.use":
        path = Path(value).expanduser()
        yield from _if_file(value, path)
        yield from _in_folder(path, (".jsonl",))


def _if_file(name: str, path: Path) -> Iterator[tuple[str, Path]]:
    if os.path.isfile(path):  # unlike Path's own, False where a text is no path at all
        yield name, path


def _in_folder(folder: Path | None, endings: tuple[str, ...]) -> Iterator[tuple[str, Path]]:
    if folder is not None and os.path.isdir(folder):
        yield from ((p.name, p) for p in sorted(folder.iterdir()) if p.suffix in endings and p.is_file())


def _model_folder(path: str) -> Path | None:
    """Where a model lies on this machine: the bundled one, a folder, or a hub id's files in the cache."""
    try:
        return cached_folder(path) if on_hub(path) else settings_folder(path)
    except DataError:  # it lies nowhere, which whoever loads it says
        return None
