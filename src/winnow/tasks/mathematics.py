"""Problem sets of mathematics: GSM8K, MATH and MATH-500, and for evaluation Minerva, OlympiadBench, AIME and AMC.

A task's trait `evaluation` has the prompt, limits and reward of its published evaluation. The texts are winnow's; they
have the meaning of the published messages (docs/published.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from winnow.records import Problem
from winnow.registry import register
from winnow.rewards.extract import hashes, last_boxed
from winnow.tasks.problems import check_only_test, listed, problem
from winnow.tasks.rows import Record
from winnow.tasks.source import read_published, read_train_and_test

# GVM (Yao et al. 2025, arXiv 2505.02391): competition problems; the answer is in the last box.
BOXED: Mapping[str, Any] = MappingProxyType(
    {
        "prompt": {
            "template": "chat",
            "system": r"Reason step by step and put the final answer within \boxed{}.",
            "suffix": r" Think step by step and write the final answer within \boxed{}.",
            "max_prompt_tokens": 1024,
        },
        "rollout": {"max_new_tokens": 3072},
        "reward": {"use": "boxed"},
    }
)

# PODS (Xu et al. 2025, arXiv 2504.13818): word problems; answer and format are separate parts of the reward.
TAGGED: Mapping[str, Any] = MappingProxyType(
    {
        "prompt": {
            "template": "chat",
            "system": "A mathematics question follows. Reason step by step between <think> and </think>, checking and "
            "correcting yourself; then write the final answer between <answer> and </answer>. The length of the "
            "response is limited.",
            "max_prompt_tokens": 512,
        },
        "rollout": {"max_new_tokens": 512},
        "reward": {"parts": ({"use": "numeric"}, {"use": "format", "weight": 0.1}), "shaping": "if_wrong"},
    }
)
# A local file and the data set of the hub may call the same field by two names.
_QUESTION, _ANSWER = ("problem", "question"), ("answer", "final_answer")


@register("task", evaluation=TAGGED)
def gsm8k(split: str, *, path: str = "openai/gsm8k") -> list[Problem]:
    """Grade-school word problems. Source: Cobbe et al. 2021, arXiv 2110.14168.

    `path` is a hub id, a folder with `gsm8k_train.jsonl` and `gsm8k_test.jsonl`, or one such file. The answer is the
    text after `#### ` without thousands separators; the worked solution is in `meta["solution"]`. GSM8K has no
    validation split: a tenth of train, held out by a hash of the question, is used instead.

    Raises DataError for a record without a question or a gold, and if `path` does not exist.
    """
    records = read_train_and_test(path, split, task="gsm8k", question="question", subset="main")
    problems = (problem("gsm8k", text, _gold(record), {"solution": record.text("answer")}) for record, text in records)
    return listed(problems, split=split, source=path)


def _gold(record: Record) -> str:
    gold = hashes(record.text("answer"))
    if gold is None:
        raise record.malformed(
            "the field 'answer' has no gold after '#### '",
            "correct or remove this line; the task 'jsonl' reads problems of another form",
        )
    return gold.replace(",", "")


@register("task", evaluation=BOXED)
def math(split: str, *, path: str = "nlile/hendrycks-MATH-benchmark", test_path: str | None = None) -> list[Problem]:
    r"""Competition mathematics. Source: Hendrycks et al. 2021, arXiv 2103.03874.

    `path` is a hub id, a folder with `math_train.jsonl` and `math_test.jsonl`, or one such file. The default has 12,000
    train problems, 4,500 of them from the published test half, and the 500 test problems of MATH-500.
    "EleutherAI/hendrycks_math" has the published halves: 7,500 train and 5,000 test problems. `test_path` is another
    source of the test problems, of the same kinds as the `path` of `math500`. The answer is the last \boxed{...} of the
    solution, braces balanced, or the field `answer` if the solution has no box. All fields but the problem are kept
    in `meta`. Validation is a tenth of train, held out by a hash of the problem.

    Raises DataError for a record without a problem or a gold, and if `path` does not exist.
    """
    records: Iterable[Record]
    if split == "test" and test_path is not None:
        records = read_published(test_path, "test", files=("math500.jsonl", "test.jsonl"), key="task.test_path")
        path = test_path
    else:
        records = (record for record, _ in read_train_and_test(path, split, task="math", question="problem"))
    return listed((_problem("math", record, _boxed(record)) for record in records), split=split, source=path)


@register("task", evaluation=BOXED)
def math500(split: str, *, path: str = "HuggingFaceH4/MATH-500") -> list[Problem]:
    """500 test problems of MATH, selected by Lightman et al. 2023, arXiv 2305.20050; the split must be "test".

    `path` is a hub id, a folder with `math500.jsonl`, or a .jsonl file. The answer is the field `answer`;
    all fields but the problem are kept in `meta`.

    Raises ConfigError for another split, DataError for a record without a problem or a gold.
    """
    return _read("math500", split, path)


def _boxed(record: Record) -> str:
    solution = record.fields.get("solution")
    gold = last_boxed(solution) if isinstance(solution, str) else None
    if gold is not None and gold.strip():
        return gold
    if "answer" not in record.fields:
        raise record.malformed(
            r"the solution has no \boxed{...}, and there is no field 'answer'", "correct or remove this line"
        )
    return record.text("answer")


@register("task", evaluation=BOXED)
def minerva_math(split: str, *, path: str = "math-ai/minervamath") -> list[Problem]:
    r"""272 university problems of the sciences (Lewkowycz et al. 2022, arXiv 2206.14858); the split must be "test".

    `path` is a hub id, a folder with `minerva_math.jsonl`, or a .jsonl file. The answer is the last \boxed{...} of the
    field `answer`, or all of that field if it has no box.

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
