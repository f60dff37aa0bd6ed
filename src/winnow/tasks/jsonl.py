"""Problems from the user's own .jsonl files: one JSON object per line."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from winnow.errors import ConfigError, DataError, near_miss
from winnow.records import Problem
from winnow.registry import register
from winnow.rewards.extract import last_boxed
from winnow.tasks.problems import Split, check_split, listed, problem, split_of
from winnow.tasks.source import Record, read_jsonl

# Usual names of the two fields in published data sets, the likelier ones first.
USUAL = {
    "question": ("question", "problem", "prompt", "query", "instruction", "input"),
    "answer": (
        *("answer", "gold", "final_answer", "expected_answer", "ground_truth", "gt_answer", "target", "label"),
        *("solution", "output", "response", "completion"),
    ),
}


@dataclass(frozen=True, slots=True)
class _Fields:
    """The names of the fields of a record, and whether the answer is boxed."""

    question: str
    answer: str
    id: str | None
    boxed: bool


@register("task")
def jsonl(
    split: str,
    *,
    path: str | None = None,
    train: str | None = None,
    validation: str | None = None,
    test: str | None = None,
    question: str = "question",
    answer: str = "answer",
    id: str | None = None,
    boxed: bool = False,
) -> list[Problem]:
    r"""Problems from your own .jsonl files.

    Give either one file (`path`), which is split by a hash of the question (80% train, 10% validation, 10% test), or a
    file per split (`train`, `validation`, `test`). Files of different splits must not share a question.

    `question`, `answer` and `id` name the fields; without `id`, the id of a problem is a hash of its question. The
    answer may be text, a number, a list of accepted texts, or any JSON; with `boxed` it is the last \boxed{...} of
    that field. Every other field is kept in `meta`.

    Raises ConfigError for both ways at once or neither. Raises DataError with file and line for a corrupt line, a
    problem without question or gold, a repeated id, or a question in two splits.
    """
    wanted = check_split(split)
    fields = _Fields(question, answer, id, boxed)
    files = {"train": train, "validation": validation, "test": test}
    own = {name: file for name, file in files.items() if file is not None}
    _check_files(wanted, path, own)
    records = _split_file(own, wanted, fields) if path is None else _pool(path, wanted, fields)
    if id is not None:
        _check_ids(records, id)
    return listed((_problem(r, fields) for r in records), split=split, source=path or own[wanted])


def _check_files(wanted: Split, path: str | None, own: Mapping[str, str]) -> None:
    if (path is None) == (not own):
        raise ConfigError(
            f"task: {'no file is' if path is None else 'both one file and files per split are'} set for jsonl",
            remedy="set task.path (one file for all splits), or task.train, task.validation and task.test",
            key="task.path",
            code="config.missing_key" if path is None else "config.combination",
        )
    if path is None and wanted not in own:
        raise ConfigError(
            f"task.{wanted} is missing: the {wanted} split has no file",
            remedy="set it to a .jsonl file",
            key=f"task.{wanted}",
            code="config.missing_key",
        )


def _pool(path: str, wanted: Split, fields: _Fields) -> list[Record]:
    return [r for r in _read(path, "task.path", fields) if split_of(r.text(fields.question)) == wanted]


def _split_file(own: Mapping[str, str], wanted: Split, fields: _Fields) -> list[Record]:
    """The records of the split's file. Raises DataError for a question that is also in another split's file."""
    read = {name: _read(file, f"task.{name}", fields) for name, file in own.items()}
    places = {r.text(fields.question): r.where for name, records in read.items() if name != wanted for r in records}
    for record in read[wanted]:
        elsewhere = places.get(record.text(fields.question))
        if elsewhere is not None:
            raise DataError(
                f"{record.where}: this question is also at {elsewhere}",
                remedy="remove it from one of the splits",
                key=f"task.{wanted}",
                code="data.malformed",
            )
    return read[wanted]


def _read(file: str, key: str, fields: _Fields) -> list[Record]:
    records = read_jsonl(Path(file).expanduser(), key=key)
    known = {name for record in records for name in record.fields}
    for record in records:
        _check_fields(record, fields, known)
    return records


def _check_fields(record: Record, fields: _Fields, known: Collection[str]) -> None:
    """Raise DataError where question or answer is missing. `known` are the fields of all records of the file.

    Where no record has the field, the remedy sets the option to a field that this one has. Elsewhere the option is
    right, and the line is wrong.
    """
    named = {"question": fields.question, "answer": fields.answer}
    missing = [role for role, name in named.items() if name not in record.fields]
    if not missing:
        return
    lost = next((role for role in missing if named[role] in known), None)
    role, own = lost or missing[0], ", ".join(map(repr, record.fields)) or "none"
    raise DataError(
        f"{record.where}: the field {named[role]!r} is missing (its fields: {own})",
        remedy="correct or remove this line: other lines have the field" if lost else _naming(record, fields, missing),
        key=f"task.{role}",
        code="data.malformed",
    )


def _naming(record: Record, fields: _Fields, missing: Sequence[str]) -> str:
    """The remedy that sets the options of the `missing` roles to fields of the record.

    Fields are recognised by their usual names, not by likeness: "solution" is more like "question" than "problem" is.
    """
    named = {"question": fields.question, "answer": fields.answer}
    free = [name for name in record.fields if name not in (*named.values(), fields.id)]
    usual = {role: next((name for name in USUAL[role] if name in free), None) for role in missing}
    options = [f'task.{role} = "{name}"' for role, name in usual.items() if name is not None]
    if "answer" in usual and not fields.boxed and "\\boxed" in str(record.fields.get(usual["answer"] or "", "")):
        options.append("task.boxed = true (the gold is the last box of that text)")
    if options:
        return f"set {' and '.join(options)}"
    near = near_miss(named[missing[0]], record.fields)
    return f"set task.{missing[0]} to the name of that field{f' ({near})' if near else ''}"


def _check_ids(records: list[Record], field: str) -> None:
    places: dict[str, str] = {}
    for record in records:
        name = str(record.value(field))
        if name in places:
            raise DataError(
                f"{record.where}: the id {name!r} is also at {places[name]}",
                remedy="give each problem a different id, or remove task.id",
                key="task.id",
                code="data.malformed",
            )
        places[name] = record.where


def _problem(record: Record, fields: _Fields) -> Problem:
    mapped = (fields.question, fields.answer, fields.id)
    meta = {name: value for name, value in record.fields.items() if name not in mapped}
    made = problem("jsonl", record.text(fields.question), _gold(record, fields), meta)
    return made if fields.id is None else dataclasses.replace(made, id=str(record.value(fields.id)))


def _gold(record: Record, fields: _Fields) -> Any:
    if not fields.boxed:
        return record.value(fields.answer)
    gold = last_boxed(record.text(fields.answer))
    if gold is None:
        raise DataError(
            f"{record.where}: the field {fields.answer!r} has no \\boxed{{...}} with its braces closed",
            remedy="correct or remove this line, or set task.boxed = false",
            key="task.boxed",
            code="data.malformed",
        )
    return gold
