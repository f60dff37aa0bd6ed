"""The outcome of a worker that failed, and the rule that stops a run: pure functions, numbers by hand."""

from __future__ import annotations

import json
import math
import re
import signal

import pytest

from refusals import refused
from winnow.errors import VerifierError
from winnow.records import Cause, Outcome
from winnow.verify.failures import (
    OUT_OF_MEMORY,
    SOCKET_HINT,
    RecentVerdicts,
    check_restart,
    is_retried,
    timed_out,
    worker_ended,
)

GOOD = Outcome(reward=1.0, correct=True, kind="correct")


def bad(cause: Cause = "raised", detail: str = "no idea") -> Outcome:
    return Outcome(reward=math.nan, correct=None, kind="failed", cause=cause, detail=detail)


def observe(recent: RecentVerdicts, *outcomes: Outcome, share: float = 0.05) -> None:
    recent.observe(outcomes, name="mine", max_failure_share=share)


def test_nineteen_failures_are_too_few_to_judge_by():
    recent = RecentVerdicts()
    observe(recent, GOOD, *[bad()] * 19)
    with refused(VerifierError, 20, 22, code="verifier.failed"):
        observe(recent, GOOD, bad())


def test_the_share_must_be_passed_not_met():
    recent = RecentVerdicts()
    observe(recent, *[bad()] * 20, *[GOOD] * 380)  # exactly 5 %
    with refused(VerifierError, 21, 402, "5.0%", code="verifier.failed"):
        observe(recent, GOOD, bad())


def test_only_the_last_thousand_count():
    recent = RecentVerdicts()
    observe(recent, *[bad()] * 40, GOOD, share=1.0)
    observe(recent, *[GOOD] * 1000)
    observe(recent, *[bad()] * 20, *[GOOD] * 400)
    assert recent.state_dict()["verdicts"] == 1000


def test_a_step_of_nothing_but_failures_stops_at_once():
    key = "verify.max_failure_share"
    with refused(VerifierError, "'mine'", "2 timeout", "1 crash", "first detail", key, key=key, code="verifier.failed"):
        observe(RecentVerdicts(), bad("timeout", "first detail"), bad("crash"), bad("timeout"))


def test_a_step_without_rollouts_is_no_failure():
    observe(RecentVerdicts())


def test_a_step_without_failures_passes_even_where_the_recent_share_is_high():
    recent = RecentVerdicts()
    observe(recent, *[bad()] * 30, GOOD, share=1.0)
    observe(recent, GOOD, share=0.05)


def test_the_state_is_json_and_continues_the_count():
    first, second = RecentVerdicts(), RecentVerdicts()
    observe(first, GOOD, *[bad("timeout")] * 12, *[GOOD] * 40, *[bad("memory")] * 7)
    state = json.loads(json.dumps(first.state_dict()))
    second.load_state_dict(state)
    assert second.state_dict() == first.state_dict()
    for recent in (first, second):
        with refused(VerifierError, 20, 62, "12 timeout", "7 memory", "1 raised", code="verifier.failed"):
            observe(recent, GOOD, bad())


def test_an_evaluation_is_judged_by_itself_and_over_all_of_it():
    outcomes = [bad()] * 70 + [GOOD] * 1330  # exactly 5 %
    observe(RecentVerdicts(most=None), *outcomes)
    with refused(VerifierError, 71, 1401, "5.0%", code="verifier.failed"):
        observe(RecentVerdicts(most=None), *outcomes, bad())


def test_an_evaluation_may_have_nineteen_failures_unless_all_verdicts_fail():
    observe(RecentVerdicts(most=None), GOOD, *[bad()] * 19)
    with refused(VerifierError, "1 raised", code="verifier.failed"):
        observe(RecentVerdicts(most=None), bad())
    observe(RecentVerdicts(most=None))


# the outcome without a verdict


def test_a_timeout_has_its_limit_and_that_of_a_first_verdict():
    outcome, first = timed_out(5.0), timed_out(5.0, first_verdict_seconds=55.0)
    assert (outcome.kind, outcome.cause, outcome.late) == ("failed", "timeout", True)
    assert [re.findall(r"\d+", one.detail) for one in (outcome, first)] == [["5"], ["5", "55"]]


@pytest.mark.parametrize(
    ("status", "peak_mb", "cause", "named"),
    [
        (OUT_OF_MEMORY << 8, 10.0, "memory", {"64"}),
        (9, 52.0, "memory", {"SIGKILL", "52", "64"}),  # 51.2 MB is 80 % of the limit
        (9, 51.0, "crash", {"SIGKILL"}),
        (11, 10.0, "crash", {"SIGSEGV"}),
        (3 << 8, 60.0, "crash", {"3"}),
        (0, 10.0, "crash", {"0"}),
    ],
)
def test_the_cause_is_read_from_the_wait_status_and_the_peak_of_memory(status, peak_mb, cause, named):
    outcome = worker_ended(status, peak_mb=peak_mb, memory_mb=64, valid_lines=True)
    assert (outcome.kind, outcome.cause) == ("failed", cause)
    assert math.isnan(outcome.reward)
    assert named <= set(re.findall(r"\w+", outcome.detail))


def test_a_signal_without_a_name_is_named_by_its_number():
    unnamed = next(number for number in range(1, signal.NSIG) if number not in set(signal.Signals))
    outcome = worker_ended(unnamed, peak_mb=1.0, memory_mb=64, valid_lines=True)
    assert outcome.cause == "crash"
    assert str(unnamed) in outcome.detail


def test_a_worker_that_sent_no_verdict_has_crashed_however_it_ended():
    outcome = worker_ended(OUT_OF_MEMORY << 8, peak_mb=64.0, memory_mb=64, valid_lines=False)
    assert outcome.cause == "crash"
    assert SOCKET_HINT in outcome.detail


def test_a_first_crash_is_retried_and_nothing_else():
    crash = bad("crash")
    assert is_retried(crash, crashed_before=False, beside_others=False)
    assert not is_retried(crash, crashed_before=True, beside_others=False)
    assert not any(is_retried(bad(cause), crashed_before=False, beside_others=False) for cause in ("timeout", "memory"))


def test_memory_that_other_generators_may_have_taken_is_a_reason_to_retry():
    assert is_retried(bad("memory"), crashed_before=False, beside_others=True)
    assert not is_retried(bad("memory"), crashed_before=True, beside_others=True)
    assert not is_retried(bad("timeout"), crashed_before=False, beside_others=True)


def test_a_supervisor_may_end_twice_without_a_verdict_but_not_three_times():
    check_restart("mine", 2, -9)
    with refused(VerifierError, "mine", 3, -9, code="verifier.crashed"):
        check_restart("mine", 3, -9)
