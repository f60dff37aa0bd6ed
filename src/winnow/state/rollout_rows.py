"""Checks rows of a file of rollouts, and converts them to dictionaries by column.

Parquet is typed, so names and types are checked once per file. Each part is checked for what types do not express, such
as permitted words and equal lengths. This module imports pyarrow and no torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args

import numpy as np
import pyarrow as pa

from winnow.records import CAUSES, Finish, Kind
from winnow.state.rollout_columns import MAY_LACK, SCHEMA, TEXTS

_WORDS: dict[str, tuple[Any, ...]] = {"finish": get_args(Finish), "kind": get_args(Kind), "cause": (None, *CAUSES)}
_COUNTS = ("step", "count", "index", "length", "version")
_PER_TOKEN = ("tokens", "logprobs", "trainable", "values", "returns", "advantages")
_JSON = ("answer", "meta", "parts", "surrogates")


def check_schema(schema: pa.Schema) -> None:
    """Raise ValueError, naming the column, unless every column that winnow writes is present with its type.

    Values and returns may be absent, as they are in files of older runs.
    """
    for field in SCHEMA:
        if field.name not in schema.names:
            if field.name in MAY_LACK:
                continue
            raise ValueError(f"there is no column {field.name!r}")
        column = schema.field(field.name)
        if column.type != field.type or (column.nullable and not field.nullable):
            raise ValueError(f"the column {field.name!r} is of type {_kind(column)} instead of {_kind(field)}")


def with_columns(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """The table with these columns in this order. A column that it lacks (in a file of an older run) is null."""
    for name in names:
        if name not in table.column_names:
            field = SCHEMA.field(name)
            table = table.append_column(field, pa.nulls(len(table), field.type))
    return table.select(names)


def records(table: pa.Table) -> list[dict[str, Any]]:
    """The rows of a table as {column: value}: JSON is decoded, texts have their surrogates again, lists are arrays.

    Raises ValueError, naming column and row, for a value that no run writes.
    """
    columns = {name: _values(name, table.column(name).combine_chunks()) for name in table.column_names}
    for fault, wrong in _faults(columns):
        if (places := np.flatnonzero(wrong)).size:
            raise ValueError(f"row {places[0] + 1}: {fault}")
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    for row in rows:
        for name, text in (row.pop("surrogates", None) or {}).items():
            if name in row:
                row[name] = text
    return rows


def _kind(field: pa.Field) -> str:
    return f"{field.type}{' or null' if field.nullable else ''}"


def _values(name: str, array: pa.Array) -> Sequence[Any]:
    if pa.types.is_list(array.type):
        ends, flat = array.offsets.to_numpy(), array.values.to_numpy(zero_copy_only=False)
        validity = array.is_valid().to_pylist()
        return [flat[ends[place] : ends[place + 1]] if valid else None for place, valid in enumerate(validity)]
    if pa.types.is_floating(array.type) and not array.null_count:
        return array.to_numpy().tolist()  # type: ignore[no-any-return]
    values: list[Any] = array.to_pylist()
    return _decoded(name, values) if name in _JSON else values


def _decoded(name: str, texts: Sequence[str | None]) -> list[Any]:
    """Decoded JSON. Equal texts are decoded once, as most rows have the same."""
    known: dict[str | None, Any] = {None: None}
    for place, text in enumerate(texts, start=1):
        if text not in known:
            try:
                known[text] = json.loads(text or "")
            except (ValueError, RecursionError) as error:
                raise ValueError(f"row {place}: {name} is not JSON ({error})") from error
    return [known[text] for text in texts]


def _faults(columns: dict[str, Sequence[Any]]) -> Iterator[tuple[str, Any]]:
    """(fault, [rows] True where a row has it)"""
    for name, (fault, is_wrong) in _CHECKS.items():
        yield f"{name}: {fault}", [is_wrong(value) for value in columns.get(name, ())]
    for name, words in _WORDS.items():
        fault = f"{name}: not one of {', '.join(word for word in words if word)}"
        yield fault, [value not in words for value in columns.get(name, ())]
    if "length" in columns:
        lengths = columns["length"]
        for name in _PER_TOKEN:
            pairs = zip(columns.get(name, ()), lengths, strict=False)
            yield f"{name}: not one per token", [v is not None and len(v) != length for v, length in pairs]
    if "kind" in columns and "reward" in columns:
        pairs = zip(columns["kind"], columns["reward"], strict=True)
        fault = "reward: a failed verdict has none, and every other one has"
        yield fault, [(kind == "failed") != (reward != reward) for kind, reward in pairs]  # NaN != NaN


def _of_numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(v is None or type(v) in (int, float) for v in value.values())


def _of_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(k in TEXTS and isinstance(v, str) for k, v in value.items())


def _below_0(value: Any) -> bool:
    return value < 0 if isinstance(value, int) else value is not None and len(value) > 0 and bool(value.min() < 0)


_CHECKS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys((*_COUNTS, "tokens", "prompt_tokens"), ("below 0", _below_0)),
    "meta": ("not a JSON object", lambda value: not isinstance(value, dict)),
    "parts": ("not a JSON object of numbers", lambda value: not _of_numbers(value)),
    "surrogates": ("not a JSON object of texts", lambda value: value is not None and not _of_texts(value)),
}
