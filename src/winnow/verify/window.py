"""Is the verifier still to be trusted? Its last 1,000 verdicts, and the rule that stops a run."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

from winnow.errors import VerifierError
from winnow.records import Cause, Outcome

WINDOW = 1000
FEWEST_FAILURES = 20  # below it a share says little


class Window:
    """The causes of the last verdicts, oldest first; None where there was a verdict."""

    def __init__(self) -> None:
        self._causes: deque[Cause | None] = deque(maxlen=WINDOW)

    def observe(self, outcomes: Sequence[Outcome], *, name: str, max_failure_share: float) -> None:
        """Take in the outcomes of one step. Raises VerifierError when failures pass the share of the window and number
        at least 20, or when there is nothing but failures.
        """
        self._causes.extend(outcome.cause for outcome in outcomes)
        failed = [outcome for outcome in outcomes if outcome.failed]
        if failed and len(failed) == len(outcomes):
            raise VerifierError(_complain(name, "every verdict of this step", failed))
        causes = [cause for cause in self._causes if cause is not None]
        share = len(causes) / max(1, len(self._causes))
        if failed and len(causes) >= FEWEST_FAILURES and share > max_failure_share:
            where = f"{len(causes)} of its last {len(self._causes)} verdicts (limit {max_failure_share:.1%})"
            raise VerifierError(_complain(name, where, failed, causes))

    def state_dict(self) -> dict[str, Any]:
        """JSON: how many verdicts, and which of them failed of what."""
        failures = [[place, cause] for place, cause in enumerate(self._causes) if cause is not None]
        return {"verdicts": len(self._causes), "failures": failures}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        causes: dict[int, Cause] = dict(state["failures"])
        self._causes = deque((causes.get(place) for place in range(state["verdicts"])), maxlen=WINDOW)


def _complain(name: str, where: str, failed: Sequence[Outcome], causes: Sequence[Cause | None] = ()) -> str:
    counts = Counter(causes or [outcome.cause for outcome in failed])
    shown = ", ".join(f"{count} {cause}" for cause, count in counts.most_common())
    return (
        f"the reward {name!r} failed on {where}: {shown}. The first failure of this step: {failed[0].detail.strip()}\n"
        f"A failure is not a wrong answer, so the run stops. Repair the reward; for time and memory see "
        f"verify.timeout_seconds and verify.memory_mb, for the limit itself verify.max_failure_share"
    )
