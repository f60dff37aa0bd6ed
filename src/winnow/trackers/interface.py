"""The interface of a tracker: created for a run, called with all that the run logs, and closed.

Each tracker has a thread of its own, in which all of this happens. The configuration that it receives has no secrets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Status = Literal["finished", "interrupted", "failed"]
# The columns of a rollout that a tracker receives; state/rollout_columns.py documents them.
ROLLOUT = (
    "prompt_id", "prompt", "answer", "index", "text", "reward", "correct", "kind", "advantage", "keep", "reason",
    "length", "finish", "version",
)  # fmt: skip


LOGIN = re.compile(r"(?<=://)[^/?#\s]*@")  # "user:password@" of an address; a password may contain "@"


@dataclass(frozen=True)
class TrackedRun:
    """The run that a tracker is created for."""

    name: str  # of the run folder
    folder: Path
    config: Mapping[str, Any]  # resolved, nested, as in JSON
    first_step: int  # that this launch logs; it replaces the rows of earlier launches from this step on
    id: str | None = None  # the tracker's `id` at an earlier launch of this run; None at the first launch


class Tracker:
    """Receives everything that is logged, in order. A tracker derives from this class or has the same methods; each
    method may do nothing.

    A step's metrics come in one call. An evaluation of the weights before a step comes in another call with the same
    step. After an exception the user gets a notice and training continues (docs/watching.md). A tracker must not
    print or prompt.
    """

    id: str | None = None  # kept in the run folder, and given to the tracker at a resume

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Metrics by name; a number that is not finite is NaN."""

    def rollouts(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Rollouts of a step, each with the columns of `ROLLOUT`. Their texts are data, never markup or commands."""

    def notice(self, step: int, text: str) -> None:
        """A notice for the user."""

    def picture(self, step: int, name: str, png: bytes) -> None:
        """A plot of the run up to a step, as PNG."""

    def close(self, status: Status) -> None:
        """The launch ended; this is the last call."""


def without_secrets(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with only the names of its trackers, as their options may contain a password. User names and
    passwords are removed from all addresses.
    """
    named = [tracker["use"] for tracker in config.get("track", ())]
    return {name: _without_logins(value) for name, value in {**config, "track": named}.items()}


def _without_logins(value: Any) -> Any:
    if isinstance(value, str):
        return LOGIN.sub("", value)
    if isinstance(value, Mapping):
        return {name: _without_logins(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_logins(inner) for inner in value]
    return value
