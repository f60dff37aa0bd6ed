"""`winnow fetch`: download a data set or a model from the hub into a folder, or convert a GGUF file, so that runs need
no network.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from winnow.commands.command_line import print_text
from winnow.errors import DataError
from winnow.models.folder import PUBLISHED_FILES
from winnow.registry import members
from winnow.state.disk import new_folder, replace_file
from winnow.tasks.rows import Record
from winnow.tasks.source import read_hub

Read = Callable[..., Sequence[Record]]
Download = Callable[..., Any]

_SUBSETS = {"gsm8k": "main", "olympiad_bench": "OE_TO_maths_en_COMP"}
# The only split of a set of test problems, by its name on the hub
_ONLY = {"math500": "test", "minerva_math": "test", "olympiad_bench": "train", "aime24": "train", "amc23": "test"}


def fetch(
    source: Annotated[
        str, typer.Argument(help="A task (gsm8k, math500 ...), the hub id of a model (OWNER/NAME), or a file.gguf.")
    ],
    folder: Annotated[Path, typer.Argument(metavar="DEST", help="A folder that does not exist yet.")],
) -> None:
    """Download a data set or a model from the hub into a folder, or convert a GGUF file, and print the SHA-256 of every
    file.
    """
    data = data_set_of(source)
    for line in fetch_data(data, folder) if data else fetch_model(source, folder):
        print_text(line)


@dataclass(frozen=True, kw_only=True)
class Published:
    """A data set on the hub: its id, subset and splits."""

    hub_id: str
    subset: str | None = None
    splits: tuple[str, ...] = ("train", "test")


def data_set_of(task: str) -> Published | None:
    """The data set of one of winnow's tasks; None for a task without one."""
    entry = members("task").get(task)
    path = entry.options.get("path") if entry else None
    if path is None or not isinstance(path.default, str):
        return None
    splits = (_ONLY[task],) if task in _ONLY else Published.splits
    return Published(hub_id=path.default, subset=_SUBSETS.get(task), splits=splits)


def fetch_data(source: Published, folder: Path, *, read: Read = read_hub) -> list[str]:
    """Write each split as `folder`/SPLIT.jsonl; returns a line per file. Raises DataError and then leaves no folder."""
    with new_folder(folder) as draft:
        return [_write_split(source, split, draft / f"{split}.jsonl", read) for split in source.splits]


def fetch_model(source: str, folder: Path, *, download: Download | None = None) -> list[str]:
    """Copy a model's weights, settings and tokenizer from the hub (OWNER/NAME or OWNER/NAME@REVISION), or convert a
    GGUF file. Returns a line per file, after lines about a conversion. Raises DataError, and then leaves no folder.
    """
    from winnow.models.gguf import write_gguf_model  # imports torch

    is_gguf = source.lower().endswith(".gguf")
    with new_folder(folder) as draft:
        done = write_gguf_model(Path(source), draft) if is_gguf else _download_model(source, draft, download)
        files = sorted(path for path in draft.rglob("*") if path.is_file())
        digests = [f"{_digest(path)}  {path.relative_to(draft)}  {path.stat().st_size:,} bytes" for path in files]
        return [*done, *digests]


def _download_model(source: str, draft: Path, download: Download | None) -> list[str]:
    from huggingface_hub import snapshot_download

    get: Download = download or snapshot_download
    hub_id, _, revision = source.partition("@")
    try:
        get(hub_id, local_dir=str(draft), allow_patterns=list(PUBLISHED_FILES), revision=revision or None)
    except Exception as error:  # errors of the hub, the network and the disk have no common base class
        raise DataError(
            f"{source} could not be fetched: {error}",
            remedy="check the network and the id",
            code="data.missing",
        ) from error
    shutil.rmtree(draft / ".cache", ignore_errors=True)  # bookkeeping of huggingface_hub
    if not any(draft.rglob("*.safetensors")):
        raise DataError(
            f"{source} has no *.safetensors, and winnow opens no pickles",
            remedy="choose a model with these files",
            code="data.malformed",
        )
    return []


def _write_split(source: Published, split: str, path: Path, read: Read) -> str:
    records = read(source.hub_id, split, subset=source.subset)
    replace_file(path, "".join(json.dumps(dict(record.fields)) + "\n" for record in records).encode("ascii"))
    return f"{_digest(path)}  {path.name}  {len(records):,} problems"


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
