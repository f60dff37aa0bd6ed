"""The split of a problem: a pure function of its text, so that splits are always disjoint."""

from __future__ import annotations

from typing import Literal, get_args

from winnow.errors import ConfigError, near_miss
from winnow.seeds import uniform

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
