"""MATH: competition problems whose answers are mathematical expressions; and MATH-500, its usual evaluation set."""

from __future__ import annotations

from typing import Any

from winnow.errors import DataError
from winnow.records import Problem
from winnow.registry import register
from winnow.rewards.extract import last_boxed
from winnow.tasks.problems import listed, problem
from winnow.tasks.published_evaluations import BOXED
from winnow.tasks.source import Record, read_published, read_train_and_test
from winnow.tasks.splits import check_only_test

MATH500_FILES = ("math500.jsonl", "test.jsonl")  # names of the file in a folder


@register("task", evaluation=BOXED)
def math(split: str, *, path: str = "nlile/hendrycks-MATH-benchmark", test_path: str | None = None) -> list[Problem]:
    r"""Competition mathematics. Source: Hendrycks et al. 2021, arXiv 2103.03874.

    `path` is a hub id, a folder with `math_train.jsonl` and `math_test.jsonl`, or one such file. The default has 12,000
    train problems, 4,500 of them from the published test half, and the 500 test problems of MATH-500.
    "EleutherAI/hendrycks_math" has the published halves: 7,500 train and 5,000 test problems. `test_path` is another
    source of the test problems, of the same kinds as the `path` of `math500`. The answer is the last \boxed{...} of the
    solution, braces balanced, or the field `answer` where the solution has no box. All fields but the problem are kept
    in `meta`. Validation is a tenth of train, held out by a hash of the problem.

    Raises DataError for a record without a problem or a gold, and where `path` does not exist.
    """
    if split == "test" and test_path is not None:
        records = read_published(test_path, "test", files=MATH500_FILES, key="task.test_path")
        problems = (problem("math", r.text("problem"), _boxed(r), _meta(r)) for r in records)
        return listed(problems, split=split, source=test_path)
    pairs = read_train_and_test(path, split, task="math", question="problem")
    return listed((problem("math", text, _boxed(r), _meta(r)) for r, text in pairs), split=split, source=path)


@register("task", evaluation=BOXED)
def math500(split: str, *, path: str = "HuggingFaceH4/MATH-500") -> list[Problem]:
    """500 test problems of MATH, selected by Lightman et al. 2023, arXiv 2305.20050; the split must be "test".

    `path` is a hub id, a folder with `math500.jsonl`, or a .jsonl file. The answer is the field `answer`;
    all fields but the problem are kept in `meta`.

    Raises ConfigError for another split, DataError for a record without a problem or a gold.
    """
    check_only_test("math500", split)
    records = read_published(path, "test", files=MATH500_FILES)
    problems = (problem("math500", r.text("problem"), r.text("answer"), _meta(r)) for r in records)
    return listed(problems, split=split, source=path)


def _boxed(record: Record) -> str:
    gold = last_boxed(record.text("solution")) if "solution" in record.fields else None
    if gold is not None and gold.strip():
        return gold
    if "answer" not in record.fields:
        raise DataError(
            f"{record.where}: the solution has no \\boxed{{...}}, and there is no field 'answer'",
            remedy="correct or remove this line",
            code="data.malformed",
        )
    return record.text("answer")


def _meta(record: Record) -> dict[str, Any]:
    return {name: value for name, value in record.fields.items() if name != "problem"}
