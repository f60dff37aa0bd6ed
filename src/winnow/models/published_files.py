"""Files of a model that training does not change: its tokenizer, chat templates and generation settings.

They are copied byte by byte from the folder that a run starts from into each of its checkpoints. transformers would
rewrite them in its present form: other keys, a template in another file, end tokens omitted.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from winnow.errors import DataError

MOST = 2**28  # bytes; the largest known file has about 20 MB
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
    """{name: content} of the published files in a model folder: a few megabytes to about 20.

    Contents are kept, not paths: a run takes days, and the folder may be moved, or deleted from the hub's cache. Raises
    DataError for a file that cannot be read or is too large. It also does for a link to another place, because
    checkpoints get published; links to the blobs of the hub's cache are accepted.
    """
    files = (file for name in NAMES for file in sorted(folder.glob(name)) if file.is_file())
    return {file.relative_to(folder).as_posix(): _content(file, folder) for file in files}


def write_published_files(files: Mapping[str, bytes], folder: Path) -> None:
    """Write the result of `published_files` into another folder, over files of the same names."""
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
            raise _refused(f"model.path: {file} has {file.stat().st_size} bytes, at most {MOST} are read", "remove it")
        return file.read_bytes()
    except OSError as error:
        raise _refused(
            f"model.path: cannot read {file}: {error.strerror}", "make it readable: every checkpoint needs it"
        ) from error


def _refused(problem: str, remedy: str) -> DataError:
    return DataError(problem, remedy=remedy, key="model.path", code="data.unreadable")
