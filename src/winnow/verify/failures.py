"""Is the verifier still to be trusted? The rule that stops a run: a step's verdicts, an evaluation's, training's last
1,000.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

from winnow.errors import VerifierError
from winnow.records import Cause, Outcome

WINDOW = 1000
FEWEST_FAILURES = 20  # below it a share says little


def judge(outcomes: Sequence[Outcome], *, what: str, name: str, max_failure_share: float) -> None:
    """Judge the verdicts of one `what` (an "evaluation") by themselves. Raises VerifierError as `Window.observe`."""
    _judge(outcomes, [outcome.cause for outcome in outcomes], what, "its", name, max_failure_share)


class Window:
    """The causes of training's last verdicts, oldest first; None where there was a verdict."""

    def __init__(self) -> None:
        self._causes: deque[Cause | None] = deque(maxlen=WINDOW)

    def observe(self, outcomes: Sequence[Outcome], *, name: str, max_failure_share: float) -> None:
        """Take in the outcomes of one whole step. Raises VerifierError when failures pass the share of the window and
        number at least 20, or when there is nothing but failures.
        """
        self._causes.extend(outcome.cause for outcome in outcomes)
        _judge(outcomes, self._causes, "step", "its last", name, max_failure_share)

    def state_dict(self) -> dict[str, Any]:
        """JSON: how many verdicts, and which of them failed of what."""
        failures = [[place, cause] for place, cause in enumerate(self._causes) if cause is not None]
        return {"verdicts": len(self._causes), "failures": failures}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        causes: dict[int, Cause] = dict(state["failures"])
        self._causes = deque((causes.get(place) for place in range(state["verdicts"])), maxlen=WINDOW)


def _judge(
    outcomes: Sequence[Outcome], seen: Sequence[Cause | None], what: str, which: str, name: str, most: float
) -> None:
    """`outcomes` must not all be failures, nor may more than `most` of `seen`, of which they are the last."""
    failed = [outcome for outcome in outcomes if outcome.failed]
    causes = [cause for cause in seen if cause is not None]
    if failed and len(failed) == len(outcomes):
        raise VerifierError(_complain(name, f"every verdict of this {what}", what, failed, []))
    if failed and len(causes) >= FEWEST_FAILURES and len(causes) / len(seen) > most:
        where = f"{len(causes)} of {which} {len(seen)} verdicts (limit {most:.1%})"
        raise VerifierError(_complain(name, where, what, failed, causes))


def _complain(name: str, where: str, what: str, failed: Sequence[Outcome], causes: Sequence[Cause | None]) -> str:
    counts = Counter(causes or (outcome.cause for outcome in failed))
    shown = ", ".join(f"{count} {cause}" for cause, count in counts.most_common())
    first = failed[0].detail.strip()
    return (
        f"the reward {name!r} failed on {where}: {shown}. The first failure of this {what}: {first}\n"
        f"A failure is not a wrong answer, so the run stops. Repair the reward; for time and memory see "
        f"verify.timeout_seconds and verify.memory_mb, for the limit itself verify.max_failure_share"
    )
