"""A plan before any run: worlds of the prior, memory and costs."""

import dataclasses
import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from planned_run import CONFIG, SETS
from refusals import refused
from winnow.algos.costs import CostCurve, StepCosts
from winnow.algos.size_prior import Prior
from winnow.algos.step_plan import Setting
from winnow.commands import app
from winnow.config_file import load
from winnow.core.sizes import options_of, resized
from winnow.errors import ConfigError
from winnow.state.cost_files import read_costs
from winnow.training import budget
from winnow.training.budget import demand_of, plan_demand
from winnow.training.first_plan import FirstPlan
from winnow.training.resolve import resolve_file
from winnow.training.size_fits import Fits, PlanRequest
from winnow_lab.plan.text import first_lines

COSTS = Path(__file__).parents[3] / "configs" / "costs" / "two_cpu_cores.json"


@pytest.fixture(scope="module")
def fits():
    return Fits(resolve_file(CONFIG, SETS), 2**31)


def first(fits, pass_rate=0.3, costs=None, draws=40):
    return FirstPlan(fits, PlanRequest(), Prior(pass_rate, 8.0), costs, draws)


@pytest.mark.parametrize("critic", [None, "model"])
def test_a_setting_fits_as_planned_alone_and_all_share_the_models_shapes(critic, monkeypatch):
    """Shapes with an adapter take a second to build, and a plan has dozens of settings."""
    keys = ["model.lora.rank=2"] + ([] if critic is None else [f"critic.form={critic}", "advantage=gae"])
    members, built = resolve_file(CONFIG, [*SETS, *keys]), []
    shapes = budget.policy_shapes
    monkeypatch.setattr(budget, "policy_shapes", lambda config: built.append(config) or shapes(config))
    fits = Fits(members, 2**31)
    settings = [Setting(n, m, prompts) for n, m, prompts in ((4, 4, 2), (8, 4, 2), (64, 16, 16))]
    found = [fits.fit(setting) for setting in settings]
    assert len(built) == 1
    for setting, fit in zip(settings, found, strict=True):
        sized = resized(members, setting)
        update = sized.config.update.model_copy(update={"tokens_per_micro_batch": fit.tokens})
        alone = dataclasses.replace(sized, config=sized.config.model_copy(update={"update": update}))
        plan = plan_demand(alone, demand_of(alone, fits.device, longest_prompt=fits._longest, memory=2**31))
        assert fit.bytes == plan.need_here(str(fits.device))


def test_worlds_are_around_the_supposed_pass_rate_and_differ():
    means = [np.mean([one.mixture.mean for one in Prior(rate, 8.0).worlds(200, 0)]) for rate in (0.1, 0.5, 0.9)]
    assert means == sorted(means)
    assert means[1] == pytest.approx(0.45, abs=0.08)  # 1/6 are never solved and 1/10 always
    worlds = list(Prior(0.5, 8.0).worlds(50, 0))
    assert np.std([one.mixture.flat_share(8) for one in worlds]) > 0.05
    assert all(one.mixture.weights.sum() == pytest.approx(1.0) for one in worlds)
    assert [one.mixture.mean for one in Prior(0.5, 8.0).worlds(3, 7)] == [
        one.mixture.mean for one in Prior(0.5, 8.0).worlds(3, 7)
    ]


def test_the_pass_rate_is_the_median_of_the_prompts_that_are_sometimes_solved():
    """In the middle of the worlds: the log-odds of a world's middle have a standard deviation of 1 around it."""
    odds = []
    for world in Prior(0.2, 8.0).worlds(400, 0):
        weights, rates = world.mixture.weights[:-2], world.mixture.atoms.means[:-2]
        median = rates[np.searchsorted(weights.cumsum() / weights.sum(), 0.5)]
        odds.append(np.log(median / (1 - median)))
    assert np.mean(odds) == pytest.approx(np.log(0.2 / 0.8), abs=0.3)
    assert np.std(odds) == pytest.approx(1.0, abs=0.15)


def test_the_accuracy_is_the_mean_over_all_prompts(fits):
    plan = first(fits, pass_rate=0.2)
    worlds = list(Prior(0.2, 8.0).worlds(40, 0))
    assert plan.accuracy == pytest.approx(np.mean([one.mixture.mean for one in worlds]))


@pytest.mark.parametrize("rate", [0.0, 1.0, -1.0])
def test_a_certain_pass_rate_is_refused(rate):
    with refused(ConfigError, code="config.value"):
        Prior(rate, 8.0)


def test_the_first_setting_loses_least(fits):
    plan = first(fits)
    means = [plan.regret(setting)[0] for setting in plan.settings]
    assert plan.regret(plan.best)[0] == pytest.approx(max(means))
    assert plan.relative.max(axis=1) == pytest.approx(np.ones(40))
    assert all(one.sampled == plan.model.current.sampled for one in plan.settings)  # without cost curves
    assert plan.neighbour(rollouts=plan.best.rollouts) is None


