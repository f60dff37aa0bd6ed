"""The files of a model that training leaves as they are: its tokenizer, chat templates and generation settings.

They are carried from the folder that a run starts from into each of its checkpoints, byte by byte. transformers would
write them anew, in its own form of the day: other keys, a template in another file, end tokens left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from winnow.errors import DataError

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
    """{name: content} of those that a model folder has, links followed. Raises DataError for one that cannot be read.

    The contents and not the places: a run takes days, and the folder may be moved, or cleared from the hub's cache.
    They are a few to some twenty megabytes.
    """
    found = (file for name in NAMES for file in sorted(folder.glob(name)) if file.is_file())
    return {file.relative_to(folder).as_posix(): _content(file) for file in found}


def write_published_files(files: Mapping[str, bytes], folder: Path) -> None:
    """Write what `published_files` found into another folder, over what is there."""
    for name, content in files.items():
        file = folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(content)


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise DataError(f"model.path: cannot read {file}: {error.strerror}; every checkpoint needs it") from error
