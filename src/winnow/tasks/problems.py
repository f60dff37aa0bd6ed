"""Makes problems and the prompts of a step: unique ids, splits by the text, and a stream without a cursor.

An id is made from a hash of the question, and the split is a pure function of its text, so splits are always disjoint.
The prompts of a step are a pure function of (seed, step).
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

import numpy as np

from winnow.errors import ConfigError, DataError, near_miss
from winnow.records import Problem, Prompt
from winnow.seeds import SeedName, derive, generator, uniform


def problem(task: str, question: str, answer: Any, meta: dict[str, Any]) -> Problem:
    """A problem whose id is a hash of its question: stable when other problems are added, removed or reordered."""
    return Problem(id=f"{task}-{derive(question):032x}", question=question, answer=answer, task=task, meta=meta)


def listed(problems: Iterable[Problem], *, split: str, source: str) -> list[Problem]:
    """The problems of a split with unique ids: a repeated question is numbered `-2`, `-3` ...

    Raises DataError where there is no problem.
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


Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)


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


def check_split(split: str) -> Split:
    """`split` itself. Raises ConfigError where there is no such split."""
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


class PromptStream:
    """The prompts of each step, for any number of steps: each epoch is a new permutation, cut to whole steps.

    Prompts that are left over at the end of an epoch are not used. They differ from epoch to epoch, so that no prompt
    is omitted every time.
    """

    def __init__(self, prompts: Sequence[Prompt], *, per_step: int, seed: tuple[SeedName, ...]) -> None:
        if per_step > len(prompts):
            raise ConfigError(
                f"rollout.prompts_per_step = {per_step}, but the task has only {len(prompts)} prompts to train on",
                remedy=f"lower it to at most {len(prompts)} or enlarge the task",
                key="rollout.prompts_per_step",
                code="config.combination",
            )
        self.prompts = tuple(prompts)
        self._per_step = per_step
        self._seed = seed

    @property
    def steps_per_epoch(self) -> int:
        return len(self.prompts) // self._per_step

    def digest(self) -> str:
        """The digest of all prompts, in the order of the task."""
        return digest_of(self.prompts)

    def take(self, step: int, extra: int = 0) -> list[Prompt]:
        """[G] the prompts of a step, all different; with `extra` = n those of its n-th round of dynamic sampling.

        A round contains no prompt that the step or one of its earlier rounds had. It is shorter, or empty, where the
        task has too few prompts.
        """
        epoch, place = divmod(step, self.steps_per_epoch)
        order = generator(*self._seed, "epoch", epoch).permutation(len(self.prompts))
        chosen = order[place * self._per_step : (place + 1) * self._per_step]
        if extra > 0:
            others = np.setdiff1d(order, chosen)
            generator(*self._seed, "refill", step).shuffle(others)  # the name seeds the order, so it must not change
            chosen = others[(extra - 1) * self._per_step : extra * self._per_step]
        return [self.prompts[i] for i in chosen]