def test_hard_prompts_need_more_rollouts_than_even_ones(fits):
    """A prompt that is solved once in 50 rollouts is flat in nearly every group of 2."""
    even, hard = first(fits, 0.5), first(fits, 0.02)
    few, many = Setting(2, 2, 16), Setting(32, 4, 1)
    ratios = [plan.regret(many)[0] / plan.regret(few)[0] for plan in (even, hard)]
    assert ratios[0] < ratios[1]


def test_with_costs_prompts_are_chosen_too_and_seconds_are_those_of_the_curves(fits):
    costs = read_costs(COSTS)
    plan = first(fits, costs=costs)
    assert len({one.prompts for one in plan.settings}) > 3
    now = plan.model.current
    clock = plan.clock(next(plan.prior.worlds(1, 0)))
    predicted = plan.table.predicted[plan.settings.index(now)]
    (seconds,) = clock.seconds([predicted.work], at_once=plan.at_once(now))
    assert predicted.seconds.sampling == pytest.approx(seconds.sampling)


def test_settings_beyond_the_curves_are_marked_and_explained(fits):
    points = np.array([2.0, 8.0])
    few, many = (StepCosts(*[CostCurve(points * by, points, 8.0)] * 2, source="by hand") for by in (1.0, 1e6))
    plans = [first(fits, costs=costs) for costs in (few, many)]
    assert [[one.extrapolates(setting) for setting in one.settings].count(True) > 0 for one in plans] == [True, False]
    assert plans[0].extrapolates(max(plans[0].settings, key=lambda one: one.sampled))
    for plan, marked in zip(plans, (True, False), strict=True):
        lines = "\n".join(first_lines(plan, CONFIG))
        assert ("%+" in lines, "+: " in lines) == (marked, marked)


def test_the_command_fits_one_screen_and_its_keys_are_valid(tmp_path):
    words = [str(CONFIG), *(x for s in SETS for x in ("--set", s)), "--costs", str(COSTS), "--draws", "20"]
    result = CliRunner().invoke(app, ["plan", *words, "--memory", "2GiB", "-o", str(tmp_path / "plan.json")])
    assert result.exit_code == 0, result.output
    assert len(result.output.splitlines()) <= 40
    data = json.loads((tmp_path / "plan.json").read_text())
    best = data["settings"][0]
    made = load(CONFIG, [*SETS, *best["set"]])
    assert (made.rollout.rollouts_per_prompt, made.rollout.prompts_per_step) == (best["rollouts"], best["prompts"])
    assert "winnow train arithmetic --set task.size=64" in " ".join(result.output.split())
    assert 0 < best["progress"] <= 1


def test_the_command_can_be_pasted_with_a_value_of_many_words(fits):
    given = ["--set", "prompt.system=Think step by step, then write the answer alone, as a number without a unit"]
    line = list(first_lines(first(fits, costs=read_costs(COSTS)), CONFIG, given))[-1]
    words = shlex.split(line)
    assert words[:3] == ["set", "winnow", "train"]
    assert given[1] in words
    assert "\n" not in line


def test_another_size_is_compared_with_the_setting_that_is_chosen(fits, monkeypatch):
    plan = first(fits, costs=read_costs(COSTS))
    top, whole = plan.settings[plan.order[0]], fits.fit
    monkeypatch.setattr(fits, "fit", lambda setting: None if setting == top else whole(setting))
    best = plan.best
    other = next(plan.settings[place] for place in plan.order if plan.settings[place] not in (top, best))
    rates = [plan.table.rate[:, plan.settings.index(one)] for one in (other, best)]
    assert best != top
    assert plan.neighbour(**vars(other)) == pytest.approx(np.exp(np.log(rates[0] / rates[1]).mean()))


def test_a_run_that_chooses_its_sizes_may_start_with_the_planned_ones():
    sets = [*SETS, 'plan.use="auto"', "plan.rollouts_per_prompt=[8, 16]", "plan.keep_per_prompt=[4, 8]"]
    plan = first(Fits(resolve_file(CONFIG, sets), 2**31))
    assert {one.rollouts for one in plan.settings} == {8, 16}
    assert {one.kept for one in plan.settings} == {4, 8}
    resolve_file(CONFIG, [*sets, *options_of(Setting(16, 4, 2))])
    with refused(ConfigError, key="plan.rollouts_per_prompt"):
        resolve_file(CONFIG, [*sets, *options_of(Setting(4, 4, 8))])


def test_every_world_has_prompts_that_are_sometimes_solved():
    assert all(one.mixture.weights[:-2].sum() > 0 for one in Prior(0.3, 8.0).worlds(20_000, 0))
