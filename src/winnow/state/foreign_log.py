"""What the log of every other trainer becomes: groups of rollouts, and from them winnow's rows and metrics.

Metrics of rewards and groups are computed from the logged rollouts, by winnow's definitions. Only what rollouts do not
show (losses, lengths in tokens, seconds, evaluations) is taken from the trainer's own metrics. What neither has stays
absent: no log-probs, no token ids, no seconds of verdicts, and often no lengths.
"""

from __future__ import annotations

import math
import tomllib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from winnow.algos.group_metrics import group_metrics, reward_metrics
from winnow.errors import ConfigError, DataError, near_miss
from winnow.records import BoolArray, FloatArray
from winnow.state.disk import errors_as
from winnow.state.log import encode

if TYPE_CHECKING:
    import pyarrow as pa


MANY = 12  # names in a note
KINDS = {None: None, True: "correct", False: "wrong"}  # of a verdict
SETTINGS = "winnow.toml"
WEIGHTS, GROUP, VERDICTS = KEYS = ("reward_weights", "rollouts_per_prompt", "correct_by")


@dataclass(frozen=True, kw_only=True)
class ForeignGroup:
    """One prompt's rollouts of one step, [N] each."""

    prompt_id: str
    prompt: str
    answer: Any  # the gold answer; None where it is not logged
    texts: Sequence[str]
    rewards: FloatArray  # NaN: none was computed
    parts: Sequence[Mapping[str, float]]  # the rewards that it is the sum of, before their weights
    kept: BoolArray  # whether the trainer trained on it
    advantages: FloatArray | None  # None where they are not logged
    lengths: FloatArray  # tokens; estimates in most logs, NaN where even these are impossible
    correct: BoolArray | None = None  # None: the log does not show it

    def __post_init__(self) -> None:
        """Raises ConfigError if the rollouts have different numbers of rewards, texts or other fields."""
        columns = ("texts", "rewards", "parts", "kept", "advantages", "lengths", "correct")
        counts = {name: len(of) for name in columns if (of := getattr(self, name)) is not None}
        if len(set(counts.values())) > 1:
            described = ", ".join(f"{count} {name}" for name, count in counts.items())
            raise ConfigError(
                f"a ForeignGroup has fields of different lengths: {described}",
                remedy="let the reader return one item of each for every rollout of the prompt",
                code="config.member_result",
            )

    @property
    def judged(self) -> BoolArray:
        return ~np.isnan(self.rewards)


