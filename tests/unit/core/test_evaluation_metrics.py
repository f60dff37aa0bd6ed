"""Metrics of an evaluation, with expected values by hand: counts, failed verdicts, and votes for answers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from synthetic_run import FAILED, RIGHT, UNREAD, WRONG, group
from winnow.core import evaluation
from winnow.core.evaluation import Judged, count_votes, greedy_metrics, judged, judged_row, maj_at
from winnow.records import Outcome

TAGGED = Outcome(reward=1.1, correct=True, kind="correct", parts={"numeric": 1.0, "format": 1.0}, answer="4")
UNTAGGED = Outcome(reward=1.0, correct=True, kind="correct", parts={"numeric": 1.0, "format": 0.93}, answer="4")
WRONG_TAGGED = Outcome(reward=0.1, correct=False, kind="wrong", parts={"numeric": 0.0, "format": 1.0}, answer="5")
EMPTY_TAGS = Outcome(reward=0.1, correct=False, kind="unparsable", parts={"numeric": 0.0, "format": 1.0})


def per_problem(problems, k):
    return evaluation.per_problem(problems, [count_votes(one) for one in problems], k)


def sampled_metrics(problems, k):
    return evaluation.sampled_metrics(problems, per_problem(problems, k))


def problem(*outcomes):
    return judged(group("p", outcomes))


def wrong(answer):
    return Outcome(reward=0.0, correct=False, kind="wrong", answer=answer)


@pytest.mark.parametrize(
    ("outcome", "category", "formatted"),
    [
        (RIGHT, "correct", True),  # without a part `format`, an answer that was read is in the right format
        (WRONG, "wrong answer", True),
        (UNREAD, "wrong format", False),
        (FAILED, "failed", False),
        (TAGGED, "correct", True),
        (UNTAGGED, "wrong format", False),  # right, and not in the format
        (WRONG_TAGGED, "wrong answer", True),
        (EMPTY_TAGS, "wrong answer", True),
    ],
)
def test_a_rollout_is_of_one_of_three_categories_or_failed(outcome, category, formatted):
    (one,) = problem(outcome)
    assert (one.category, one.formatted) == (category, formatted)


def test_values_are_per_problem_and_without_failures():
    values = per_problem([problem(TAGGED, UNTAGGED, WRONG_TAGGED, FAILED), problem(*[FAILED] * 4)], 3)
    assert {name: found[0] for name, found in values.items()} == pytest.approx(
        {
            "accuracy_sampled": 2 / 3,
            "formatted": 2 / 3,
            "correct_and_formatted": 1 / 3,
            "pass_at_3": 1.0,
            "maj_at_3": 1.0,
        }
    )
    assert all(math.isnan(found[1]) for found in values.values())


def test_metrics_are_means_over_problems():
    found = sampled_metrics([problem(TAGGED, WRONG_TAGGED), problem(UNTAGGED, FAILED), problem(FAILED, FAILED)], 2)
    assert found == pytest.approx(
        {
            "length_mean": 3.0,
            "truncated": 0.5,  # the second rollout of each
            "failed": 3.0,
            "accuracy_sampled": 0.75,  # (1/2 + 1) / 2
            "formatted": 0.5,
            "correct_and_formatted": 0.25,
            "pass_at_2": 1.0,  # the first problem alone has two verdicts
            "maj_at_2": 0.5,  # one vote each
            "accuracy_sampled_sem": 0.25,
            "reward_mean": (1.1 + 0.1 + 1.0) / 3,
            "part/numeric": 2 / 3,
            "part/format": (1 + 1 + 0.93) / 3,
        }
    )


def test_without_a_verdict_there_is_no_accuracy():
    found = sampled_metrics([problem(FAILED, FAILED)], 2)
    assert found == {"length_mean": 3.0, "truncated": 0.5, "failed": 2.0}
    assert greedy_metrics([problem(FAILED)]) == {}


def test_votes_for_one_number_are_votes_for_one_answer():
    rollouts = problem(
        RIGHT, wrong("0.5"), wrong(r"\frac{1}{2}"), wrong("1/2"), wrong("X + 1"), wrong("x+1"), UNREAD, FAILED
    )
    right, others, unanswered, undisclosed = count_votes(rollouts)
    assert (right, sorted(others), unanswered, undisclosed) == (1, [2, 3], 1, 0)


def test_the_majority_of_all_rollouts():
    several = [
        problem(RIGHT, RIGHT, wrong("5"), wrong("6")),
        problem(RIGHT, wrong("5"), wrong("5"), UNREAD),
        problem(RIGHT, RIGHT, wrong("5"), wrong("5")),  # a tie counts by its right share
        problem(*[UNREAD] * 4),
        problem(RIGHT, RIGHT, RIGHT, FAILED),  # too few verdicts
    ]
    np.testing.assert_array_equal(maj_at([count_votes(one) for one in several], 4), [1.0, 0.0, 0.5, 0.0, np.nan])


def test_without_the_answers_of_wrong_rollouts_there_is_no_majority():
    """A reward that returns 0 or 1: three of four may have agreed on a wrong answer."""
    several = [problem(RIGHT, wrong(None), wrong(None), UNREAD), problem(RIGHT, RIGHT, RIGHT, RIGHT)]
    ballots = [count_votes(one) for one in several]
    assert ballots[0] == (1, (), 1, 2)
    assert [ballot.verified for ballot in ballots] == [4, 4]
    assert np.isnan(maj_at(ballots, 4)).all()
    assert "maj_at_4" not in sampled_metrics(several, 4)
    assert sampled_metrics(several, 4)["pass_at_4"] == 1.0


def test_a_line_of_the_file_has_the_fields_of_the_rollout():
    row = {
        "kind": "failed", "correct": None, "reward": None, "parts": {}, "answer_read": None, "length": 3,
        "finish": "length", "late": True,
    }  # fmt: skip
    one = judged_row(row)
    assert math.isnan(one.reward)
    assert one._replace(reward=0.0) == Judged("failed", None, 0.0, {}, None, 3, True, True)
