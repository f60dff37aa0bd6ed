"""A window of steps: its groups before and after they are reduced to levels, and costs with a part per call."""

import numpy as np
import pytest

from winnow.algos.costs import MeasuredWork, StepClock, StepWork, measured_costs
from winnow.algos.planning import Rule
from winnow.algos.reward_mixture import levels_of
from winnow.algos.step_plan import Setting, StepModel
from winnow.algos.step_window import COLUMNS, StepWindow, atoms_for, columns_of, lasting_of, measured_work

ROW = {
    "group/count": 4, "budget/rollouts": 16, "budget/tokens_generated": 96, "select/trained": 8,
    "budget/tokens_trained": 48, "seconds/generate": 2.0, "seconds/verify": 0.25, "seconds/select": 0.25,
    "seconds/logprobs": 0.5, "seconds/update": 1.0, "seconds/sync": 0.125, "seconds/step": 14.0, "seconds/save": 9.0,
}  # fmt: skip
LASTING = np.array([1.0, 1.0, 0.5])
WORK = StepWork(prompts=4, rollouts=16.0, tokens_generated=40.0, trained=8.0, tokens_trained=20.0)


def window(groups, rows=(ROW,), first=1, lengths=(6,)):
    levels, sizes = levels_of(np.concatenate(groups)), np.array([len(of) for of in groups])
    counts = levels.counts(np.concatenate(groups), sizes)
    return StepWindow(
        steps=np.arange(len(rows)) + first, atoms=atoms_for(levels.values.tolist(), counts), counts=counts,
        flat=np.array([np.ptp(of) == 0 for of in groups]),
        rows=columns_of(rows), grad_norm=np.full(len(rows), np.nan), lasting=lasting_of(list(lengths)), epochs=1,
    )  # fmt: skip


def passes(rollouts):
    return 2 + (1 - 0.5**rollouts)  # two tokens that all sample, and one that some do


def step(rollouts, trained, *, a=0.5, b=0.25, u=2.0, v=0.125, once=1.0, each=0.0625):
    """Seconds of a step by the costs that are fitted."""
    tokens = rollouts * LASTING.sum()
    return MeasuredWork(
        rollouts, tokens, trained, a * passes(rollouts) + b * tokens, u + v * trained, once + each * rollouts
    )


def test_costs_that_steps_were_made_of_are_found():
    steps = [step(n, t) for n, t in ((2, 5), (8, 40), (32, 20), (64, 100), (128, 400), (256, 900))] * 40
    costs = measured_costs(steps, np.ones(len(steps)), WORK, LASTING)
    few, more = costs.sampling.seconds
    assert more - few == pytest.approx(2.5 * 0.25, rel=0.02)  # per rollout of 2.5 tokens
    assert few - (more - few) == pytest.approx(2.5 * 0.5, rel=0.05)  # as if no rollout were sampled
    assert costs.update.at(8.0, 20.0) == pytest.approx(2.0 + 20 * 0.125, rel=0.02)
    assert costs.update.at(400.0, 1000.0) == pytest.approx(2.0 + 1000 * 0.125, rel=0.02)
    assert (costs.seconds_per_step, costs.seconds_per_rollout) == pytest.approx((1.0, 0.0625), rel=0.05)
    assert costs.open_ended


def test_steps_of_one_size_take_the_supposed_shares():
    """Half of the sampling is per pass, and a quarter of the update per call."""
    steps = [step(16, 20)] * 10
    costs = measured_costs(steps, np.ones(10), WORK, LASTING)
    sampled = costs.sampling.of_lengths(16, LASTING)
    assert sampled == pytest.approx(steps[0].sampling, rel=1e-4)
    few, more = costs.sampling.seconds
    assert 16 * (more - few) == pytest.approx(sampled / 2, rel=1e-4)
    assert costs.update.at(8.0, 20.0) == pytest.approx(steps[0].update)
    assert costs.update.at(1e-9, 2.5e-9) == pytest.approx(steps[0].update / 4)


def test_steps_of_earlier_sizes_tell_the_parts_of_an_update_and_of_the_rest_apart():
    now, earlier = [step(16, 200)] * 10, [step(64, 20)] * 10
    costs = measured_costs([*now, *earlier], np.ones(10), WORK, LASTING)
    assert costs.update.at(8.0, 20.0) == pytest.approx(earlier[0].update, rel=0.03)
    assert costs.seconds_per_step + 64 * costs.seconds_per_rollout == pytest.approx(earlier[0].rest, rel=0.03)


