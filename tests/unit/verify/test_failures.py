from __future__ import annotations

import json
import math

import pytest

from winnow.errors import VerifierError
from winnow.records import Cause, Outcome
from winnow.verify.failures import Window, judge

GOOD = Outcome(reward=1.0, correct=True, kind="correct")


def bad(cause: Cause = "raised", detail: str = "no idea") -> Outcome:
    return Outcome(reward=math.nan, correct=None, kind="failed", cause=cause, detail=detail)


def observe(window: Window, *outcomes: Outcome, share: float = 0.05) -> None:
    window.observe(outcomes, name="mine", max_failure_share=share)


def test_nineteen_failures_are_too_few_to_judge_by():
    window = Window()
    observe(window, GOOD, *[bad()] * 19)
    with pytest.raises(VerifierError, match="20 of its last 22 verdicts"):
        observe(window, GOOD, bad())


def test_the_share_must_be_passed_not_met():
    window = Window()
    observe(window, *[bad()] * 20, *[GOOD] * 380)  # exactly 5 %
    with pytest.raises(VerifierError, match=r"21 of its last 402 verdicts \(limit 5\.0%\)"):
        observe(window, GOOD, bad())


def test_only_the_last_thousand_count():
    window = Window()
    observe(window, *[bad()] * 40, GOOD, share=1.0)
    observe(window, *[GOOD] * 1000)
    observe(window, *[bad()] * 20, *[GOOD] * 400)
    assert window.state_dict()["verdicts"] == 1000


def test_a_step_of_nothing_but_failures_stops_at_once():
    with pytest.raises(VerifierError) as caught:
        observe(Window(), bad("timeout", "no verdict within 5 seconds"), bad("crash"), bad("timeout"))
    message = str(caught.value)
    assert "'mine' failed on every verdict of this step: 2 timeout, 1 crash" in message
    assert "no verdict within 5 seconds" in message
    assert "verify.max_failure_share" in message


def test_a_step_without_rollouts_is_no_failure():
    observe(Window())


def test_no_failure_no_complaint_even_where_the_window_is_bad():
    window = Window()
    observe(window, *[bad()] * 30, GOOD, share=1.0)
    observe(window, GOOD, share=0.05)


def test_the_state_is_json_and_goes_on_where_it_was():
    first, second = Window(), Window()
    observe(first, GOOD, *[bad("timeout")] * 12, *[GOOD] * 40, *[bad("memory")] * 7)
    state = json.loads(json.dumps(first.state_dict()))
    second.load_state_dict(state)
    assert second.state_dict() == first.state_dict()
    for window in (first, second):
        with pytest.raises(VerifierError, match=r"20 of its last 62 verdicts.*12 timeout, 7 memory, 1 raised"):
            observe(window, GOOD, bad())


def test_an_evaluation_is_judged_by_itself_and_over_all_of_it():
    outcomes = [bad()] * 70 + [GOOD] * 1330  # exactly 5 %
    judge(outcomes, what="evaluation", name="mine", max_failure_share=0.05)
    with pytest.raises(VerifierError, match=r"71 of its 1401 verdicts \(limit 5\.0%\).*failure of this evaluation: no"):
        judge([*outcomes, bad()], what="evaluation", name="mine", max_failure_share=0.05)


def test_nineteen_failures_are_too_few_for_an_evaluation_but_not_if_they_are_all():
    judge([GOOD, *[bad()] * 19], what="evaluation", name="mine", max_failure_share=0.05)
    with pytest.raises(VerifierError, match="every verdict of this evaluation: 1 raised"):
        judge([bad()], what="evaluation", name="mine", max_failure_share=0.05)
    judge([], what="evaluation", name="mine", max_failure_share=0.05)