class ForeignLog(ABC):
    """The log of a run in a folder. Every method reads the files when it is called, and raises DataError where one is
    missing, damaged, or does not fit the others.
    """

    program: ClassVar[str]
    names: ClassVar[str]  # of its files, for a message about a folder that has none
    above: ClassVar[int] = 0  # folders between a file of rollouts and the run's folder

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings = read_settings(path)

    @classmethod
    @abstractmethod
    def is_at(cls, path: Path) -> bool:
        """Whether a folder has the names that this trainer writes."""

    @classmethod
    @abstractmethod
    def step_of(cls, path: Path) -> int | None:
        """The step, counted from 0, in the path of a file of rollouts; None for any other path."""

    @abstractmethod
    def files(self) -> dict[int, Path]:
        """step -> file of its rollouts, in step order."""

    @abstractmethod
    def read(self, step: int) -> list[ForeignGroup]:
        """The groups of a step that has a file, with `correct` only where the log has verdicts."""

    @abstractmethod
    def measured(self) -> dict[int, dict[str, float]]:
        """step -> metrics of the trainer, by winnow's names. An evaluation after k steps is of step k."""

    @abstractmethod
    def notes(self) -> list[str]:
        """What is not read, not logged or estimated, in sentences."""

    @abstractmethod
    def restoring(self, step: int) -> str:
        """What to do about a step whose rollouts are missing, with the file that contained them; for a remedy."""

    def absence(self, step: int | None) -> tuple[str, str]:
        """(reason, remedy): why a step, or with None every step, has no rollouts to read."""
        if step is None:
            return f"{self.program} logged none there", "name another run"
        return f"it contains those of {steps_in_words(list(self.files()))}", "name another step"

    def groups(self, step: int) -> list[ForeignGroup]:
        """The groups of a step, with different ids. Where all rewards of the step are 0 or 1, they are its verdicts."""
        groups = list(_distinct(self.read(step)))
        rewards = np.concatenate([group.rewards for group in groups])
        if self.settings.correct_by is not None or not np.isin(rewards[~np.isnan(rewards)], (0.0, 1.0)).all():
            return groups
        return [
            group if group.correct is not None else replace(group, correct=group.rewards == 1.0) for group in groups
        ]

    def no_rollouts(self, step: int | None) -> DataError:
        """The error about a step, or with None about a log, without rollouts."""
        reason, remedy = self.absence(step)
        of = "" if step is None else f" of step {step}"
        return DataError(f"{self.path} contains no rollouts{of}: {reason}", remedy=remedy, code="data.missing")

    def table(self, step: int) -> pa.Table:
        """The rollouts of a step with winnow's columns; null where the log has nothing."""
        from winnow.state.rollout_columns import foreign_table

        if step not in self.files():
            raise self.no_rollouts(step)
        groups = self.groups(step)
        rows = [row for group in groups for row in _rows(step, group)]
        return foreign_table({name: [row[name] for row in rows] for name in rows[0]}, len(rows))

    def rows(self) -> list[dict[str, float]]:
        """Rows as of metrics.jsonl, in step order. Accuracies are absent unless every step has verdicts."""
        by_step = {step: self.groups(step) for step in self.files()}
        verdicts = all(group.correct is not None for groups in by_step.values() for group in groups)
        measured = self.measured()
        rows = []
        for step in sorted({*by_step, *measured}):
            own = _metrics(by_step[step], accuracies=verdicts) if step in by_step else {}
            rows.append({"step": step, **own, **measured.get(step, {})})
        return rows


def steps_in_words(steps: Sequence[int]) -> str:
    """A run's steps in words: "step 3", or their number with the first and the last."""
    return f"{len(steps)} steps from {steps[0]} to {steps[-1]}" if len(steps) > 1 else f"step {steps[0]}"


def _distinct(groups: Iterable[ForeignGroup]) -> Iterator[ForeignGroup]:
    """The groups; a further one of the same prompt has a number after its id."""
    seen: Counter[str] = Counter()
    for group in groups:
        seen[group.prompt_id] += 1
        count = seen[group.prompt_id]
        yield group if count == 1 else replace(group, prompt_id=f"{group.prompt_id}-{count}")


def _rows(step: int, group: ForeignGroup) -> Iterator[dict[str, Any]]:
    count, answer = len(group.rewards), encode(group.answer).decode()
    for index in range(count):
        failed = not group.judged[index]
        correct = None if failed or group.correct is None else bool(group.correct[index])
        length = float(group.lengths[index])
        advantage = math.nan if group.advantages is None else float(group.advantages[index])
        yield {
            "step": step, "seed": 0, "prompt_id": group.prompt_id, "prompt": group.prompt, "prompt_tokens": [],
            "answer": answer, "task": "", "meta": "{}", "count": count, "index": index, "text": group.texts[index],
            "length": None if math.isnan(length) else int(length), "version": step,
            "reward": float(group.rewards[index]), "correct": correct,
            "kind": "failed" if failed else KINDS[correct],
            "parts": encode(dict(group.parts[index])).decode(),
            "cause": "malformed" if failed else None, "detail": "no reward was computed" if failed else "",
            "seconds": math.nan, "late": False, "keep": bool(group.kept[index]),
            "reason": "failed: malformed" if failed else "trained" if group.kept[index] else "not selected",
            "advantage": None if math.isnan(advantage) else advantage,
        }  # fmt: skip


