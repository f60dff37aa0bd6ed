from __future__ import annotations

import json

import numpy as np
import pytest

from winnow.records import Group, Outcome, Prompt, Rollout
from winnow.state.history import History, unpacked

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


def history_of(**options) -> History:
    return History(["a", "b", "c", "never seen"], **options)


def test_pass_rates_count_verified_rollouts_over_all_steps():
    history = history_of()
    history.observe([group("a", RIGHT, WRONG, FAILED), group("b", FAILED)])
    history.observe([group("a", RIGHT, RIGHT)])

    stats = history.stats([prompt("b"), prompt("a"), prompt("never seen")])

    assert stats.ids == ("b", "a", "never seen")
    np.testing.assert_array_equal(stats.trials, [0, 4, 0])
    np.testing.assert_array_equal(stats.pass_rate, [np.nan, 0.75, np.nan])
    assert np.isnan(stats.gradient_norm).all()
    np.testing.assert_array_equal(history.table.latest_trials, [2, 0, 0, 0])  # b's only rollout has no verdict


def test_an_earlier_visit_counts_for_less():
    """Decay 1/2: 2 of 4, then 2 of 2, is 3 of 4; the gradient norm is that of the last visit that had one."""
    history = history_of(decay=0.5)
    history.observe([group("a", RIGHT, RIGHT, WRONG, WRONG)], np.array([3.0]))
    history.observe([group("a", RIGHT, RIGHT)], np.array([2.0]))
    history.observe([group("a", WRONG)], np.array([0.0]))

    stats = history.stats([prompt("a")])

    np.testing.assert_array_equal(stats.trials, [3.0])
    np.testing.assert_array_equal(stats.correct, [1.5])
    np.testing.assert_array_equal(stats.gradient_norm, [2.0])


def test_a_step_without_a_verdict_is_no_visit():
    """2 of 4 at a decay of 1/2 stay 2 of 4 if the verifier fails at the next step, and become 1 + 1 of 2 + 1 later."""
    history = history_of(decay=0.5)
    history.observe([group("a", RIGHT, RIGHT, WRONG, WRONG)])
    for step, trials, correct in ((group("a", FAILED, FAILED), 4.0, 2.0), (group("a", RIGHT, FAILED), 3.0, 2.0)):
        history.observe([step])
        stats = history.stats([prompt("a")])
        assert (stats.trials.tolist(), stats.correct.tolist()) == ([trials], [correct])


def test_a_probe_is_kept_apart_and_replaces_the_one_before():
    history = history_of(decay=0.5)
    history.observe([group("a", WRONG)])
    history.record_probe([group("a", RIGHT, WRONG), group("b", RIGHT)], np.array([1.5, 2.5]))
    history.record_probe([group("a", RIGHT, RIGHT)], np.array([0.5]))

    probed = history.probed([prompt("a"), prompt("b")])

    np.testing.assert_array_equal(probed.pass_rate, [1.0, np.nan])
    np.testing.assert_array_equal(probed.gradient_norm, [0.5, np.nan])
    np.testing.assert_array_equal(history.stats([prompt("a")]).pass_rate, [0.0])


def test_a_plan_is_read_by_prompt_and_replaces_the_one_before():
    history = history_of()
    history.record_plan([prompt("a"), prompt("b")], np.array([3, 0]), np.array([0.25, np.nan]))

    np.testing.assert_array_equal(history.plan([prompt("b"), prompt("a")], step=7), [0, 3])
    np.testing.assert_array_equal(history.planned_pass_rates([prompt("b"), prompt("a")]), [np.nan, 0.25])

    history.record_plan([prompt("c")], np.array([4]), np.array([0.5]))
    with pytest.raises(ValueError, match="'a'"):
        history.plan([prompt("a")], step=8)


def test_the_state_survives_strict_json():
    history = history_of()
    history.observe([group("a", RIGHT, WRONG, WRONG)])
    history.record_probe([group("b", RIGHT)], np.array([0.1]))
    history.record_plan([prompt("a"), prompt("b")], np.array([3, 1]), np.array([1 / 3, np.nan]))

    restored = history_of()
    restored.load_state_dict(json.loads(json.dumps(history.state_dict(), allow_nan=False)))

    assert restored.state_dict() == history.state_dict()
    assert restored.stats([prompt("a")]).pass_rate[0] == 1 / 3
    np.testing.assert_array_equal(restored.planned_pass_rates([prompt("a"), prompt("b")]), [1 / 3, np.nan])


def test_a_snapshot_does_not_change_with_later_results():
    history = history_of()
    history.observe([group("a", RIGHT, WRONG)])
    history.record_plan([prompt("a")], np.array([4]), np.array([0.5]))
    then = history.snapshot()
    before = history.state_dict()
    history.observe([group("a", RIGHT), group("b", WRONG)])
    history.record_probe([group("b", RIGHT)])
    history.record_plan([prompt("b")], np.array([4]), np.array([0.5]))
    assert then.state_dict() == before != history.state_dict()
    assert (then.has_plan([prompt("a")]), then.has_plan([prompt("a"), prompt("b")])) == (True, False)


