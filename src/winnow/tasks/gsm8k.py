"""GSM8K: grade-school word problems with an integer answer."""

from __future__ import annotations

from winnow.errors import DataError
from winnow.records import Problem
from winnow.registry import register
from winnow.rewards.extract import hashes
from winnow.tasks.problems import listed, problem
from winnow.tasks.published_evaluations import TAGGED
from winnow.tasks.source import Record, read_train_and_test


@register("task", evaluation=TAGGED)
def gsm8k(split: str, *, path: str = "openai/gsm8k") -> list[Problem]:
    """Grade-school word problems. Source: Cobbe et al. 2021, arXiv 2110.14168.

    `path` is a hub id, a folder with `gsm8k_train.jsonl` and `gsm8k_test.jsonl`, or one such file. The answer is the
    text after `#### ` without thousands separators; the worked solution is in `meta["solution"]`. GSM8K has no
    validation split: a tenth of train, held out by a hash of the question, is used instead.

    Raises DataError for a record without a question or a gold, and where `path` does not exist.
    """
    records = read_train_and_test(path, split, task="gsm8k", question="question", subset="main")
    problems = (problem("gsm8k", text, _gold(record), {"solution": record.text("answer")}) for record, text in records)
    return listed(problems, split=split, source=path)


def _gold(record: Record) -> str:
    gold = hashes(record.text("answer"))
    if gold is None:
        raise DataError(
            f"{record.where}: the field 'answer' has no gold after '#### '",
            remedy="correct or remove this line; the task 'jsonl' reads problems of another form",
            code="data.malformed",
        )
    return gold.replace(",", "")