def _metrics(groups: Sequence[ForeignGroup], *, accuracies: bool) -> dict[str, float]:
    rewards = [group.rewards[group.judged] for group in groups]
    correct = [np.asarray(group.correct)[group.judged] for group in groups] if accuracies else None
    lengths = np.concatenate([group.lengths for group in groups])
    kept = np.concatenate([group.kept for group in groups])
    judged = sum(map(len, rewards))
    row = {
        "budget/rollouts": float(len(kept)),
        "group/count": float(len(groups)),
        "outcome/failed": float(len(kept) - judged),
        "select/kept": float(kept.sum()),
        "select/trained": float(kept.sum()),
        **reward_metrics(rewards, correct),
        **group_metrics(rewards, correct),
    }
    if correct is not None:
        right = float(sum(of.sum() for of in correct))
        row |= {"outcome/correct": right, "outcome/wrong": judged - right}
    if not np.isnan(lengths).any():
        row |= spent(float(lengths.sum()), float(lengths[kept].sum()))
    if all(group.advantages is not None for group in groups):
        credit = np.concatenate([np.asarray(group.advantages)[group.kept] for group in groups])
        if len(credit) and not np.isnan(credit).any():
            row |= {"advantage/mean": float(credit.mean()), "advantage/std": float(credit.std())}
    return row


def spent(generated: float, trained: float) -> dict[str, float]:
    """The metrics of the tokens of a step, in which everything that is kept is trained on."""
    return {
        "budget/tokens_generated": generated,
        "budget/tokens_kept": trained,
        "budget/tokens_trained": trained,
        "budget/tokens_wasted": generated - trained,
    }


def listed(names: Iterable[str]) -> str:
    """The first names for a note, and how many more there are."""
    every = list(dict.fromkeys(names))
    more = f" and {len(every) - MANY} more" if len(every) > MANY else ""
    return ", ".join(every[:MANY]) + more


@dataclass(frozen=True)
class ReadingSettings:
    """winnow.toml in the folder of another trainer's run: values that its log does not contain, given by the user.

    None for a key that the file does not have.
    """

    reward_weights: Mapping[str, float] | None = None  # TRL: the name of a reward function -> its weight
    rollouts_per_prompt: int | None = None  # where the log does not show where a group ends
    # TRL: the reward function whose 1 is a correct completion. Without it, rewards are verdicts in a step in which all
    # of them are 0 or 1, and elsewhere there is none.
    correct_by: str | None = None


def read_settings(folder: Path) -> ReadingSettings:
    """The settings in a folder; without a file, none is given. Raises ConfigError."""
    path = folder / SETTINGS
    wrong = (tomllib.TOMLDecodeError, UnicodeDecodeError)
    with (
        errors_as(ConfigError, f"cannot read {path}", "make it readable", code="config.unreadable"),
        errors_as(ConfigError, f"{path} is no TOML", "repair it", code="config.unreadable", of=wrong),
    ):
        if not path.exists():
            return ReadingSettings()
        table = tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    for key in table:
        if key not in KEYS:
            raise ConfigError(
                f"{path}: there is no key {key!r}", remedy=near_miss(key, KEYS), key=key, code="config.unknown_key"
            )
    weights, group, verdicts = map(table.get, KEYS)
    if weights is not None and not (isinstance(weights, dict) and weights and all(map(_is_number, weights.values()))):
        raise _unusable(path, WEIGHTS, weights, "each weight by name, such as { accuracy_reward = 1.0, length = 0.5 }")
    if group is not None and (not isinstance(group, int) or isinstance(group, bool) or group < 1):
        raise _unusable(path, GROUP, group, "a number of rollouts, such as 8")
    if verdicts is not None and not isinstance(verdicts, str):
        raise _unusable(path, VERDICTS, verdicts, "the name of a reward function")
    return ReadingSettings(weights, group, verdicts)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _unusable(path: Path, key: str, value: Any, form: str) -> ConfigError:
    return ConfigError(f"{path}: {key} is {value!r}", remedy=f"write {form}", key=key, code="config.value")
