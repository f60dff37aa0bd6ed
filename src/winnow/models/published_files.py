"""The files of a model that training leaves as they are: its tokenizer, chat templates and generation settings.

They are carried from the folder that a run starts from into each of its checkpoints, byte by byte. transformers would
write them anew, in its own form of the day: other keys, a template in another file, end tokens left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from winnow.errors import DataError

MOST = 2**28  # bytes; the largest known have some 20 MB
GENERATION = "generation_config.json"
NAMES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/*.jinja",
    GENERATION,
)


def published_files(folder: Path) -> dict[str, bytes]:
    """{name: content} of those that a model folder has. Raises DataError for one that cannot be read, that is larger
    than any is, or that is a link to another place: it would be copied into checkpoints, which people publish. The
    hub's cache consists of links, to its blobs.

    The contents and not the places: a run takes days, and the folder may be moved, or cleared from the hub's cache.
    They are a few to some twenty megabytes.
    """
    found = (file for name in NAMES for file in sorted(folder.glob(name)) if file.is_file())
    return {file.relative_to(folder).as_posix(): _content(file, folder) for file in found}


def write_published_files(files: Mapping[str, bytes], folder: Path) -> None:
    """Write what `published_files` found into another folder, over what is there."""
    for name, content in files.items():
        file = folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(content)


def _content(file: Path, folder: Path) -> bytes:
    place, home = file.resolve(), folder.resolve()
    if not (place.is_relative_to(home) or place.is_relative_to(home.parents[1] / "blobs")):
        raise _refused(
            f"model.path: {file} is a link to {place}, outside of the model's folder", "copy the file into that folder"
        )
    try:
        if file.stat().st_size > MOST:
            raise _refused(f"model.path: {file} has {file.stat().st_size} bytes, which no such file has", "remove it")
        return file.read_bytes()
    except OSError as error:
        raise _refused(
            f"model.path: cannot read {file}: {error.strerror}", "make it readable: every checkpoint needs it"
        ) from error


def _refused(problem: str, remedy: str) -> DataError:
    return DataError(problem, remedy=remedy, key="model.path", code="data.unreadable")
