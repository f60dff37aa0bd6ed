"""Rows of a user's file, JSON lines or Parquet, each with its place for error messages, and the fields of a row.

A key names a field, or a field inside a field: `reward_model.ground_truth` is `ground_truth` of the object
`reward_model`. The object may also be the JSON text of one, as in a column of Parquet. A field whose own name contains
the dot takes precedence.

A file is read row by row, or for Parquet batch by batch, so that the rows of other splits take no memory.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winnow.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

DEEPEST = 100  # nested lists and tables; JSON readers and writers recurse
BATCH = 4096  # rows of a Parquet file that are converted at once
PARQUET = b"PAR1"  # the first bytes of a Parquet file
_CONVERT = (
    "convert it: python -c 'import sys, pyarrow.{} as a, pyarrow.parquet as p; "
    'p.write_table(a.{}, sys.argv[1] + ".parquet")\' {{file}}'
)
_CSV = (  # every value stays a text: "007" is no 7
    'if it is CSV, convert it: python -c \'import csv, json; rows = open(0, newline="", encoding="utf-8-sig"); '
    "names = next(rows); [print(json.dumps(row)) for row in "
    'csv.DictReader([names, *rows], delimiter=max(",;\\t", key=names.count))]\' < {file} > {file}.jsonl'
)
# How files in other forms begin, what they are, and how one becomes a file that is read
_OTHER_FORMS = tuple(
    (re.compile(rb"(?:\xef\xbb\xbf)?(?:" + start + rb")"), form, remedy)
    for start, form, remedy in (
        (rb"\x1f\x8b|BZh|\xfd7zXZ|PK\x03\x04|\x28\xb5\x2f\xfd", "compressed", "decompress it (gunzip, unzip, unzstd)"),
        (rb"ARROW1", "an Arrow file", _CONVERT.format("feather", "read_table(sys.argv[1])")),
        (rb"\xff\xff\xff\xff", "a stream of Arrow", _CONVERT.format("ipc", "open_stream(sys.argv[1]).read_all()")),
        (
            rb"\s*\[\s*(?:\{|$)",
            "one JSON list",
            "write its objects on lines: python -c 'import json, sys; "
            "[print(json.dumps(row)) for row in json.load(sys.stdin.buffer)]' < {file} > {file}.jsonl",
        ),
        (rb"\s*\{\s*$", "JSON with objects of several lines", "write one on each line: jq -c . {file} > {file}.jsonl"),
        (rb"[\w\",;]", "neither JSON lines nor Parquet", _CSV),
    )
)
# Fields of published data sets with pictures and the like, which a prompt of text leaves out.
MEDIA = ("images", "image", "videos", "video", "audios", "audio")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


class _Missing:
    """The value of a field that a row does not have; a field may be null."""


MISSING = _Missing()


@dataclass(frozen=True, slots=True)
class Record:
    """One row of a data set."""

    fields: Mapping[str, Any]
    where: str  # "train.jsonl:17", or "train.parquet, row 17", for messages
    number: int = 0  # of the line, or of the row of Parquet, from 1

    def find(self, key: str) -> Any:
        """The value of a field, or of a field inside a field; `MISSING` if the row does not have it.

        Raises DataError for text that has a field according to the key, and is not JSON.
        """
        return self.fields[key] if key in self.fields else self._inside(self.fields, key, "")

    def value(self, key: str) -> Any:
        """The value of a field; DataError if it is missing, null, blank or empty."""
        value = self.find(key)
        if value is MISSING or value is None or value in ([], {}) or (isinstance(value, str) and not value.strip()):
            raise self.malformed(
                f"the field {key!r} is {'missing' if value is MISSING else 'empty'}", "correct or remove this row"
            )
        return value

    def first_of(self, names: Sequence[str]) -> str:
        """The first of the names that is a field of this record, else the first name, for which `value` then raises."""
        return next((name for name in names if name in self.fields), names[0])

    def text(self, key: str) -> str:
        """The text of a field; DataError for another type and for text that a tokenizer cannot encode."""
        value = self.value(key)
        if not isinstance(value, str):
            raise self.malformed(f"the field {key!r} is of the type {type(value).__name__}", "write it as text")
        self.check_text(key, value)
        return value

    def check_text(self, key: str, text: str) -> None:
        """Raise DataError for text of a field that a tokenizer cannot encode."""
        if _SURROGATE.search(text):
            raise self.malformed(f"the field {key!r} contains half a surrogate pair", "write the file as UTF-8")

    def malformed(self, problem: str, remedy: str, *, key: str | None = None) -> DataError:
        """The error for a problem of this row."""
        return DataError(f"{self.where}: {problem}", remedy=remedy, key=key, code="data.malformed")

    def _inside(self, table: Mapping[str, Any], key: str, outer: str) -> Any:
        """The value at `key`, the longest name of a field first. `outer` is the key of the table itself."""
        for place in reversed([i for i, character in enumerate(key) if character == "."]):
            name, rest = key[:place], key[place + 1 :]
            if name not in table:
                continue
            inner, here = table[name], f"{outer}{name}"
            if isinstance(inner, str):
                problem = f"the field {here!r} is text that is not JSON, so it has no {rest!r}"
                inner = self.parsed(inner, problem, "correct or remove this row, or name another field")
            if isinstance(inner, Mapping):
                return inner[rest] if rest in inner else self._inside(inner, rest, f"{here}.")
        return MISSING

    def parsed(self, text: str, problem: str, remedy: str) -> Any:
        """The value of a text that is JSON; DataError with the problem for another text."""
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self.malformed(f"{problem} ({error})", remedy) from error


def list_in(text: str, is_element: Callable[[Any], bool]) -> Any:
    """The list of such elements in a text that begins with "[" and is its JSON; any other text as it is."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if all(map(is_element, value)) else text


