"""The fields of a judged rollout that an evaluation reads, from a group or from a line of a file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from winnow.records import Group, Kind

Category = Literal["correct", "wrong answer", "wrong format", "failed"]


class Judged(NamedTuple):
    """A rollout without its text and tokens."""

    kind: Kind
    correct: bool | None  # None: the verifier failed
    reward: float  # NaN: the verifier failed
    parts: Mapping[str, float]
    answer: str | None
    length: int  # completion tokens
    truncated: bool  # truncated at max_new_tokens
    late: bool  # the verdict depends on a limit of wall-clock time

    @property
    def verified(self) -> bool:
        return self.correct is not None

    @property
    def formatted(self) -> bool:
        """Whether the format is right: the reward's part `format` is 1 or, without this part, an answer was read."""
        return self.parts["format"] >= 1.0 if "format" in self.parts else self.kind in ("correct", "wrong")

    @property
    def category(self) -> Category:
        """The category of the rollout. A right answer in a wrong format counts as "wrong format"."""
        if not self.verified:
            return "failed"
        if not self.formatted:
            return "wrong format"
        return "correct" if self.correct else "wrong answer"


def judged(group: Group) -> tuple[Judged, ...]:
    """[N] the judged rollouts of a group that has outcomes."""
    return tuple(
        Judged(o.kind, o.correct, o.reward, o.parts, o.answer, len(r.tokens), r.finish == "length", o.late)
        for r, o in zip(group.rollouts, group.outcomes or (), strict=True)
    )


def judged_row(row: Mapping[str, Any]) -> Judged:
    """The judged rollout of a line in an evaluation's file of rollouts. Raises KeyError where a field is missing."""
    reward = math.nan if row["reward"] is None else row["reward"]
    of_rollout = row["length"], row["finish"] == "length", row["late"]
    return Judged(row["kind"], row["correct"], reward, row["parts"], row["answer_read"], *of_rollout)