def test_no_part_is_negative():
    """Seconds that fall with the work: the part that grows is 0."""
    steps = [step(16, t)._replace(update=10.0 - t / 100) for t in (10, 200, 400, 800)] * 20
    costs = measured_costs(steps, np.ones(len(steps)), WORK, LASTING)
    few, more = costs.update.seconds
    assert few == more > 0
    assert np.all(np.array([costs.seconds_per_step, costs.seconds_per_rollout]) >= 0)


def test_a_step_counts_as_often_as_it_is_drawn_and_an_evaluation_for_sampling_alone():
    one, two = step(16, 20), step(16, 20)._replace(sampling=30.0, update=30.0)
    only = measured_costs([one, two], np.array([1.0, 0.0]), WORK, LASTING)
    assert only.update.at(8.0, 20.0) == pytest.approx(one.update)
    evaluation = MeasuredWork(1024.0, 2560.0, 0.0, 0.5 * passes(1024) + 0.25 * 2560, 0.0, 0.0)
    more = measured_costs([*[one] * 10, *[evaluation] * 10], np.ones(10), WORK, LASTING)
    few, many = more.sampling.seconds
    assert many - few == pytest.approx(2.5 * 0.25, rel=0.03)
    assert more.update.at(8.0, 20.0) == pytest.approx(one.update)


def test_seconds_of_the_first_step_of_a_run_and_of_a_save_do_not_count():
    rows = [{**ROW, "seconds/generate": 50.0, "seconds/step": 62.0}, ROW, ROW]
    found = window([np.array([0.0, 1.0])] * 3, rows, first=0).statistics()
    assert found.seconds["generate"] == 2.0
    assert found.seconds["other"] == pytest.approx(14.0 - 9.0 - 4.125)
    assert measured_work(columns_of([ROW]), 2) == [MeasuredWork(16, 96, 96, 2.0, 1.5, 0.5 + 0.125 + 0.875)]


def test_the_flat_share_is_that_of_the_rewards_and_not_of_the_levels():
    """24 values become six levels, so two groups have one level each and only one of them is flat."""
    rewards = np.linspace(0.0, 1.0, 24)
    near = rewards[[1, 2, 1, 2]]
    groups = [rewards, rewards, near, np.array([1.0, 1.0])]
    found = window(groups)
    one_level = (found.counts > 0).sum(axis=1) == 1
    assert found.flat.tolist() == [False, False, False, True]
    assert one_level.tolist() == [False, False, True, True]
    statistics = found.statistics()
    assert statistics.flat_factor == 0.5
    model = StepModel(Setting(4, 4, 4), Rule("grpo"))
    learning = model.signal(statistics.mixture, model.current).learning
    (predicted,) = model.predict([model.current], statistics, StepClock(found.costs(statistics.work), LASTING))
    assert predicted.work.trained == pytest.approx(16 * (1 - 0.5 * (1 - learning)))


def test_atoms_of_two_levels_are_used_again():
    """Two levels have no base, so their atoms depend on the values alone. Those of three depend on the counts."""
    few, many = np.array([[1, 1]]), np.array([[2, 7]])
    assert atoms_for([0.0, 1.0], few) is atoms_for([0.0, 1.0], many)
    assert atoms_for([0.0, 2.0], few) is not atoms_for([0.0, 1.0], few)
    assert atoms_for([0.0, 1.0, 2.0], np.array([[1, 1, 1]])) is not atoms_for([0.0, 1.0, 2.0], np.array([[1, 1, 2]]))


def test_lasting_of_no_lengths_is_a_mean_length():
    assert lasting_of([]).tolist() == []
    assert lasting_of([2, 1]).tolist() == [1.0, 0.5]
    assert lasting_of([1, 2], [3, 1]).tolist() == [1.0, 0.25]
    found = window([np.array([0.0, 1.0])], lengths=()).statistics()
    assert found.lasting.tolist() == [1.0] * 6  # 96 tokens of 16 rollouts
    assert set(COLUMNS) == set(window([np.array([0.0, 1.0])]).rows)
