"""The columns of a file of rollouts (Parquet), and the conversion of records: one row per rollout, with every column.

    step, seed                      of the step and of the run: with both, a selector's random numbers can be redrawn
    prompt_id, prompt, prompt_tokens, answer, task, meta          of the prompt; answer (the gold) and meta are JSON
    count                           rollouts of this prompt in this step
    drawn                           the probability with which the sampler took the prompt into this step; null where it
                                    is unknown, or the same for all prompts
    index, text, tokens, logprobs, trainable, length, finish, version, turns                      of the rollout;
                                    length counts all tokens; turns are JSON, the texts of policy and environment in
                                    turn, and null without an environment
    reward, correct, kind, parts, extracted, cause, detail, seconds, late    its outcome; parts are JSON, `extracted` is
                                    the answer as read from the text
    keep, reason                    keep: by the selectors. reason: trained | not selected | flat group (equal rewards,
                                    and no rollout kept: replaced by dynamic sampling, or dropped by a selector) |
                                    failed: {cause} | cut | zero advantage | not scheduled (the last: kept, but without
                                    a token to train, or while the policy is not updated)
    values, returns                 float32 per token: a value model's prediction before the token, and its target;
                                    null where no value model has read the rollout, or none is trained
    advantage, advantages           a number; or null, and a list with one number per token
    weight                          in the step's first epoch; null for a rollout that is in no batch
    surrogates                      JSON: the texts of this row, by column, that UTF-8 cannot encode; mostly null

The inputs of keep and advantage are exact (float64 and integers), so the file alone reproduces both for members that
read neither log-probs nor a critic's values. Log-probs are float32 where a rollout is kept, and rounded to float16
elsewhere: their last bits are then zeros, which compress to almost nothing. Under `log.rollouts = "kept"`, text,
tokens, logprobs, trainable, turns, values and returns of rollouts that are not kept are null. The other columns do not
depend on it.

Repeated values (a prompt and its tokens on each of its rollouts) are stored once per page. Fractions per token are
split by byte, so that similar bytes are adjacent. Tokens are stored plain, as zstd compresses them better than their
indices in a dictionary. This module imports pyarrow and no torch; only code that reads or
writes rollouts imports it.

Parquet is typed, so names and types are checked once per file. Each part is checked for what types do not express, such
as permitted words and equal lengths.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, get_args

import numpy as np
import pyarrow as pa

from winnow.algos.advantage import is_flat
from winnow.records import CAUSES, NO_VERDICT, Finish, FloatArray, Group, Kind, Outcome, Prompt, Rollout
from winnow.state.log import encode

_TEXT, _INT, _FLOAT, _BOOL = pa.string(), pa.int64(), pa.float64(), pa.bool_()
SPLIT = ("logprobs", "values", "returns", "advantages")  # split by byte
TEXTS = ("prompt_id", "prompt", "task", "text", "extracted", "detail")  # text of a model or a data set
# None in a table of another trainer; in a file of winnow, the schema refuses it
_WORDS: dict[str, tuple[Any, ...]] = {
    "finish": (None, *get_args(Finish)),
    "kind": (None, *get_args(Kind)),
    "cause": (None, *CAUSES),
}
_COUNTS = ("step", "count", "index", "length", "version")
_PER_TOKEN = ("tokens", "logprobs", "trainable", "values", "returns", "advantages")
_JSON = ("answer", "meta", "parts", "turns", "surrogates")


def _each(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", kind, nullable=False))


_TYPES: dict[str, tuple[pa.DataType, bool]] = {  # and whether it may be null
    "step": (_INT, False), "seed": (_INT, False),
    "prompt_id": (_TEXT, False), "prompt": (_TEXT, False), "prompt_tokens": (_each(pa.int32()), False),
    "answer": (_TEXT, False), "task": (_TEXT, False), "meta": (_TEXT, False), "count": (_INT, False),
    "drawn": (_FLOAT, True),
    "index": (_INT, False), "text": (_TEXT, True), "tokens": (_each(pa.int32()), True),
    "logprobs": (_each(pa.float32()), True), "trainable": (_each(_BOOL), True), "length": (_INT, False),
    "finish": (_TEXT, False), "version": (_INT, False), "turns": (_TEXT, True),
    "reward": (_FLOAT, False), "correct": (_BOOL, True), "kind": (_TEXT, False), "parts": (_TEXT, False),
    "extracted": (_TEXT, True), "cause": (_TEXT, True), "detail": (_TEXT, False), "seconds": (_FLOAT, False),
    "late": (_BOOL, False), "keep": (_BOOL, False), "reason": (_TEXT, False),
    "values": (_each(pa.float32()), True), "returns": (_each(pa.float32()), True),
    "advantage": (_FLOAT, True), "advantages": (_each(_FLOAT), True), "weight": (_FLOAT, True),
    "surrogates": (_TEXT, True),
}  # fmt: skip
SCHEMA = pa.schema([pa.field(name, kind, nullable=null) for name, (kind, null) in _TYPES.items()])
PARQUET: dict[str, Any] = {  # options of the writer
    "compression": "zstd",
    "compression_level": {"text": 3, "tokens.list.element": 3},
    "use_dictionary": [name for name, (kind, _) in _TYPES.items() if kind == _TEXT and name not in ("text", "detail")],
    "column_encoding": {f"{name}.list.element": "BYTE_STREAM_SPLIT" for name in SPLIT},
    "write_statistics": ["step", "prompt_id", "reward"],
    "write_page_checksum": True,
    "store_schema": False,
}


class Row(NamedTuple):
    """The records that one row is made from."""

    prompt: Prompt
    answer: str  # the prompt's answer as JSON, encoded once for all its rollouts
    meta: str  # the prompt's metadata, likewise
    of: int  # rollouts of the prompt in this step
    drawn: float | None  # the probability of its draw
    rollout: Rollout
    outcome: Outcome
    keep: bool
    replaced: bool  # the whole group is flat, and no rollout of it is kept
    values: FloatArray | None
    returns: FloatArray | None
    advantage: float | FloatArray
    weight: float | None
    prompt_bytes: int  # an upper bound of the bytes of the prompt's texts, counted once for all its rollouts

    @property
    def text_bytes(self) -> int:
        """An upper bound of the bytes of the row's texts as columns: UTF-8 needs at most 4 per character.

        The prompt's texts are counted more exactly, as only they may be much larger than the tokens.
        """
        outcome, turns = self.outcome, self.rollout.turns
        own = len(self.rollout.text) + len(outcome.answer or "") + len(outcome.detail)
        return self.prompt_bytes + 4 * (own + sum(map(len, turns)) if turns else own)


def rows_of(group: Group, place: int, weights: Mapping[tuple[int, int], float]) -> list[Row]:
    """The rows of a group. `place` is its position in the step. The keys of `weights` are `TrainingSequence.key`.

    Raises ValueError for a group that is not filled up to its advantages.
    """
    if group.outcomes is None or group.keep is None or group.advantages is None:
        raise ValueError(f"group {group.prompt.id!r} is logged before its outcomes, keep and advantages are filled")
    nothing = [None] * len(group.rollouts)
    replaced = not group.keep.any() and is_flat(group.rewards[group.valid])
    verdicts = zip(group.rollouts, group.outcomes, group.keep.tolist(), strict=True)
    credits = zip(group.values or nothing, group.returns or nothing, group.advantages, strict=True)
    prompt = group.prompt
    answer, meta = encode(prompt.answer).decode(), encode(prompt.meta).decode()
    texts = prompt.id, prompt.text, prompt.task, answer, meta
    prompt_bytes = sum(len(text) if text.isascii() else 4 * len(text) for text in texts)
    drawn = None if group.drawn is None else group.drawn.probability
    of_prompt = prompt, answer, meta, len(group.rollouts), drawn
    return [
        Row(*of_prompt, r, o, keep, replaced, *credit, weights.get((place, r.index)), prompt_bytes)
        for (r, o, keep), credit in zip(verdicts, credits, strict=True)
    ]


def table(step: int, seed: int, rows: Sequence[Row], *, only_kept: bool) -> pa.Table:
    """The rows as columns. With `only_kept`, rows that are not kept have no text, tokens, log-probs, mask of trainable
    tokens, values and returns (null).
    """
    prompts, rollouts = [row.prompt for row in rows], [row.rollout for row in rows]
    outcomes = [row.outcome for row in rows]
    full = [row if row.keep or not only_kept else None for row in rows]
    per_token = [isinstance(row.advantage, np.ndarray) for row in rows]
    columns: dict[str, Any] = {
        "step": np.full(len(rows), step),
        "seed": np.full(len(rows), seed),
        "prompt_id": [prompt.id for prompt in prompts],
        "prompt": [prompt.text for prompt in prompts],
        "prompt_tokens": _lists([prompt.tokens for prompt in prompts], np.int32),
        "answer": [row.answer for row in rows],
        "task": [prompt.task for prompt in prompts],
        "meta": [row.meta for row in rows],
        "count": [row.of for row in rows],
        "drawn": [row.drawn for row in rows],
        "index": [r.index for r in rollouts],
        "text": [row and row.rollout.text for row in full],
        "tokens": _lists([row and row.rollout.tokens for row in full], np.int32),
        "logprobs": _logprobs(full),
        "trainable": _lists([row and row.rollout.trainable for row in full], np.bool_),
        "length": [len(r.tokens) for r in rollouts],
        "finish": [r.finish for r in rollouts],
        "version": [r.version for r in rollouts],
        "turns": [row and (None if row.rollout.turns is None else json.dumps(row.rollout.turns)) for row in full],
        "reward": np.array([o.reward for o in outcomes], dtype=np.float64),
        "correct": [None if o.correct is None else bool(o.correct) for o in outcomes],
        "kind": [o.kind for o in outcomes],
        "parts": [encode(o.parts).decode() if o.parts else "{}" for o in outcomes],
        "extracted": [o.answer for o in outcomes],
        "cause": [o.cause for o in outcomes],
        "detail": [o.detail for o in outcomes],
        "seconds": np.array([o.seconds for o in outcomes], dtype=np.float64),
        "late": [bool(o.late) for o in outcomes],
        "keep": [row.keep for row in rows],
        "reason": [_reason(row) for row in rows],
        "values": _lists([row and _where_read(row.values) for row in full], np.float32),
        "returns": _lists([row and _where_read(row.returns) for row in full], np.float32),
        "advantage": [None if several else float(row.advantage) for row, several in zip(rows, per_token, strict=True)],
        "advantages": _lists(
            [row.advantage if several else None for row, several in zip(rows, per_token, strict=True)], np.float64
        ),
        "weight": [None if row.weight is None else float(row.weight) for row in rows],
    }
    return pa.table(list(_arrays(columns, len(rows))), schema=SCHEMA)


def foreign_table(columns: Mapping[str, Sequence[Any]], rows: int) -> pa.Table:
    """What another program logged, as a table in which every column may be null, and what it did not log is."""
    every = {field.name: columns.get(field.name, [None] * rows) for field in SCHEMA}
    return pa.table(list(_arrays(every, rows)), schema=pa.schema([field.with_nullable(True) for field in SCHEMA]))


def _reason(row: Row) -> str:
    if row.outcome.failed:
        return f"failed: {row.outcome.cause}"
    if row.outcome.kind == "cut":
        return "cut"
    if not row.keep:
        return "flat group" if row.replaced else "not selected"
    if row.weight is not None:
        return "trained"
    silent = not row.advantage.any() if isinstance(row.advantage, np.ndarray) else row.advantage == 0.0
    return "zero advantage" if silent else "not scheduled"


def _logprobs(rows: Sequence[Row | None]) -> pa.Array:
    """[L] log-probs in float32 per row; null in the place of None. Those of a rollout that is not kept have float16's
    precision and range.
    """
    lists = [row and row.rollout.logprobs for row in rows]
    flat = _flat(lists, np.float32)
    lengths = [0 if own is None else len(own) for own in lists]
    rounded = np.repeat([row is not None and not row.keep for row in rows], lengths)
    most = np.finfo(np.float16).max
    some = flat[rounded]
    flat[rounded] = np.where(np.isfinite(some), np.clip(some, -most, most), some).astype(np.float16)
    return _list_array(lists, flat)


def _where_read(numbers: FloatArray | None) -> FloatArray | None:
    """[L] numbers of a value model; None where all are NaN or missing, as it has not read the rollout."""
    return None if numbers is None or np.isnan(numbers).all() else numbers


def _lists(lists: Sequence[Any], kind: Any) -> pa.Array:
    """One list per row; null in the place of None."""
    if all(numbers is None for numbers in lists):  # most columns of a value model, in most runs
        return pa.nulls(len(lists), _each(pa.from_numpy_dtype(kind)))
    return _list_array(lists, _flat(lists, kind))


def _flat(lists: Sequence[Any], kind: Any) -> Any:
    """The numbers of all lists in one array. A number too large for the type becomes infinite."""
    present = [numbers for numbers in lists if numbers is not None and len(numbers)]
    with np.errstate(over="ignore"):
        return np.concatenate(present, dtype=kind, casting="unsafe") if present else np.zeros(0, kind)


def _list_array(lists: Sequence[Any], flat: Any) -> pa.Array:
    """`flat`, divided as `lists` are; null in the place of None."""
    offsets = np.zeros(len(lists) + 1, dtype=np.int32)
    np.cumsum([0 if numbers is None else len(numbers) for numbers in lists], out=offsets[1:])
    mask = pa.array([numbers is None for numbers in lists]) if any(n is None for n in lists) else None
    list_type = _each(pa.from_numpy_dtype(flat.dtype))
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat), list_type, mask=mask)


def _arrays(columns: Mapping[str, Any], rows: int) -> Iterator[pa.Array]:
    """The columns in the schema's order. UTF-8 cannot encode a text with a lone surrogate: its column has a "?" in its
    place, and the row's JSON in the last column has the original text.
    """
    originals: dict[int, dict[str, str]] = {}  # by row and column
    for field in list(SCHEMA)[:-1]:
        values = columns[field.name]
        try:
            array = values if isinstance(values, pa.Array) else pa.array(values, type=field.type)
        except UnicodeEncodeError:
            clean = [None if text is None else text.encode("utf-8", "replace").decode() for text in values]
            for place, text in enumerate(values):
                if text != clean[place]:
                    originals.setdefault(place, {})[field.name] = text
            array = pa.array(clean, type=field.type)
        yield array
    surrogates = [json.dumps(originals[place]) if place in originals else None for place in range(rows)]
    yield pa.array(surrogates, type=pa.string())


def check_schema(schema: pa.Schema) -> None:
    """Raise ValueError, naming the column, unless every column that winnow writes is present with its type."""
    for field in SCHEMA:
        if field.name not in schema.names:
            raise ValueError(f"there is no column {field.name!r}")
        column = schema.field(field.name)
        if column.type != field.type or (column.nullable and not field.nullable):
            raise ValueError(f"the column {field.name!r} is of type {_kind(column)} instead of {_kind(field)}")


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
        fault = "reward: a verdict that failed and a rollout that was cut have none, and every other one has"
        yield fault, [(kind in NO_VERDICT) != (reward != reward) for kind, reward in pairs]  # NaN != NaN


def _of_numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(v is None or type(v) in (int, float) for v in value.values())


def _of_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(k in TEXTS and isinstance(v, str) for k, v in value.items())


def _list_of_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _below_0(value: Any) -> bool:
    return value < 0 if isinstance(value, int) else value is not None and len(value) > 0 and bool(value.min() < 0)


_CHECKS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys((*_COUNTS, "tokens", "prompt_tokens"), ("below 0", _below_0)),
    "meta": ("not a JSON object", lambda value: not isinstance(value, dict)),
    "parts": ("not a JSON object of numbers", lambda value: not _of_numbers(value)),
    "turns": ("not a JSON list of texts", lambda value: value is not None and not _list_of_texts(value)),
    "surrogates": ("not a JSON object of texts", lambda value: value is not None and not _of_texts(value)),
}
