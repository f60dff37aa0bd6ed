"""Reads records from a local .jsonl file or a data set of the hub, each with its place for error messages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from winnow.errors import DataError
from winnow.tasks.problems import check_split, train_or_validation

DEEPEST = 100  # nested lists and tables; JSON readers and writers recurse
# Data sets of the hub that are published in several subsets; winnow reads all of them as one data set.
PARTS: Mapping[str, Sequence[str | None]] = {
    "EleutherAI/hendrycks_math": (
        *("algebra", "counting_and_probability", "geometry", "intermediate_algebra", "number_theory"),
        *("prealgebra", "precalculus"),
    )
}
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Record:
    """One row of a data set."""

    fields: Mapping[str, Any]
    where: str  # "train.jsonl:17", for messages

    def value(self, field: str) -> Any:
        """The value of a field; DataError where it is missing, null, blank or an empty list."""
        value = self.fields.get(field)
        if value is None or value == [] or (isinstance(value, str) and not value.strip()):
            raise DataError(
                f"{self.where}: the field {field!r} is {'empty' if field in self.fields else 'missing'}",
                remedy="correct or remove this line",
                code="data.malformed",
            )
        return value

    def first_of(self, names: Sequence[str]) -> str:
        """The first of the names that is a field of this record, else the first name, for which `value` then raises."""
        return next((name for name in names if name in self.fields), names[0])

    def text(self, field: str) -> str:
        """The text of a field; DataError for another type and for text that a tokenizer cannot encode."""
        value = self.value(field)
        if not isinstance(value, str):
            raise DataError(
                f"{self.where}: the field {field!r} is of the type {type(value).__name__}",
                remedy="write it as text",
                code="data.malformed",
            )
        if _SURROGATE.search(value):
            raise DataError(
                f"{self.where}: the field {field!r} contains half a surrogate pair",
                remedy="write the file as UTF-8",
                code="data.malformed",
            )
        return value


def read_jsonl(file: Path, *, key: str = "task.path") -> list[Record]:
    """One record per line that is not blank.

    Raises DataError for a line that is not UTF-8 or no JSON object, with the line's place. Raises it for a missing file
    with `key`, the configuration key that names the file.
    """
    if not file.is_file():
        raise DataError(
            f"{key}: there is no file {file}",
            remedy=f"correct the path: a relative one starts from {Path.cwd()}",
            key=key,
            code="data.missing",
        )
    lines = file.read_bytes().splitlines()  # bytes, because str.splitlines would also cut at a U+2028 in a question
    return [_record(line, f"{file}:{number}") for number, line in enumerate(lines, start=1) if line.strip()]


def read_hub(hub_id: str, split: str, *, subset: str | None = None) -> list[Record]:
    """A published split of a data set of the hub. DataError without the library, the network or the data set."""
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise DataError(
            f"reading {hub_id} from the hub needs another library",
            remedy="pip install 'winnow-rl[hub]', or set task.path to a local .jsonl file or folder",
            key="task.path",
            code="data.not_installed",
        ) from error
    try:
        rows = load_dataset(hub_id, subset, split=split)
    except Exception as error:  # errors of the library, the hub and the network have no common base
        raise DataError(
            f"task.path: {hub_id} ({split}) could not be read: {error}",
            remedy="without a network, set it to a local .jsonl file or folder",
            key="task.path",
            code="data.unreadable",
        ) from error
    place = " ".join((hub_id, *([subset] if subset else []), split))
    return [Record(row, f"{place}:{number}") for number, row in enumerate(rows, start=1)]


def read_published(
    path: str, split: str, *, files: Sequence[str], subset: str | None = None, key: str = "task.path"
) -> list[Record]:
    """A published split. `path` is a .jsonl file, a folder with one of `files`, or a hub id.

    For a hub id, `subset` is read, or every subset in order for the data sets in `PARTS`. `key` is the configuration
    key of the path, for error messages.
    """
    local = Path(path).expanduser()
    if local.is_file():
        return read_jsonl(local, key=key)
    if local.is_dir():
        return read_jsonl(_first(local, files, key), key=key)
    a_path = path.startswith(".") or path.endswith(".jsonl") or local.parent.is_dir()
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
    if file.suffix == ".jsonl" and not file.stem.endswith(published):
        raise DataError(
            f"task.path: {path} has no {split} problems: the name of a single file must end in {published}.jsonl",
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


def _record(line: bytes, where: str) -> Record:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        if not _is_utf8(line):
            raise _malformed(f"{where}: this line is not UTF-8 text", "save the file as UTF-8") from error
        raise _malformed(f"{where}: this line is not JSON ({error})", "correct or remove it") from error
    if not isinstance(fields, dict):
        raise _malformed(
            f"{where}: this line is JSON of the type {type(fields).__name__}",
            "write one JSON object per line, {...}",
        )
    if _is_deep(fields):
        raise _malformed(
            f"{where}: more than {DEEPEST} lists and objects within each other", "flatten or remove this line"
        )
    return Record(fields, where)


def _is_utf8(line: bytes) -> bool:
    """Whether a line can be text in UTF-8. JSON has no zero bytes, and UTF-16 has many."""
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return b"\0" not in line


def _malformed(problem: str, remedy: str) -> DataError:
    return DataError(problem, remedy=remedy, code="data.malformed")


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(DEEPEST):
        inside = (one.values() if isinstance(one, dict) else one for one in level if isinstance(one, (dict, list)))
        level = [child for children in inside for child in children]
    return any(isinstance(one, (dict, list)) for one in level)


def _first(folder: Path, names: Sequence[str], key: str) -> Path:
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise DataError(
        f"{key}: the folder {folder} contains no {' or '.join(names)}",
        remedy="set it to a folder with one of them, or to the file itself",
        key=key,
        code="data.missing",
    )
