r"""Problems from the user's own files, JSON lines or Parquet: one problem per row."""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from winnow.errors import ConfigError, DataError, near_miss
from winnow.records import Message, Problem, asked
from winnow.registry import register
from winnow.rewards.extract import hashes, last_boxed
from winnow.tasks.messages import messages_of
from winnow.tasks.problems import Split, check_split, listed, problem, same_text, split_of
from winnow.tasks.rows import MEDIA, MISSING, Record, list_in, read_rows

Extract = Literal["whole", "boxed", "hashes"]

# Usual keys of the two fields in published data sets, the likelier ones first.
USUAL = {
    "question": (
        *("question", "problem", "prompt", "query", "instruction", "input"),
        *("messages", "context_messages", "conversations"),
    ),
    "answer": (
        *("answer", "gold", "final_answer", "expected_answer", "ground_truth", "gt_answer", "target", "label"),
        *("reward_model.ground_truth", "verification_info.ground_truth"),
        *("solution", "output", "response", "completion"),
    ),
}
_EXTRACTS: Mapping[str, tuple[Callable[[str], str | None], str]] = MappingProxyType(
    {"boxed": (last_boxed, r"\boxed{...} with its braces closed"), "hashes": (hashes, "answer after '#### '")}
)
RULES = "rules"  # of the reward `instructions`
_PRINTED = re.compile(r"\s*\[\s*'.*'\s*\]\s*", re.DOTALL)  # a list of texts as Python prints it
_WITH_COMMAS = re.compile(r"[-+$]*\d{1,3}(?:,\d{3})+(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class _Fields:
    """The keys of the fields of a row, and how they are read."""

    question: str
    answer: str
    id: str | None
    extract: Extract | None
    meta: Sequence[str] | None
    drop_reply: bool

    @property
    def roles(self) -> dict[str, str]:
        """The keys that every row needs, by their option."""
        return {"question": self.question, "answer": self.answer}

    @property
    def mapped(self) -> list[str]:
        """The keys of question, answer and id."""
        return [self.question, self.answer, *([] if self.id is None else [self.id])]

    @property
    def read(self) -> list[str] | None:
        """The keys of all that is read; None: every field."""
        return None if self.meta is None else [*self.mapped, *self.meta]


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
    extract: Literal["whole", "boxed", "hashes"] | None = None,
    drop_reply: bool = False,
    meta: Sequence[str] | None = None,
) -> list[Problem]:
    r"""Problems from your own files: JSON lines or Parquet.

    Give either one file (`path`), which is split by a hash of the question (80% train, 10% validation, 10% test), or a
    file per split (`train`, `validation`, `test`). Files of different splits must not share a question. Questions that
    differ in white space alone count as one.

    `question`, `answer` and `id` are the keys of the fields; without `id`, the id of a problem is a hash of its
    question. A key with dots names a field inside a field, such as reward_model.ground_truth, also if the outer
    field is the JSON text of an object. The question is text, or chat messages whose last one is the user's;
    `drop_reply` leaves out the assistant's messages at the end. The answer may be text, a number, a list of accepted
    answers, the JSON text of a list of texts, or any JSON. With `extract`, it is the last \boxed{...} of that field
    ("boxed"), the text after the last `#### ` ("hashes"), or the field exactly as it is ("whole"). Other fields are
    kept in `meta`: all of them, or those that the option `meta` names. A row with a list `rules` for the reward
    `instructions` needs no answer.

    Raises ConfigError for both ways at once or neither. Raises DataError with file and row for a corrupt row, a
    problem without question or gold, a gold that is NaN or infinite, images, a repeated id, or a question in two
    splits.
    """
    wanted = check_split(split)
    fields = _Fields(question, answer, id, extract, meta, drop_reply)
    files = {"train": train, "validation": validation, "test": test}
    own = {name: file for name, file in files.items() if file is not None}
    _check_files(wanted, path, own)
    problems = _split_file(own, wanted, fields) if path is None else _pool(path, wanted, fields)
    return listed(problems if id is None else _with_ids(problems, id), split=split, source=path or own[wanted])


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
            remedy="set it to a .jsonl or .parquet file",
            key=f"task.{wanted}",
            code="config.missing_key",
        )


