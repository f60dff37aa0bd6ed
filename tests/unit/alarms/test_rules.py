"""Each alarm on rows that raise it, and on similar rows that do not."""

from __future__ import annotations

import math
import re

import pytest
from rows import learning, raised, run

from winnow.alarms.rules import ALARMS
from winnow.alarms.watch import alarms_of_run

FLAT = {"group__flat": 32, "group__all_wrong": 30, "group__all_correct": 2, "advantage__std": 0.0}
IDLE = {"budget__updates": 0, "select__trained": 0, "policy__grad_norm": None}
CRITIC = {"critic__updates": 1, "critic__explained_variance": -0.1, "critic__loss": 0.3, "budget__tokens_valued": 900}


LAGGING = {"policy__engine_lag": lambda s: max(0.0, 0.01 * (s - 7)), "policy__engine_lag_sem": 0.002}


def from_step(first, ill, well):
    return lambda step: ill if step >= first else well


def one_step(at, ill, well):
    return lambda step: ill if step == at else well


def every_fifth(of):
    return lambda step: of(step) if step % 5 == 0 else None


BESIDE = {  # with rollout.ahead = 1, a lag is measured beside evaluations
    "policy__engine_lag": every_fifth(LAGGING["policy__engine_lag"]),
    "policy__engine_lag_sem": every_fifth(lambda step: 0.002),
    "policy__staleness_sample_size": 0.9,
}
ALLOTTED = {"group__effective": from_step(30, 20, 32)}  # from step 30 on, hard prompts have more rollouts
ALIKE = {"group__flat": 26}  # of 32 groups
SWINGS = {"reward__mean_of_prompts": lambda s: 0.1 if s // 5 % 2 else 0.9}

# 40% of the answers are right at step 0, and none is readable from step 1 on.
NOTHING = {"reward__mean": 0.0, "reward__std": 0.0, "reward__max": 0.0, "reward__accuracy": 0.0}
NOTHING |= {"outcome__unparsable": 512, "rollout__truncated": 0.9, **FLAT, "group__all_wrong": 32, **IDLE}
DIVERGED = [*run(1), *run(60, **NOTHING)[1:]]
# Each step the reward is 0.02 higher, and 1 answer of a hundred fewer is right.
GAMED = {"reward__mean": lambda s: 0.4 + 0.02 * s, "reward__accuracy": lambda s: max(0.0, 0.4 - 0.01 * s)}

# name, what is ill, the steps at which it is raised
ILL = [
    ("all_flat", run(4) + [{**one, "step": one["step"] + 4} for one in run(8, **FLAT)], [8]),
    ("nothing_trained", run(9, **IDLE), [2]),
    ("constant_reward", run(8, reward__min=0.0, reward__max=0.0, reward__mean=0.0, reward__std=0.0), [4]),
    ("constant_reward", run(8, reward__min=0.3, reward__max=0.1 + 0.2, reward__mean=0.3, reward__std=0.0), [4]),
    ("unparsable", run(8, outcome__unparsable=480), [4]),
    ("verifier_failures", run(8, outcome__failed=from_step(3, 11, 0)), [5]),
    ("verifier_failures", run(8, outcome__failed=1, outcome__cut=412), [4]),  # 5 of the 500 that were judged
    ("all_truncated", run(8, rollout__truncated=0.6), [4]),
    ("length_explosion", run(60, rollout__length_mean=lambda s: 200 * 1.05**s), [29]),
    ("length_collapse", run(60, rollout__length_mean=lambda s: 200 * 0.95**s), [29]),
    ("entropy_collapse", run(20, policy__entropy=lambda s: 0.4 * 0.7**s, **ALIKE), [11]),
    ("entropy_collapse", run(20, policy__entropy=lambda s: 0.4 * 0.7**s, group__flat=None), [11]),  # not measured
    ("entropy_explosion", run(20, policy__entropy=lambda s: 0.4 + 0.2 * s), [10]),
    ("kl_drift", run(20, loss__kl=from_step(9, 1.0, 0.0)), [11]),
    ("ratio_drift", run(20, policy__ratio_mean=from_step(9, 1.25, 1.0)), [10]),
    ("clip_fraction", run(20, policy__clip_fraction=0.4), [4]),
    ("gradient_spike", run(30, policy__grad_norm=one_step(20, 4.0, 0.3)), [20]),
    ("not_finite", run(10, policy__not_finite_updates=one_step(7, 2, 0)), [7]),
    ("parity", run(10, policy__parity_alarm=one_step(7, 1, 0), policy__logprob_gap_mean=0.2), [7]),
    ("engine_lags", run(20, **LAGGING), [12]),  # steps 8 to 12: (0.01 + ... + 0.05) / 5 = 0.03; before, 0.02
    ("engine_lags", run(20, **BESIDE), [15]),  # (0 + 0 + 0.03 + 0.08) / 4 = 0.0275 at steps 0, 5, 10, 15
    ("stale_rollouts", run(12, policy__staleness_sample_size=from_step(4, 0.3, 0.9)), [7]),  # (0.9 + 4 x 0.3) / 5
    ("weights_lag", run(20, policy__move_followed=lambda s: 0.03 * (s + 1), policy__move_noise=9.0), [5]),
    ("no_learning", run(150), [99]),
    ("no_learning", run(150, reward__mean=lambda s: 0.4 + 0.005 * (s % 2)), [49]),
    ("sudden_drop", run(40, reward__mean=from_step(30, 0.05, 0.6)), [31]),
    ("sudden_drop", run(40, reward__mean_of_prompts=from_step(30, 0.05, 0.6), **ALLOTTED), [31]),
    ("sudden_drop", DIVERGED, [3]),  # 0 of 96 prompts after 40% of 32: 6.5 standard errors of 0.061
    ("sudden_drop", [*run(1, reward__accuracy=0.0), *DIVERGED[1:]], [3]),  # never right, and readable only at first
    ("reward_without_accuracy", run(60, **GAMED), [24]),
    ("oscillation", run(60, reward__mean=lambda s: 0.1 if s // 5 % 2 else 0.9), [39]),
    ("oscillation", run(60, **SWINGS, **ALLOTTED), [39]),
    ("turns_cut_off", run(8, environment__turns_cut_off=from_step(3, 0.8, 0.1)), [5]),  # (0.2 + 2.4) / 5 is 0.52
    ("ends_in_first_turn", run(8, environment__one_turn=0.97), [4]),
    ("no_tool_call", run(8, environment__tool_calls=0.0), [4]),
    ("values_explain_nothing", run(30, **CRITIC), [19]),
    ("values_untrained", run(8, **{**CRITIC, "critic__updates": one_step(4, 0, 1)}), [4]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "rows", "steps"), ILL, ids=[name for name, *_ in ILL])
def test_an_alarm_is_raised_on_its_symptom(name, rows, steps):
    assert raised(rows)[name] == steps


@pytest.mark.parametrize(("name", "rows", "steps"), ILL, ids=[name for name, *_ in ILL])
def test_a_text_has_no_number_that_the_log_lacks(name, rows, steps):
    """As in the log of another trainer."""
    unlogged = ("reward/accuracy", "outcome/unparsable", "outcome/failed", "rollout/truncated", "group/flat")
    bare = [{key: value for key, value in row.items() if key not in unlogged} for row in rows]
    of_winnow = ("nothing_trained", "parity")  # no other log has the numbers that raise these
    texts = [alarm.text for alarm in alarms_of_run(bare) if alarm.name not in of_winnow]
    assert not [text for text in texts if re.search(r"\bnan\b", text)]
    assert not [text for text in texts if re.search(r"\d+% have no readable answer", text)]


def test_flat_groups_without_verdicts_are_called_neither_right_nor_wrong():
    without = {"group__all_wrong": None, "group__all_correct": None, "reward__accuracy": None}
    (alarm,) = (alarm for alarm in alarms_of_run(run(8, **{**FLAT, **without})) if alarm.name == "all_flat")
    assert alarm.evidence.keys() == {"group/flat"}
    assert ["all wrong" in alarm.text, "too easy or too hard" in alarm.text] == [False, True]


SHORTEST = {name: rows for name, rows, _ in sorted(ILL, key=lambda ill: -len(ill[1]))}  # of each alarm


@pytest.mark.parametrize("name", SHORTEST)
def test_an_alarm_can_be_switched_off(name):
    assert name not in raised(SHORTEST[name], off=(name,))


def test_every_alarm_has_rows_that_raise_it():
    assert {name for name, *_ in ILL} | {"overfitting", "held_out_above_training"} == {kind.name for kind in ALARMS}


KL_ALONE = {"advantage__std": lambda step: 0.9 * (step % 10 == 9)}  # in nine of ten steps only the KL term teaches
ONE_PROMPT = {"group__effective": lambda step: 32 - 31 * (step == 30)}  # nearly all rollouts of a step are of one

# Rows just within the limits, or with another reason for the symptom: none of them raises the alarm.
WELL = [
    ("all_flat", run(12, **{**FLAT, "group__flat": 30})),
    ("all_flat", run(12, **FLAT)[:4]),
    ("all_flat", run(12, **{**FLAT, "advantage__std": 1.0})),  # a baseline over the batch
    ("all_flat", run(12, **FLAT, **CRITIC)),  # values
    ("all_flat", run(12, **{**FLAT, "budget__rollouts": 32})),  # groups of one
    ("nothing_trained", run(2, **IDLE)),
    ("nothing_trained", run(9, **{**IDLE, "select__trained": 4})),  # an update that was not finite
    ("nothing_trained", run(9, **IDLE, policy__learning_rate=None, **CRITIC)),  # the policy is held
    ("constant_reward", run(8, reward__min=0.0, reward__max=0.0, budget__rollouts=4)),
    ("constant_reward", run(8, reward__min=lambda s: s % 2, reward__max=lambda s: s % 2)),
    ("unparsable", run(8, outcome__unparsable=450)),
    ("verifier_failures", run(8, outcome__failed=1)),  # of 512
    ("verifier_failures", run(1, outcome__failed=4, budget__rollouts=16)),
    ("all_truncated", run(8, rollout__truncated=lambda s: 0.9 if s == 3 else 0.3)),
    ("all_truncated", run(5, rollout__truncated=lambda s: (0.89, 0.72, 0.55, 0.44, 0.36)[s])),  # on average 0.59
    ("length_explosion", run(40, rollout__length_mean=lambda s: 200 * 1.05**s, reward__mean=lambda s: 0.02 * s)),
    ("length_explosion", run(60, rollout__length_mean=lambda s: 200 * 1.05**s, group__effective=16)),  # reward unknown
    ("length_explosion", run(60, rollout__length_mean=lambda s: 200 * 1.02**s)),
    ("length_explosion", run(60, rollout__length_mean=lambda s: 3000 if s == 45 else 200)),  # one long step
    ("entropy_collapse", run(20, policy__entropy=0.01, reward__accuracy=0.95, **ALIKE)),  # solved
    ("entropy_collapse", run(20, policy__entropy=0.021, **ALIKE)),  # it began so
    ("entropy_collapse", run(300, policy__entropy=lambda s: 0.5 * 0.995**s, **ALIKE)),  # 0.5 -> 0.11: as it should be
    ("entropy_collapse", run(20, policy__entropy=lambda s: 0.4 * 0.7**s, group__flat=20)),  # 12 of 32 groups teach
    ("entropy_explosion", run(300, policy__entropy=lambda s: 0.3 + 0.003 * s)),
    ("kl_drift", run(20, loss__kl=0.05, reward__kl=0.1)),
    ("ratio_drift", run(20, policy__ratio_mean=1.02, policy__ratio_max=40.0)),  # a maximum is no ground
    ("clip_fraction", run(20, policy__clip_fraction=lambda s: 0.9 if s == 7 else 0.1)),
    ("gradient_spike", run(30, policy__grad_norm=lambda s: 2.5 if s == 20 else 0.3)),
    ("gradient_spike", run(8, policy__grad_norm=lambda s: 4.0 if s == 7 else 0.3)),  # too few to compare with
    ("gradient_spike", run(40, **KL_ALONE, policy__grad_norm=lambda s: 0.3 if s % 10 == 9 else 0.003)),
    ("parity", run(10, policy__logprob_gap_max=9.0)),
    ("engine_lags", run(20, **{**LAGGING, "policy__engine_lag": lambda s: 0.018 * (s > 0)})),
    ("engine_lags", run(20, **{**LAGGING, "policy__engine_lag": 0.5})),  # from the first step: not a lag
    ("engine_lags", run(20, **{**LAGGING, "policy__engine_lag_sem": 0.03})),  # noise
    ("engine_lags", run(20, **{**BESIDE, "policy__engine_lag_sem": every_fifth(lambda s: 0.03)})),
    ("stale_rollouts", run(12, policy__staleness_sample_size=0.5)),
    ("stale_rollouts", run(12, policy__staleness_sample_size=one_step(4, 0.01, 0.9))),
    ("weights_lag", run(12, policy__move_followed=from_step(5, 0.5, 0.1))),
    ("weights_lag", run(5, policy__move_followed=0.1)),
    ("no_learning", run(99)),
    ("no_learning", run(49, reward__mean=lambda s: 0.4 + 0.005 * (s % 2))),
    ("no_learning", run(150, reward__accuracy=0.97)),
    ("no_learning", run(300, reward__mean=lambda s: 0.4 + 0.001 * s)),
    ("no_learning", run(150, reward__mean=lambda s: 0.02 + 1e-4 * s, reward__std=0.15)),  # rarely solved
    ("sudden_drop", run(40, reward__mean=lambda s: 0.0 if s == 30 else 0.6)),  # one bad step of 32 prompts
    ("sudden_drop", run(40, reward__mean=lambda s: 0.3 if s >= 30 else 0.6, group__count=2)),  # of few prompts: noise
    ("sudden_drop", run(40, reward__mean=lambda s: 0.6 - 0.5 * (s == 30), **ONE_PROMPT)),
    ("sudden_drop", run(40, reward__mean=from_step(30, 0.05, 0.6), **ALLOTTED)),  # a log without means of prompts
    ("sudden_drop", run(40, reward__mean=from_step(30, 0.05, 0.6), reward__mean_of_prompts=0.6, **ALLOTTED)),
    ("sudden_drop", run(40, reward__mean_of_prompts=from_step(30, 0.05, 0.6), budget__prompts_skipped=1)),
    ("sudden_drop", [*run(1, group__count=2), *run(8, **{**NOTHING, "group__count": 2})[1:]]),  # few prompts: noise
    ("sudden_drop", run(60, **GAMED)),
    ("reward_without_accuracy", run(60, **GAMED, group__count=2)),
    ("reward_without_accuracy", run(60, **{**GAMED, "reward__mean": 0.4})),  # the reward does not rise
    ("reward_without_accuracy", run(60, **{**GAMED, "reward__mean": lambda s: 0.4 - 0.01 * s})),
    ("reward_without_accuracy", run(60, reward__mean=lambda s: 0.4 + 0.02 * s)),  # as many answers are right
    ("reward_without_accuracy", run(60, **GAMED, budget__prompts_skipped=1)),  # other prompts in each step
    ("oscillation", run(60, **SWINGS, budget__prompts_skipped=1)),  # other prompts in each step, as the plan has it
    ("oscillation", run(60, reward__mean=lambda s: 0.1 if s // 5 % 2 else 0.9, **ALLOTTED)),
    (
        "entropy_collapse",
        run(40, policy__entropy=0.01, reward__accuracy=lambda s: 0.9 - 0.8 * (s == 30), **ONE_PROMPT, **ALIKE),
    ),
    ("oscillation", run(60, reward__mean=lambda s: 0.4 if s // 5 % 2 else 0.5)),
    ("turns_cut_off", run(20, environment__turns_cut_off=lambda s: 0.9 if s == 7 else 0.3)),
    ("turns_cut_off", run(5, environment__turns_cut_off=lambda s: 0.9 - 0.12 * s)),  # on average 0.66, and falling
    ("ends_in_first_turn", run(8, environment__one_turn=0.97, reward__accuracy=0.9)),  # it needs no more turns
    ("ends_in_first_turn", run(8, environment__one_turn=0.9)),
    ("no_tool_call", run(30, environment__tool_calls=lambda s: 0.01 * (s == 0))),  # called once
    ("no_tool_call", run(30)),  # there is no tool
    ("values_explain_nothing", run(30, **{**CRITIC, "critic__explained_variance": lambda s: 0.0 if s == 15 else -0.1})),
    ("values_explain_nothing", run(30, **{**CRITIC, **IDLE, "policy__learning_rate": None})),  # held
]  # fmt: skip


@pytest.mark.parametrize(("name", "rows"), WELL)
def test_an_alarm_is_not_raised_without_its_symptom(name, rows):
    assert name not in raised(rows)


def test_one_cause_is_one_alarm():
    """Other symptoms of a policy that has lost its ability are consequences. So are those of a policy that exploits its
    reward and finally writes no readable answer.
    """
    assert raised(held_out(DIVERGED, lambda s: 0.4 if s == 0 else 0.0)) == {"sudden_drop": [3]}
    never = raised([{**one, "step": one["step"] - 1} for one in DIVERGED[1:]])
    assert never.keys() >= {"nothing_trained", "constant_reward", "unparsable", "all_truncated"}  # it never worked
    assert raised(DIVERGED, off=("sudden_drop",)).keys() >= {"nothing_trained", "constant_reward", "unparsable"}
    gamed = run(
        60, **GAMED, outcome__unparsable=lambda s: 10 if s < 45 else 512, rollout__truncated=from_step(45, 0.9, 0.1)
    )
    assert raised(held_out(gamed, lambda s: 0.4 if s < 40 else 0.0)) == {"reward_without_accuracy": [24]}


def test_an_alarm_that_was_raised_before_its_explanation_holds_on():
    """Rollouts are cut off from the start, and the policy fails at step 40: the first is no consequence."""
    cut = {"rollout__truncated": 0.9}
    rows = [*run(40, **cut), *run(80, **NOTHING)[40:]]
    steps = {alarm.name: (alarm.step, alarm.last) for alarm in alarms_of_run(rows)}
    assert steps == {"all_truncated": (4, 79), "sudden_drop": (41, 79)}


def test_an_alarm_of_an_exploited_reward_names_the_part_that_rose():
    parts = {"reward/part/right": lambda s: 0.4 - 0.01 * s, "reward/part/short": lambda s: 0.2 + 0.03 * s}
    rows = [one | {name: part(one["step"]) for name, part in parts.items()} for one in run(40, **GAMED)]
    (alarm,) = alarms_of_run(rows)
    assert (alarm.name, alarm.step) == ("reward_without_accuracy", 24)
    assert "reward" in alarm.keys
    numbers = set(re.findall(r"\d+\.\d+", alarm.text))
    assert "short" in alarm.text
    assert {"0.275", "0.86"} <= numbers  # the means of the part that rose, over steps 0 to 5 and 22 to 24
    assert not {"0.375", "0.18"} & numbers  # those of the part that fell
    assert alarm.evidence["reward/accuracy_of_prompts"] < alarm.evidence["accuracy_before"]


def test_accuracy_on_other_problems_is_not_compared():
    """A resume at step 20 with a task that the policy cannot solve: no answer to it was ever right."""
    rows = [*run(20), *run(40, **NOTHING)[20:]]
    assert "sudden_drop" in raised(rows)
    after = [alarm.name for alarm in alarms_of_run(rows, evaluated_since=20)]
    assert "unparsable" in after


def test_a_step_without_an_explained_variance_is_skipped():
    """Its returns were all equal (NaN), or the value model read nothing: the count continues after it."""
    mixed = {**CRITIC, "critic__explained_variance": lambda s: {19: math.nan, 20: None}.get(s, -0.1)}
    assert raised(run(30, **mixed))["values_explain_nothing"] == [21]


def held_out(rows, accuracy, every=10):
    """The same rows with an evaluation of 1,000 problems at every tenth step, and one after the last."""
    changed = [dict(one) for one in rows] + [{"step": len(rows)}]
    for step in range(0, len(changed), every):
        p = accuracy(step)
        changed[step] |= {"eval/accuracy_sampled": p, "eval/accuracy_sampled_sem": (p * (1 - p) / 1000) ** 0.5}
    return changed


def test_training_above_held_out_is_overfitting():
    """Memorised problems: training rises to 1, and held-out stays. It is compared 5 steps after an evaluation."""
    climbs = run(100, reward__accuracy=lambda s: min(1.0, 0.4 + 0.01 * s), group__count=128)
    assert raised(held_out(climbs, lambda s: 0.4))["overfitting"] == [34]
    assert "overfitting" not in raised(held_out(climbs, lambda s: min(1.0, 0.38 + 0.01 * s)))
    few = [{**one, "group/count": 2} for one in climbs]
    assert "overfitting" not in raised(held_out(few[:50], lambda s: 0.4))  # noise of 20 prompts


def test_a_held_out_task_that_is_harder_from_the_start_is_no_overfitting():
    climbs = run(100, reward__accuracy=lambda s: min(1.0, 0.4 + 0.01 * s), group__count=128)
    assert "overfitting" not in raised(held_out(climbs, lambda s: min(1.0, 0.4 + 0.01 * s) - 0.2))


def test_a_harder_task_on_which_the_policy_gets_better_is_no_overfitting():
    climbs = run(100, reward__accuracy=lambda s: min(1.0, 0.35 + 0.005 * s), group__count=128)
    assert "overfitting" not in raised(held_out(climbs, lambda s: 0.05 + 0.0015 * s))


def test_held_out_above_training_at_three_evaluations():
    """Evaluations of 1,000 problems beside 10 steps of 128 prompts: the noise is 2.1%, so `gap` is the limit."""
    name = "held_out_above_training"
    flat = run(60, reward__accuracy=0.4, group__count=128)
    assert raised(held_out(flat, lambda s: 0.6))[name] == [24]
    assert name not in raised(held_out(flat, lambda s: 0.48))  # by less than `gap`
    assert name not in raised(held_out(flat, lambda s: 0.4 if s == 20 else 0.6)[:45])  # not three in a row
    assert raised(held_out(flat, lambda s: 0.4 if s == 20 else 0.6))[name] == [54]
    few = [{**one, "group/count": 1} for one in flat]
    assert name not in raised(held_out(few, lambda s: 0.6))  # noise of 10 prompts
    planned = [{**one, "budget/prompts_skipped": 3} for one in flat]
    assert name not in raised(held_out(planned, lambda s: 0.6))
    assert name not in raised(held_out(flat[:20], lambda s: 0.6))  # two evaluations with steps behind them


def test_an_entropy_far_below_the_first_has_collapsed_above_the_floor():
    assert raised(run(40, policy__entropy=lambda s: 0.6 if s < 20 else 0.025, **ALIKE))["entropy_collapse"] == [24]
    assert "entropy_collapse" not in raised(run(40, policy__entropy=lambda s: 0.6 if s < 20 else 0.035, **ALIKE))


def test_the_verifier_and_not_the_task_is_the_cause_of_failed_verdicts():
    (alarm,) = [
        alarm for alarm in alarms_of_run(run(3, **IDLE, outcome__failed=512)) if alarm.name == "nothing_trained"
    ]
    assert set(alarm.keys) == {"verify", "reward"}
    (alarm,) = [alarm for alarm in alarms_of_run(run(3, **IDLE)) if alarm.name == "nothing_trained"]
    assert "task" in alarm.keys


def test_evaluations_of_other_problems_are_not_compared():
    """A resume at step 50 that evaluates on a harder task."""
    steady = run(100, reward__mean=lambda s: 0.4 + 0.005 * s)
    rows = held_out(steady, lambda s: 0.2 if s >= 50 else 0.6)
    assert "sudden_drop" in raised(rows)
    assert not [alarm for alarm in alarms_of_run(rows, evaluated_since=50) if alarm.name == "sudden_drop"]


def test_held_out_accuracy_raises_sudden_drop_and_oscillation():
    flat = run(100, reward__mean=lambda s: 0.4 + 0.005 * s, reward__accuracy=0.6)
    assert raised(held_out(flat, lambda s: 0.2 if s == 100 else 0.6)) == {"sudden_drop": [100]}  # after the last step
    assert raised(held_out(flat, lambda s: 0.4 if s // 10 % 2 else 0.7))["oscillation"] == [40]


def test_a_slow_fall_is_compared_with_the_best_of_all_evaluations():
    """0.7 points an evaluation, from 80% after step 100 on: 7 points over the newest ten, and 10 are the limit."""
    flat = run(400, reward__accuracy=0.6)
    falls = held_out(flat, lambda s: 0.3 if s == 0 else 0.8 - 0.0007 * max(0, s - 100))
    assert raised(falls)["sudden_drop"] == [250]  # 10.5 points below


def test_a_standard_error_of_0_from_a_few_problems_is_not_trusted():
    """Two problems, all right or all wrong: the measured error is 0."""
    rows = learning(60, start=0.3, end=0.5)
    for step, right in zip(range(0, 60, 10), (0.0, 1.0, 0.5, 1.0, 0.0, 1.0), strict=True):
        rows[step] |= {"eval/accuracy_sampled": right, "eval/accuracy_sampled_sem": 0.5 if right == 0.5 else 0.0}
    assert raised(rows) == {}
    assert raised([row for row in rows if row.get("eval/accuracy_sampled") != 0.5]) == {}  # their number is unknown


def test_a_gain_within_the_first_steps_is_learning():
    plateau = run(150, reward__mean=lambda s: min(0.7, 0.3 + 0.1 * s), reward__accuracy=0.7)
    assert raised(plateau) == {}


@pytest.mark.parametrize("seed", range(3))
def test_a_random_reward_is_found_in_100_steps_and_a_slow_gain_is_none(seed):
    """128 prompts a step: no gain, and one of 10 points in 100 steps."""
    (at,) = raised(learning(100, start=0.4, end=0.4, seed=seed, prompts=128))["no_learning"]
    assert 49 <= at < 98
    assert "no_learning" not in raised(learning(200, start=0.3, end=0.5, seed=seed, prompts=128))


def test_after_fewer_steps_a_smaller_gain_must_be_excluded():
    """Means of 0.4 + d and 0.4 - d in turns, of which d is the deviation: two standard errors of two thirds of n steps
    are about 2 d sqrt(6 / n). After 50 steps they exclude a quarter of 0.049 up to d = 0.018; after 71 steps half of it
    up to d = 0.042; after 100 steps all of it up to d = 0.1.
    """

    def sawing(d):
        return raised(run(130, reward__mean=lambda s: 0.4 + (d if s % 2 else -d)), off=("oscillation",))

    assert sawing(0.01)["no_learning"] == [49]
    (at,) = sawing(0.04)["no_learning"]
    assert 60 < at < 80
    assert "no_learning" not in sawing(0.2)


def test_a_gain_on_held_out_problems_is_learning():
    still = run(150)
    assert "no_learning" in raised(held_out(still, lambda s: 0.4))
    assert "no_learning" not in raised(held_out(still, lambda s: 0.4 + 0.001 * s))


@pytest.mark.parametrize("prompts", [4, 32, 256])
@pytest.mark.parametrize("seed", range(2))
def test_the_noise_of_a_run_that_learns_slowly_raises_nothing(seed, prompts):
    """1 to 3 points an evaluation, as a model of 1.5 billion parameters does; prompts all right or all wrong."""
    assert raised(learning(300, start=0.3, end=0.5, seed=seed, prompts=prompts, every=25)) == {}


def test_noise_that_learns_nothing_is_no_swing_and_no_drop():
    assert raised(learning(300, start=0.4, end=0.4, seed=1, every=10), off=("no_learning",)) == {}


@pytest.mark.parametrize("rows", [[], [{"step": 0}], [{"step": 0, "budget/rollouts": 0}] * 120, run(1), run(3)])
def test_rows_without_numbers_and_first_steps_raise_nothing(rows):
    assert raised(rows) == {}


def test_numbers_that_are_not_finite_count_as_not_measured():
    broken = [{name: math.nan for name in one} | {"step": one["step"], "budget/rollouts": 512} for one in run(120)]
    assert raised(broken) == {}
