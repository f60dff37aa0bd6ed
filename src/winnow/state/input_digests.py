"""Digests of the files that a configuration names, by key: the other inputs of a run.

    {"reward.use": {"mine.py": "sha256:..."}, "task.path": {"train.jsonl": "sha256:..."}, "model.path": {...}}

A file of at most 64 MiB is hashed whole. Of a larger one, usually weights, its length and 1,024 blocks spread evenly
over it are hashed: other weights differ everywhere, while an edit of a few bytes between two blocks is not noticed.
Modules that a user's file imports, functions passed as objects, and data sets read from the hub have no digest.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from winnow.config import Config, dump, key_of, leaves
from winnow.errors import DataError
from winnow.models.folder import cached_folder, is_hub_id, settings_folder
from winnow.state.checkpoint_names import TENSORS

WHOLE = 64 * 2**20  # bytes up to which a file is hashed whole
BLOCKS, BLOCK = 1024, 4096
MODEL_FILES = (".json", ".safetensors", ".model", ".txt", ".jinja")  # what a loader may open

Digests = dict[str, dict[str, str]]


def digests(config: Config, base: Path, *, below: str = "", but: str | None = None) -> Digests:
    """{key of the configuration: {file: digest}} for every existing file that the configuration names.

    Keys are limited to those that start with `below` and do not start with `but`. A file named in a list is under the
    list's key.
    """
    digests_by_key: Digests = {}
    texts = ((key_of(path), leaf) for path, leaf in leaves(dump(config)) if isinstance(leaf, str))
    for key, value in texts:
        if not key.startswith(below) or (but is not None and key.startswith(but)):
            continue
        for name, path in _files(key, value, base):
            digests_by_key.setdefault(key, {})[name] = digest(path)
    return digests_by_key


def digest(path: Path) -> str:
    """The digest of one file, as described in the module's docstring."""
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= WHOLE:
            return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
        sampled = hashlib.sha256(str(size).encode())
        for place in range(BLOCKS):
            file.seek(place * (size - BLOCK) // (BLOCKS - 1))
            sampled.update(file.read(BLOCK))
    return f"sampled-sha256:{sampled.hexdigest()}"


def _files(key: str, value: str, base: Path) -> Iterator[tuple[str, Path]]:
    """(name, path) of the files that a key's text names."""
    if ".py:" in value:
        name = value.rpartition(":")[0]
        yield from _if_file(name, base / name)
    elif key in ("model.path", "critic.path"):
        yield from _in_folder(_model_folder(value), MODEL_FILES)
    elif key == "critic.start":
        yield from _if_file(TENSORS, Path(value).expanduser() / TENSORS)
    elif key == "prompt.template":
        yield from _if_file(value, base / value)
    elif key == "evaluate.tasks" or (key.startswith("task.") and key != "task.use"):
        path = Path(value).expanduser()
        yield from _if_file(value, path)
        yield from _in_folder(path, (".jsonl",))


def _if_file(name: str, path: Path) -> Iterator[tuple[str, Path]]:
    if os.path.isfile(path):  # False for a text that is not a path (a null byte, say), where Path.is_file raises
        yield name, path


def _in_folder(folder: Path | None, endings: tuple[str, ...]) -> Iterator[tuple[str, Path]]:
    if folder is not None and os.path.isdir(folder):
        yield from ((p.name, p) for p in sorted(folder.iterdir()) if p.suffix in endings and p.is_file())


def _model_folder(path: str) -> Path | None:
    """A model's folder on this machine: the bundled one, a given one, or that of a hub id in the cache."""
    try:
        return cached_folder(path) if is_hub_id(path) else settings_folder(path)
    except DataError:  # no such folder; loading the model raises the error
        return None
