"""What a tracker is: made for a run, told what the run logs, and closed. All of it is called in one thread, its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Status = Literal["finished", "interrupted", "failed"]


@dataclass(frozen=True)
class TrackedRun:
    """The run that a tracker is made for."""

    name: str  # of its folder
    folder: Path
    config: Mapping[str, Any]  # resolved, nested, as JSON has it
    first_step: int  # of what this launch logs: what an earlier one logged from here on counts no more
    id: str | None = None  # the tracker's own `id` at an earlier launch of this run; None: it begins


class Tracker:
    """Told everything that is logged, in order. To derive from, or to be alike: each method may do nothing.

    A step's metrics come in one call; an evaluation of the weights before a step comes in another, with the same step.
    What raises is told to the user, and the run goes on (docs/trackers.md). Nothing may be printed or asked for.
    """

    id: str | None = None  # kept in the run folder, and given to the tracker of a resume

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Metrics by name; a number that is not finite is NaN."""

    def rollouts(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Rollouts of a step, each with the columns of `ROLLOUT`. Their texts are data, whatever stands in them."""

    def notice(self, step: int, text: str) -> None:
        """Something a person should read."""

    def picture(self, step: int, name: str, png: bytes) -> None:
        """A picture of the run up to a step."""

    def close(self, status: Status) -> None:
        """The launch ended; nothing comes after this."""


# What a tracker is given of a rollout (state/rollout_columns.py says what each is).
ROLLOUT = (
    "prompt_id", "prompt", "answer", "index", "text", "reward", "correct", "kind", "advantage", "keep", "reason",
    "length", "finish", "version",
)  # fmt: skip