def _pool(path: str, wanted: Split, fields: _Fields) -> Iterator[Problem]:
    for record, messages in _read(path, "task.path", fields, fields.read):
        if split_of(same_text(asked(messages))) == wanted:
            yield _problem(record, messages, fields)


def _split_file(own: Mapping[str, str], wanted: Split, fields: _Fields) -> Iterator[Problem]:
    """The problems of the split's file. Raises DataError for a question that is also in another split's file."""
    others = [(f"task.{name}", file) for name, file in own.items() if name != wanted]
    needed = [*fields.roles.values(), RULES]
    places = {
        same_text(asked(each)): record.where
        for key, file in others
        for record, each in _read(file, key, fields, needed)
    }
    for record, messages in _read(own[wanted], f"task.{wanted}", fields, fields.read):
        elsewhere = places.get(same_text(asked(messages)))
        if elsewhere is not None:
            raise record.malformed(
                f"this question is also at {elsewhere}", "remove it from one of the splits", key=f"task.{wanted}"
            )
        yield _problem(record, messages, fields)


def _read(
    file: str, key: str, fields: _Fields, keys: Sequence[str] | None
) -> Iterator[tuple[Record, tuple[Message, ...]]]:
    """The rows of a file with their messages. Raises DataError if question or answer is missing."""
    path = Path(os.path.expanduser(file))
    for record in read_rows(path, key=key, keys=keys, named=fields.mapped):
        for role, name in fields.roles.items():
            absent = name not in record.fields and record.find(name) is MISSING
            if absent and not (role == "answer" and _has_rules(record, fields)):
                raise _missing(path, record.where, role, fields)
        yield record, messages_of(record, fields.question, drop_reply=fields.drop_reply)


def _missing(path: Path, where: str, role: str, fields: _Fields) -> DataError:
    """The error for a row without the field of a role.

    If no row of the file has the field, the remedy sets the option to a field that this one has. Elsewhere the
    option is right, and the row is wrong.
    """
    rows = list(read_rows(path, named=fields.mapped))
    record = next(row for row in rows if row.where == where)
    missing = [one for one, name in fields.roles.items() if record.find(name) is MISSING]
    lost = next((one for one in missing if any(row.find(fields.roles[one]) is not MISSING for row in rows)), None)
    role, own = lost or role, ", ".join(map(repr, record.fields)) or "none"
    return record.malformed(
        f"the field {fields.roles[role]!r} is missing (its fields: {own})",
        "correct or remove this row: other rows have the field" if lost else _naming(record, fields, missing),
        key=f"task.{role}",
    )


def _naming(record: Record, fields: _Fields, missing: Sequence[str]) -> str:
    """The remedy that sets the options of the `missing` roles to fields of the record.

    Fields are recognised by their usual names, not by likeness: "solution" is more like "question" than "problem" is.
    """
    taken = (*fields.roles.values(), fields.id)
    usual = {role: next((n for n in USUAL[role] if n not in taken and _has(record, n)), None) for role in missing}
    options = [f'task.{role} = "{name}"' for role, name in usual.items() if name is not None]
    gold = str(record.find(name)) if (name := usual.get("answer")) else ""
    if fields.extract is None and "\\boxed" in gold:
        options.append('task.extract = "boxed" (the gold is the last box of that text)')
    elif fields.extract is None and hashes(gold) is not None:
        options.append('task.extract = "hashes" (the gold is after the last #### of that text)')
    if options:
        return f"set {' and '.join(options)}"
    near = near_miss(fields.roles[missing[0]], record.fields)
    return f"set task.{missing[0]} to the name of that field{f' ({near})' if near else ''}"


def _has(record: Record, key: str) -> bool:
    try:
        return record.find(key) is not MISSING
    except DataError:  # text that is not JSON has no fields
        return False


