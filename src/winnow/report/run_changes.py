"""What resumes changed of a run, by its manifest, and which of its evaluations are therefore alike.

A manifest may be anyone's: what is not as winnow writes it is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from winnow.state.resume_changes import evaluated_since

LATEST = 10**15  # no run counts steps up to it

Change = Mapping[str, Any]  # step, key, was, now


@dataclass(frozen=True, slots=True)
class Evaluations:
    """The evaluations of a run that can be set beside each other: those from step `since` on."""

    since: int = 0
    held_out: bool = True  # whether their problems are not those that the run trains on

    @property
    def of(self) -> str:
        """What they are of, in words."""
        return "held out" if self.held_out else "training split"

    @property
    def since_when(self) -> str:
        """ "; evaluated so from step 12 on", to end a sentence with; nothing where it was always so."""
        return f"; evaluated so from step {self.since} on" * bool(self.since)

    def rows(self, rows: Sequence[Mapping[str, float]]) -> list[Mapping[str, float]]:
        """Those of the rows that may hold one of these evaluations."""
        return [row for row in rows if row["step"] >= self.since]


EVALUATIONS = Evaluations()


def changes_in(manifest: Mapping[str, Any]) -> list[Change]:
    """The changes that a manifest lists, oldest first."""
    found = manifest.get("changes")
    return [change for change in found if _is_change(change)] if isinstance(found, list) else []


def evaluations(config: Mapping[str, Any], changes: Sequence[Change]) -> Evaluations:
    """The evaluations that were made as the configuration says."""
    section = config.get("evaluate")
    split = section.get("split") if isinstance(section, Mapping) else None
    return Evaluations(evaluated_since(changes), split != "train")


def _is_change(change: Any) -> bool:
    if not isinstance(change, Mapping) or not isinstance(change.get("key"), str):
        return False
    step = change.get("step")
    return isinstance(step, int) and not isinstance(step, bool) and 0 <= step < LATEST
