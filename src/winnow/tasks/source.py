"""Published data sets: their rows from a local file or folder, or from the hub."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from winnow.errors import DataError
from winnow.tasks.problems import check_split, train_or_validation
from winnow.tasks.rows import Record, read_rows

# Data sets of the hub that are published in several subsets; winnow reads all of them as one data set.
PARTS: Mapping[str, Sequence[str | None]] = {
    "EleutherAI/hendrycks_math": (
        *("algebra", "counting_and_probability", "geometry", "intermediate_algebra", "number_theory"),
        *("prealgebra", "precalculus"),
    )
}
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
FORMS = (".jsonl", ".parquet")  # how the name of a file of rows ends
SHARD = "-00000-of-00001"  # what the hub appends to the name of a split


def read_hub(hub_id: str, split: str, *, subset: str | None = None) -> list[Record]:
    """A published split of a data set of the hub. DataError without the library, the network or the data set."""
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise no_hub_library(hub_id) from error
    try:
        rows = load_dataset(hub_id, subset, split=split)
    except Exception as error:  # errors of the library, the hub and the network have no common base
        raise DataError(
            f"task.path: {hub_id} ({split}) could not be read: {error}",
            remedy="without a network, set it to a local file or folder",
            key="task.path",
            code="data.unreadable",
        ) from error
    place = " ".join((hub_id, *([subset] if subset else []), split))
    return [Record(row, f"{place}:{number}") for number, row in enumerate(rows, start=1)]


def no_hub_library(hub_id: str) -> DataError:
    """The error about a data set of the hub without the library that reads it."""
    return DataError(
        f"reading {hub_id} from the hub needs another library",
        remedy="pip install 'winnow-rl[hub]', or set task.path to a local file or folder",
        key="task.path",
        code="data.not_installed",
    )


def read_published(
    path: str, split: str, *, files: Sequence[str], subset: str | None = None, key: str = "task.path"
) -> Iterable[Record]:
    """A published split. `path` is a file (JSON lines or Parquet), a folder with one of `files`, or a hub id.
    In a folder, the name of a file may also end in .parquet instead of .jsonl, after the hub's -00000-of-00001 or not.

    For a hub id, `subset` is read, or every subset in order for the data sets in `PARTS`. `key` is the configuration
    key of the path, for error messages.
    """
    local = Path(os.path.expanduser(path))
    if local.is_file():
        return read_rows(local, key=key)
    if local.is_dir():
        return read_rows(_first(local, files, key), key=key)
    a_path = path.startswith(".") or path.endswith(FORMS) or local.parent.is_dir()
    if _HUB_ID.fullmatch(path) and not a_path:
        subsets = PARTS.get(path, (subset,))
        return [record for part in subsets for record in read_hub(path, split, subset=part)]
    raise DataError(
        f"{key}: there is no file or folder {path}, and it is no hub id (owner/name)",
        remedy="correct the path, or download a published data set into a folder with `winnow fetch`",
        key=key,
        code="data.missing",
    )


def read_train_and_test(
    path: str, split: str, *, task: str, question: str, subset: str | None = None
) -> Iterator[tuple[Record, str]]:
    """The records of a split, each with its question, of a data set that is published as train and test.

    Validation is a tenth of the published train split, held out by a hash of the question; test is as published.
    The name of a single file must end in the published split that it contains: train or test.
    """
    wanted = check_split(split)
    published = "test" if wanted == "test" else "train"
    file = Path(path)
    single = file.suffix in FORMS or Path(os.path.expanduser(path)).is_file()
    if single and not file.stem.removesuffix(SHARD).endswith(published):
        raise DataError(
            f"task.path: {path} has no {split} problems: the name of a single file must end in "
            f"{published}{file.suffix}",
            remedy="set it to the folder with the train and test files",
            key="task.path",
            code="data.missing",
        )
    for record in read_published(
        path, published, files=(f"{task}_{published}.jsonl", f"{published}.jsonl"), subset=subset
    ):
        text = record.text(question)
        if wanted == "test" or train_or_validation(text) == wanted:
            yield record, text


def _first(folder: Path, names: Sequence[str], key: str) -> Path:
    for file in (folder / f"{Path(name).stem}{form}" for name in names for form in (*FORMS, f"{SHARD}.parquet")):
        if file.is_file():
            return file
    raise DataError(
        f"{key}: the folder {folder} contains no {' or '.join(names)}, nor as .parquet",
        remedy="set it to a folder with one of them, or to the file itself",
        key=key,
        code="data.missing",
    )
