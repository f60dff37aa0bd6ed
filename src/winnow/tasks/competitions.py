"""Published benchmarks of mathematics for evaluation only: Minerva, OlympiadBench, AIME and AMC."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from winnow.records import Problem
from winnow.registry import register
from winnow.rewards.extract import last_boxed
from winnow.tasks.problems import listed, problem
from winnow.tasks.published_evaluations import BOXED
from winnow.tasks.source import Record, read_published
from winnow.tasks.splits import check_only_test

# A local file and the data set of the hub may call the same field by two names.
_QUESTION, _ANSWER = ("problem", "question"), ("answer", "final_answer")


@register("task", evaluation=BOXED)
def minerva_math(split: str, *, path: str = "math-ai/minervamath") -> list[Problem]:
    r"""272 university problems of the sciences (Lewkowycz et al. 2022, arXiv 2206.14858); the split must be "test".

    `path` is a hub id, a folder with `minerva_math.jsonl`, or a .jsonl file. The answer is the last \boxed{...} of the
    field `answer`, or all of that field where it has no box.

    Raises ConfigError for another split, DataError for a record without a problem or a gold.
    """
    return _read("minerva_math", split, path, gold=_boxed_or_whole)


@register("task", evaluation=BOXED)
def olympiad_bench(split: str, *, path: str = "Hothan/OlympiadBench") -> list[Problem]:
    """OlympiadBench's open problems of mathematics, in English and without pictures (He et al. 2024, arXiv 2402.14008);
    the split must be "test".

    `path` is a hub id, a folder with `olympiad_bench.jsonl`, or a .jsonl file. The answer is the field `answer`, or
    `final_answer`, a list of accepted answers. `error` (a tolerance) and `unit` are kept in `meta`, where the reward
    `boxed` reads them. A `context` is put before the question.

    Raises ConfigError for another split, DataError for a record without a problem or a gold.
    """
    return _read("olympiad_bench", split, path, subset="OE_TO_maths_en_COMP", published="train")


@register("task", evaluation=BOXED)
def aime24(split: str, *, path: str = "HuggingFaceH4/aime_2024") -> list[Problem]:
    """The 30 problems of the American Invitational Mathematics Examination of 2024, whose answers are whole numbers up
    to 999; the split must be "test".

    `path` is a hub id, a folder with `aime24.jsonl`, or a .jsonl file.

    Raises ConfigError for another split, DataError for a record without a problem or a gold.
    """
    return _read("aime24", split, path, published="train")


@register("task", evaluation=BOXED)
def amc23(split: str, *, path: str = "math-ai/amc23") -> list[Problem]:
    """The 40 problems of the American Mathematics Competitions (12) of 2023 with a numeric answer; the split must be
    "test".

    `path` is a hub id, a folder with `amc23.jsonl`, or a .jsonl file.

    Raises ConfigError for another split, DataError for a record without a problem or a gold.
    """
    return _read("amc23", split, path)


def _answer(record: Record) -> Any:
    return record.value(record.first_of(_ANSWER))


def _boxed_or_whole(record: Record) -> str:
    text = record.text(record.first_of(_ANSWER))
    return last_boxed(text) or text


def _read(
    task: str,
    split: str,
    path: str,
    *,
    subset: str | None = None,
    published: str = "test",
    gold: Callable[[Record], Any] = _answer,
) -> list[Problem]:
    check_only_test(task, split)
    records = read_published(path, published, files=(f"{task}.jsonl", f"{published}.jsonl"), subset=subset)
    return listed((_problem(task, record, gold(record)) for record in records), split=split, source=path)


def _problem(task: str, record: Record, answer: Any) -> Problem:
    question = record.text(record.first_of(_QUESTION))
    context = record.fields.get("context")
    meta = {name: value for name, value in record.fields.items() if name not in _QUESTION}
    return problem(task, f"{context}\n\n{question}" if isinstance(context, str) and context else question, answer, meta)
