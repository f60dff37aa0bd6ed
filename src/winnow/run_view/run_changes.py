"""The changes that resumes made to a run, from its manifest, and the evaluations that are comparable after them.

A manifest may come from anyone: entries that winnow would not write are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from winnow.state.resume_changes import evaluated_since

LATEST = 10**15  # larger than any number of steps

Change = Mapping[str, Any]  # step, key, was, now


@dataclass(frozen=True, slots=True)
class Evaluations:
    """The evaluations of a run that can be compared with each other: those from step `since` on."""

    since: int = 0
    held_out: bool = True  # whether their problems are not training problems

    @property
    def of(self) -> str:
        """The split of the problems, in words."""
        return "held out" if self.held_out else "training split"

    @property
    def since_when(self) -> str:
        """ "; evaluated so from step 12 on", as the end of a sentence; empty if all evaluations are comparable."""
        return f"; evaluated so from step {self.since} on" * bool(self.since)

    def rows(self, rows: Sequence[Mapping[str, float]]) -> list[Mapping[str, float]]:
        """The rows that may contain one of these evaluations."""
        return [row for row in rows if row["step"] >= self.since]


EVALUATIONS = Evaluations()


def changes_in(manifest: Mapping[str, Any]) -> list[Change]:
    """The changes that a manifest lists, oldest first."""
    changes = manifest.get("changes")
    return [change for change in changes if _is_change(change)] if isinstance(changes, list) else []


def evaluations(config: Mapping[str, Any], changes: Sequence[Change]) -> Evaluations:
    """The evaluations that were made with the settings of the configuration."""
    section = config.get("evaluate")
    split = section.get("split") if isinstance(section, Mapping) else None
    return Evaluations(evaluated_since(changes), split != "train")


def _is_change(change: Any) -> bool:
    if not isinstance(change, Mapping) or not isinstance(change.get("key"), str):
        return False
    step = change.get("step")
    return isinstance(step, int) and not isinstance(step, bool) and 0 <= step < LATEST