def read_rows(
    file: Path, *, key: str | None = "task.path", keys: Sequence[str] | None = None, named: Sequence[str] = ()
) -> Iterator[Record]:
    """The rows of a file of JSON lines (without blank lines), or of a Parquet file, in their order.

    Of a Parquet file only the columns of `keys` are read; None: those of `named`, and all others without binary data.

    Raises DataError for a row that is no object, with its place, and for a Parquet file that cannot be read. Raises it
    for a missing file with `key`, the configuration key that names the file, if one does.
    """
    of = f"{key}: " if key else ""
    if not file.is_file():
        folder = file.is_dir()
        raise DataError(
            f"{of}{file} is a folder" if folder else f"{of}there is no file {file}",
            remedy="name one file in it" if folder else f"correct the path: a relative one starts from {Path.cwd()}",
            key=key,
            code="data.missing",
        )
    with file.open("rb") as opened:
        start = opened.readline(BATCH)
    if start.startswith(PARQUET):
        yield from _read_parquet(file, key, keys, named)
        return
    refuse_other_forms(file, start, key)
    yield from _read_lines(file)


def refuse_other_forms(file: Path, start: bytes, key: str | None = None) -> None:
    """Raise DataError, with the command that converts it, for a file whose `start` is not that of JSON lines."""
    for begins, form, remedy in _OTHER_FORMS:
        if begins.match(start):
            problem = f"{key}: {file} is {form}" if key else f"{file} is {form}"
            name = shlex.quote(str(file))
            raise DataError(problem, remedy=remedy.format(file=name), key=key, code="data.unreadable")


def _read_lines(file: Path) -> Iterator[Record]:
    # Bytes, because a text file would also end a line at a single \r, and str.splitlines at a U+2028 in a question
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line := line.strip():
                yield _record(line, f"{file}:{number}", number)


def _record(line: bytes, where: str, number: int) -> Record:
    try:
        fields = json.loads(line.decode("utf-8-sig"))  # json would guess UTF-16 or UTF-32 for some bytes
    except (ValueError, RecursionError) as error:
        row = Record({}, where)
        if isinstance(error, UnicodeDecodeError) or b"\0" in line:  # JSON has no zero bytes, and UTF-16 has many
            raise row.malformed("this line is not UTF-8 text", "save the file as UTF-8") from error
        raise row.malformed(f"this line is not JSON ({error})", "correct or remove it") from error
    row = Record(fields, where, number)
    if not isinstance(fields, dict):
        raise row.malformed(
            f"this line is JSON of the type {type(fields).__name__}", "write one JSON object per line, {...}"
        )
    if line.count(b"[") + line.count(b"{") > DEEPEST and _is_deep(fields):
        raise row.malformed(f"more than {DEEPEST} lists and objects within each other", "flatten or remove this line")
    return row


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(DEEPEST):
        inside = (one.values() if isinstance(one, dict) else one for one in level if isinstance(one, (dict, list)))
        level = [child for children in inside for child in children]
    return any(isinstance(one, (dict, list)) for one in level)


