"""Makes problems: unique ids, and splits by the text.

An id is made from a hash of the question, and the split is a pure function of its text, so splits are always disjoint.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

from winnow.errors import ConfigError, DataError, near_miss
from winnow.records import Message, Problem, Prompt, asked
from winnow.seeds import derive, uniform

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)


def problem(
    task: str,
    question: str,
    answer: Any,
    meta: dict[str, Any],
    *,
    earlier: tuple[Message, ...] = (),
    where: str = "",
) -> Problem:
    """A problem whose id is a hash of all that is asked: stable when others are added, removed or reordered."""
    text = asked((*earlier, Message("user", question))) if earlier else question
    name = f"{task}-{derive(text):032x}"
    return Problem(id=name, question=question, answer=answer, task=task, meta=meta, earlier=earlier, where=where)


def listed(problems: Iterable[Problem], *, split: str, source: str) -> list[Problem]:
    """The problems of a split with unique ids: a repeated question is numbered `-2`, `-3` ...

    Raises DataError if there is no problem.
    """
    seen: Counter[str] = Counter()
    unique = []
    for one in problems:
        seen[one.id] += 1
        repeat = seen[one.id]
        unique.append(one if repeat == 1 else dataclasses.replace(one, id=f"{one.id}-{repeat}"))
    if not unique:
        raise DataError(
            f"there are no {split} problems in {source}", remedy="name another file, or add problems", code="data.empty"
        )
    return unique


def same_text(question: str) -> str:
    """A question with one blank for any white space; questions that differ only in it belong to one split."""
    return " ".join(question.split())


def split_of(text: str, *, pool: str = "split") -> Split:
    """The split of a problem of one pool, by a hash of its text: 80% train, 10% validation, 10% test."""
    place = uniform(pool, text)
    return "train" if place < 0.8 else "validation" if place < 0.9 else "test"


def train_or_validation(text: str) -> Split:
    """The split of a problem of a published train split: by a hash of its text, 10% are for validation."""
    return "train" if uniform("train or validation", text) < 0.9 else "validation"


def check_only_test(task: str, split: str) -> None:
    """Raise ConfigError unless the split is "test", for a task that is only for evaluation."""
    if check_split(split) != "test":
        raise ConfigError(
            f"{task} has no {split} problems: it is for evaluation",
            remedy="use the split 'test', and train on another task",
            code="config.unsupported",
        )


def refused(option: str, problem: str, remedy: str) -> ConfigError:
    """The error about a value of a task's option."""
    return ConfigError(problem, remedy=remedy, key=f"task.{option}", code="config.value")


def check_positive(**options: int) -> None:
    """Raise ConfigError for an option of a task that is below 1."""
    for name, value in options.items():
        if value < 1:
            raise refused(name, f"task.{name} is {value}", "set it to 1 or more")


def check_split(split: str) -> Split:
    """`split` itself. Raises ConfigError if there is no such split."""
    if split not in SPLITS:
        raise ConfigError(f"there is no split {split!r}", remedy=near_miss(split, SPLITS), code="config.value")
    return split


def digest_of(prompts: Sequence[Prompt]) -> str:
    """The SHA-256 of every prompt's id and tokens, in their order."""
    whole = hashlib.sha256()
    for prompt in prompts:
        whole.update(f"{prompt.id}\0{len(prompt.tokens)}\0".encode(errors="surrogatepass"))
        whole.update(prompt.tokens.tobytes())
    return whole.hexdigest()