def rows(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def test_a_draw_is_read_by_step_and_replaces_the_one_before():
    history = history_of()
    history.record_draw([4, 5], [rows(2), rows(0)], [[rows(1), rows(3)], []], {"place": 2}, {"sampler/skipped": 3.0})
    np.testing.assert_array_equal(history.drawn(5), [0])
    np.testing.assert_array_equal([history.drawn(4, extra=n)[0] for n in (0, 1, 2)], [2, 1, 3])
    assert [len(history.drawn(4, extra=3)), len(history.drawn(5, extra=1))] == [0, 0]
    assert (history.has_draw(4, 1), history.has_draw(4, 2), history.has_draw(6, 1)) == (True, False, False)
    assert (history.draw_metrics(4), history.draw_metrics(5)) == ({"sampler/skipped": 3.0}, {})
    assert history.sampler == {"place": 2}
    np.testing.assert_array_equal(history.table.drawn_at, [0, -1, 0, -1])
    assert history.table.draws == 2

    history.record_draw([6], [rows(1)], [[]], {}, {})
    np.testing.assert_array_equal(history.table.drawn_at, [0, 2, 0, -1])
    with pytest.raises(ValueError, match="step 4"):
        history.drawn(4)


def test_a_draw_with_a_prompt_twice_is_refused():
    with pytest.raises(ValueError, match="twice"):
        history_of().record_draw([0, 1], [rows(1, 2), rows(2, 3)], [[], []], {}, {})


def full_history() -> History:
    history = history_of(decay=0.5)
    history.record_draw([0], [rows(1, 0)], [[rows(2)]], {"epoch": 3, "reused": rows(0, 7, 0, 0)}, {"sampler/x": 1.0})
    history.observe([group("b", RIGHT, WRONG, WRONG), group("a", RIGHT, RIGHT)], np.array([0.1, np.nan]))
    return history


def same_tables(one: History, other: History) -> None:
    for name, column in vars(one.table).items():
        np.testing.assert_array_equal(column, getattr(other.table, name), err_msg=name)


def test_table_draws_and_sampler_survive_strict_json():
    history, restored = full_history(), history_of(decay=0.5)
    restored.load_state_dict(json.loads(json.dumps(history.state_dict(), allow_nan=False)))

    assert restored.state_dict() == history.state_dict()
    same_tables(history, restored)
    np.testing.assert_array_equal(restored.table.newest, [0, 1])
    np.testing.assert_array_equal(restored.drawn(0, extra=1), [2])
    assert restored.sampler["epoch"] == 3
    np.testing.assert_array_equal(restored.sampler["reused"], [0, 7, 0, 0])

    for each in (history, restored):  # and both go on alike
        each.observe([group("b", WRONG)])
    same_tables(history, restored)
    np.testing.assert_array_equal(restored.table.trials, [2, 2.5, 0, 0])


def test_a_checkpoint_has_only_the_prompts_that_were_drawn():
    seen = full_history().state_dict()["seen"]
    assert unpacked(seen["rows"], "<i4").tolist() == [0, 1]
    assert unpacked(seen["trials"], "<f8").tolist() == [2, 3]
    assert unpacked(seen["streak"], "<i4").tolist() == [1, 0]  # a was all right once
    assert history_of().state_dict()["seen"] == {}


def test_a_checkpoint_has_no_gradient_norms_where_none_was_measured():
    history = history_of()
    history.observe([group("a", WRONG)])
    assert "gradient_norm" not in history.state_dict()["seen"]
    restored = history_of()
    restored.load_state_dict(json.loads(json.dumps(history.state_dict())))
    same_tables(history, restored)
    np.testing.assert_array_equal(restored.table.all_wrong, [1, 0, 0, 0])


def test_results_follow_their_ids_into_another_task_and_draws_do_not():
    history = History(["new", "b"], decay=0.5)
    history.load_state_dict(json.loads(json.dumps(full_history().state_dict())))
    np.testing.assert_array_equal(history.table.trials, [0, 3])
    np.testing.assert_array_equal(history.table.gradient_norm, [np.nan, 0.1])
    np.testing.assert_array_equal(history.table.drawn_at, [-1, -1])
    assert (history.sampler, history.table.draws, history.has_draw(0, 2)) == ({}, 0, False)


def test_a_history_that_no_member_reads_stores_no_table():
    history = history_of(remember=False)
    history.record_draw([0], [rows(1, 0)], [[]], {"epoch": 0, "place": 2}, {})
    history.observe([group("b", RIGHT)])
    assert history.state_dict()["seen"] == {}
    np.testing.assert_array_equal(history.drawn(0), [1, 0])