def _read_parquet(file: Path, key: str | None, keys: Sequence[str] | None, named: Sequence[str]) -> Iterator[Record]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file) as opened:
            names = [column.name for column in opened.schema_arrow if _is_read(column, keys, named)]
            batches = opened.iter_batches(BATCH, columns=names)
            for number, row in enumerate(chain.from_iterable(map(_rows, batches)), start=1):
                yield Record(row, f"{file}, row {number}", number)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{f'{key}: ' if key else ''}the Parquet file {file} cannot be read: {error}",
            remedy="write it again, or name another file",
            key=key,
            code="data.unreadable",
        ) from error


def _rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows as JSON. Media, which may be large, are True if a row has some, and else None."""
    import pyarrow as pa

    columns = []
    for column, values in zip(batch.schema, batch.columns, strict=True):
        if column.name in MEDIA:
            columns.append([_has_media(value) or None for value in values])
        else:
            try:
                listed = values.to_pylist()
            except (ValueError, OverflowError) as error:  # text that is not UTF-8, or a time that Python does not have
                raise pa.ArrowInvalid(f"the column {column.name!r}: {error}") from error
            columns.append(listed if _is_json(column.type) else [_plain(value, column.type) for value in listed])
    names = batch.schema.names
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)] or [{}] * batch.num_rows


def _has_media(value: Any) -> bool:
    """Whether an Arrow value is neither null nor an empty list or text, nor an object without a value."""
    import pyarrow as pa

    if not value.is_valid:
        return False
    if isinstance(value, pa.StructScalar):
        return any(_has_media(value[name]) for name in value)
    if isinstance(value, pa.ListScalar):
        return any(_has_media(one) for one in value)
    return value.as_py() not in ("", b"")


def _is_read(column: pa.Field, keys: Sequence[str] | None, named: Sequence[str]) -> bool:
    """Whether a column is read: media only to see whether a row has some, and other binary data only by name."""
    if any(key == column.name or key.startswith(f"{column.name}.") for key in (named if keys is None else keys)):
        return True
    return keys is None and (column.name in MEDIA or not _contains_binary(column.type))


def _contains_binary(kind: pa.DataType) -> bool:
    import pyarrow as pa

    types = pa.types
    tests = (types.is_binary, types.is_large_binary, types.is_fixed_size_binary, types.is_binary_view)
    return any(test(kind) for test in tests) or any(map(_contains_binary, _inner(kind)))


def _is_json(kind: pa.DataType) -> bool:
    """Whether the values of a type are JSON as they are: no dates, decimals, maps, bytes or floats below 64 bits."""
    import pyarrow as pa

    types = pa.types
    if types.is_nested(kind):
        return not types.is_map(kind) and all(map(_is_json, _inner(kind)))
    simple = (types.is_string, types.is_large_string, types.is_integer, types.is_float64, types.is_boolean)
    return types.is_null(kind) or any(test(kind) for test in simple)


def _inner(kind: pa.DataType) -> list[pa.DataType]:
    return [kind.field(place).type for place in range(kind.num_fields)]


def _plain(value: Any, kind: pa.DataType) -> Any:
    """A value of Arrow as JSON: dates, decimals and the like as their text."""
    import pyarrow as pa

    kind = getattr(kind, "storage_type", kind)  # of an extension
    if value is not None and pa.types.is_floating(kind):  # 0.1, and not 0.10000000149011612
        return float(str(kind.to_pandas_dtype()(value)))
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, dict):
        return {name: _plain(inner, kind.field(name).type) for name, inner in value.items()}
    if pa.types.is_map(kind):
        return [[_plain(name, kind.key_type), _plain(inner, kind.item_type)] for name, inner in value]
    if isinstance(value, list):
        return [_plain(inner, kind.value_type) for inner in value]
    if isinstance(value, bytes):  # what is not UTF-8 is refused by `Record.check_text`
        return value.decode("utf-8", "surrogateescape")
    return str(value)
