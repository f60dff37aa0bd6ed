from __future__ import annotations

import json

import numpy as np
import pytest

from winnow.records import Group, Outcome, Prompt, Rollout
from winnow.state.history import History

RIGHT = Outcome(reward=1.0, correct=True, kind="correct")
WRONG = Outcome(reward=0.0, correct=False, kind="wrong")
FAILED = Outcome(reward=float("nan"), correct=None, kind="failed", cause="timeout")


def prompt(name: str) -> Prompt:
    return Prompt(id=name, tokens=np.array([1, 2]), text="1+1=", answer="2", task="toy")


def group(name: str, *outcomes: Outcome) -> Group:
    rollouts = tuple(
        Rollout(index=i, tokens=np.array([5]), logprobs=np.array([-0.5]), text="2", finish="stop", version=0)
        for i in range(len(outcomes))
    )
    return Group(prompt=prompt(name), rollouts=rollouts, outcomes=outcomes)


def test_pass_rates_count_verified_rollouts_over_all_steps():
    history = History()
    history.observe([group("a", RIGHT, WRONG, FAILED), group("b", FAILED)])
    history.observe([group("a", RIGHT, RIGHT)])

    stats = history.stats([prompt("b"), prompt("a"), prompt("never seen")])

    assert stats.ids == ("b", "a", "never seen")
    np.testing.assert_array_equal(stats.trials, [0, 4, 0])
    np.testing.assert_array_equal(stats.pass_rate, [np.nan, 0.75, np.nan])
    assert np.isnan(stats.gradient_norm).all()
    assert history.state_dict()["seen"]["a"] == (4, 3, None)


def test_an_earlier_visit_counts_for_less():
    """Decay 1/2: 2 of 4, then 2 of 2, is 3 of 4; the gradient norm is that of the last visit that had one."""
    history = History(decay=0.5)
    history.observe([group("a", RIGHT, RIGHT, WRONG, WRONG)], np.array([3.0]))
    history.observe([group("a", RIGHT, RIGHT)], np.array([2.0]))
    history.observe([group("a", WRONG)], np.array([0.0]))

    stats = history.stats([prompt("a")])

    np.testing.assert_array_equal(stats.trials, [3.0])
    np.testing.assert_array_equal(stats.correct, [1.5])
    np.testing.assert_array_equal(stats.gradient_norm, [2.0])


def test_a_probe_is_kept_apart_and_replaces_the_one_before():
    history = History(decay=0.5)
    history.observe([group("a", WRONG)])
    history.record_probe([group("a", RIGHT, WRONG), group("b", RIGHT)], np.array([1.5, 2.5]))
    history.record_probe([group("a", RIGHT, RIGHT)], np.array([0.5]))

    probed = history.probed([prompt("a"), prompt("b")])

    np.testing.assert_array_equal(probed.pass_rate, [1.0, np.nan])
    np.testing.assert_array_equal(probed.gradient_norm, [0.5, np.nan])
    np.testing.assert_array_equal(history.stats([prompt("a")]).pass_rate, [0.0])


def test_a_plan_is_read_by_prompt_and_replaces_the_one_before():
    history = History()
    history.record_plan([prompt("a"), prompt("b")], np.array([3, 0]), np.array([0.25, np.nan]))

    np.testing.assert_array_equal(history.plan([prompt("b"), prompt("a")], step=7), [0, 3])
    np.testing.assert_array_equal(history.planned_pass_rates([prompt("b"), prompt("a")]), [np.nan, 0.25])

    history.record_plan([prompt("c")], np.array([4]), np.array([0.5]))
    with pytest.raises(ValueError, match="'a'"):
        history.plan([prompt("a")], step=8)


@pytest.mark.parametrize(
    ("names", "counts", "rates", "named"),
    [
        (["a"], [1, 2], [0.5], "2 counts"),
        (["a"], [-1], [0.5], "'a' -1"),
        (["a", "a"], [1, 2], [0.5, 0.5], "'a' two"),
    ],
)
def test_a_plan_with_wrong_counts_is_refused(names, counts, rates, named):
    with pytest.raises(ValueError, match=named):
        History().record_plan([prompt(n) for n in names], np.array(counts), np.array(rates))


def test_the_state_survives_strict_json():
    history = History()
    history.observe([group("a", RIGHT, WRONG, WRONG)])
    history.record_probe([group("b", RIGHT)], np.array([0.1]))
    history.record_plan([prompt("a"), prompt("b")], np.array([3, 1]), np.array([1 / 3, np.nan]))

    restored = History()
    restored.load_state_dict(json.loads(json.dumps(history.state_dict(), allow_nan=False)))

    assert restored.state_dict() == history.state_dict()
    assert restored.stats([prompt("a")]).pass_rate[0] == 1 / 3
    np.testing.assert_array_equal(restored.planned_pass_rates([prompt("a"), prompt("b")]), [1 / 3, np.nan])


def test_a_snapshot_does_not_change_with_later_results():
    history = History()
    history.observe([group("a", RIGHT, WRONG)])
    history.record_plan([prompt("a")], np.array([4]), np.array([0.5]))
    then = history.snapshot()
    before = history.state_dict()
    history.observe([group("a", RIGHT), group("b", WRONG)])
    history.record_probe([group("b", RIGHT)])
    history.record_plan([prompt("b")], np.array([4]), np.array([0.5]))
    assert then.state_dict() == before != history.state_dict()
    assert (then.has_plan([prompt("a")]), then.has_plan([prompt("a"), prompt("b")])) == (True, False)