def _with_ids(problems: Iterable[Problem], field: str) -> Iterator[Problem]:
    """The problems; DataError for an id that occurs twice."""
    places: dict[str, str] = {}
    for one in problems:
        if one.id in places:
            raise DataError(
                f"{one.where}: the id {one.id!r} is also at {places[one.id]}",
                remedy="give each problem a different id, or remove task.id",
                key="task.id",
                code="data.malformed",
            )
        places[one.id] = one.where
        yield one


def _problem(record: Record, messages: tuple[Message, ...], fields: _Fields) -> Problem:
    *earlier, (_, question) = messages
    made = problem(
        "jsonl", question, _gold(record, fields), _meta(record, fields), earlier=tuple(earlier), where=record.where
    )
    return made if fields.id is None else dataclasses.replace(made, id=str(record.value(fields.id)))


def _meta(record: Record, fields: _Fields) -> dict[str, Any]:
    """The other fields. Raises DataError for pictures and the like, which the question may be about."""
    if fields.meta is not None:
        values = {key: record.find(key) for key in fields.meta}
        return {key: None if value is MISSING else value for key, value in values.items()}
    mapped = (fields.question, fields.answer, fields.id)
    for name in MEDIA:
        if record.fields.get(name) and name not in mapped:
            raise record.malformed(
                f"this row has {name}, and winnow trains on text alone",
                "remove such rows; or, if the questions can be answered without, name the other fields that are kept: "
                "task.meta = []",
                key="task.meta",
            )
    return {name: value for name, value in record.fields.items() if name not in mapped}


def _has_rules(record: Record, fields: _Fields) -> bool:
    """Whether the row has the rules of the reward `instructions`, which reads no gold."""
    rules = record.fields.get(RULES)
    kept = fields.meta is None or RULES in fields.meta
    return kept and isinstance(rules, list) and any(isinstance(rule, dict) and "rule" in rule for rule in rules)


def _gold(record: Record, fields: _Fields) -> Any:
    if _has_rules(record, fields) and record.find(fields.answer) in (MISSING, None):
        return None
    value = record.value(fields.answer)
    if fields.extract is None:
        if isinstance(value, str) and _PRINTED.fullmatch(value):
            raise record.malformed(
                f"the field {fields.answer!r} is a list as Python prints it",
                'write it with json.dumps; or, if this text is the gold, set task.extract = "whole"',
                key="task.extract",
            )
        if isinstance(value, str) and re.match(r'\s*\[\s*"', value):
            value = list_in(value, lambda gold: isinstance(gold, str))
    golds = value if isinstance(value, list) else [value]
    for one in golds:
        _check_gold(record, fields.answer, one)
    if fields.extract is None:  # pandas writes the integers of a column with a blank as floats
        golds = [int(one) if isinstance(one, float) and one.is_integer() else one for one in golds]
    if fields.extract in _EXTRACTS:
        golds = [_extracted(record, fields, one) for one in golds]
    return golds if isinstance(value, list) else golds[0]


def _check_gold(record: Record, key: str, gold: Any) -> None:
    """Raise DataError for a gold that no answer can be equal to."""
    if gold is None or (isinstance(gold, str) and not gold.strip()):
        raise record.malformed(f"the field {key!r} has an empty gold", "correct or remove this row")
    if isinstance(gold, float) and not math.isfinite(gold):
        raise record.malformed(
            f"the field {key!r} is {gold}, the mark of a missing or impossible number", "correct or remove this row"
        )


def _extracted(record: Record, fields: _Fields, gold: Any) -> str:
    extract, what = _EXTRACTS[fields.extract or ""]
    found = extract(gold) if isinstance(gold, str) else None
    if found is None or not found.strip():
        raise record.malformed(
            f"the field {fields.answer!r} has no {what}",
            "correct or remove this row, or remove task.extract",
            key="task.extract",
        )
    return found.replace(",", "") if fields.extract == "hashes" and _WITH_COMMAS.fullmatch(found) else found
