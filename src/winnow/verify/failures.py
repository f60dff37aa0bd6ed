"""Failed verifications: the outcome that a rollout gets, and the rule that stops a run.

Without a verdict the outcome is a failure, which has no reward and is never trained on:

    no verdict within verify.timeout_seconds      failed(timeout); the worker is killed
    more memory than verify.memory_mb             failed(memory); a new worker replaces it
    the worker crashed or sent no valid verdict   judged once more by a new worker, then failed(crash)

A reward that raises is failed(raised), one that returns something invalid failed(malformed): see rewards/outcomes.py.
Too many failures stop the run, counted over a step, over an evaluation, or over training's last 1,000 verdicts.
"""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

from winnow.errors import VerifierError, signal_name
from winnow.records import Cause, Outcome
from winnow.rewards.outcomes import failure

OUT_OF_MEMORY = 86  # a worker's exit status, because a process without memory may fail to write a report
SOCKET_HINT = "does the reward write to file descriptors that it has not opened?"
WINDOW = 1000
FEWEST_FAILURES = 20  # with fewer failures their share is too uncertain
STARTS_WITHOUT_VERDICT = 3


def timed_out(timeout_seconds: float, *, first_verdict_seconds: float | None = None) -> Outcome:
    """The outcome of a task whose worker was killed at its limit.

    `first_verdict_seconds` is the longer limit of a worker's first verdict, if the task was its first.
    """
    detail = f"no verdict within {timeout_seconds:g} seconds; the worker was killed"
    if first_verdict_seconds is not None:
        detail += f" after {first_verdict_seconds:.3g}, the limit of a first verdict, which includes imports"
    return failure("timeout", detail)


def worker_ended(status: int, *, peak_mb: float, memory_mb: int, valid_lines: bool) -> Outcome:
    """The outcome of the task that a worker was judging when it ended with the wait status `status`.

    `peak_mb` is the most memory that it used, `memory_mb` its limit, both in addition to the reward's imports.
    `valid_lines` is False for a worker that was killed because it sent a line that was no verdict of its task.
    """
    if not valid_lines:
        detail = f"the worker sent a line that is no verdict of its task, and so did a second one; {SOCKET_HINT}"
        return failure("crash", detail)
    if os.WIFSIGNALED(status):
        name = signal_name(os.WTERMSIG(status))
        if peak_mb > 0.8 * memory_mb:
            detail = f"the worker was killed by {name} at {peak_mb:.0f} MB, with a limit of {memory_mb} MB"
            return failure("memory", detail)
        return failure("crash", f"the worker was killed by {name}, and so was a second one")
    code = os.WEXITSTATUS(status)
    if code == OUT_OF_MEMORY:
        return failure("memory", f"more than {memory_mb} MB of memory")
    return failure("crash", f"the worker exited with status {code}, and so did a second one")


def is_retried(outcome: Outcome, *, crashed_before: bool, beside_others: bool) -> bool:
    """Whether a task is judged once more: after its first crash, which the machine may have caused, not the reward.

    `beside_others`: the worker kept other generators, which may have taken the memory that was missing.
    """
    causes = ("crash", "memory") if beside_others else ("crash",)
    return outcome.cause in causes and not crashed_before


def check_restart(name: str, starts: int, status: int | None) -> None:
    """Raise VerifierError when the supervisor of the reward `name` has exited too often without a single verdict.

    `starts` counts its starts since the last verdict, `status` is its exit status.
    """
    if starts >= STARTS_WITHOUT_VERDICT:
        raise VerifierError(
            f"the process that runs the reward {name!r} exited {starts} times without a single verdict "
            f"(status {status})",
            remedy="read its output above, and set verify.workers = 0 to see the error in this process",
            code="verifier.crashed",
        )


class RecentVerdicts:
    """The causes of the last verdicts, by default 1,000, oldest first; None for a verdict that did not fail."""

    def __init__(self, most: int | None = WINDOW) -> None:
        self._causes: deque[Cause | None] = deque(maxlen=most)

    def observe(self, outcomes: Sequence[Outcome], *, name: str, max_failure_share: float, what: str = "step") -> None:
        """Add the outcomes of one whole step or evaluation (`what`).

        Raises VerifierError when at least 20 of these last verdicts, and more than the share, are failures, or when
        all of these outcomes are.
        """
        self._causes.extend(outcome.cause for outcome in outcomes)
        failed = [outcome for outcome in outcomes if outcome.failed]
        causes = [cause for cause in self._causes if cause is not None]
        if failed and len(failed) == len(outcomes):
            where, causes = f"every verdict of this {what}", [outcome.cause for outcome in failed if outcome.cause]
        elif failed and len(causes) >= FEWEST_FAILURES and len(causes) / len(self._causes) > max_failure_share:
            which = "its last" if what == "step" else "its"
            where = f"{len(causes)} of {which} {len(self._causes)} verdicts (limit {max_failure_share:.1%})"
        else:
            return
        counts = ", ".join(f"{count} {cause}" for cause, count in Counter(causes).most_common())
        raise VerifierError(
            f"the reward {name!r} failed on {where}: {counts}. The first failure of this {what}: "
            f"{failed[0].detail.strip()}\nA failure is not a wrong answer, so the run stops",
            remedy="repair the reward; for time and memory see verify.timeout_seconds and verify.memory_mb, for the "
            "limit itself verify.max_failure_share",
            key="verify.max_failure_share",
            code="verifier.failed",
        )

    def state_dict(self) -> dict[str, Any]:
        """JSON: the number of verdicts, and [place, cause] of each that failed."""
        failures = [[place, cause] for place, cause in enumerate(self._causes) if cause is not None]
        return {"verdicts": len(self._causes), "failures": failures}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        causes: dict[int, Cause] = dict(state["failures"])
        self._causes = deque((causes.get(place) for place in range(state["verdicts"])), maxlen=WINDOW)
