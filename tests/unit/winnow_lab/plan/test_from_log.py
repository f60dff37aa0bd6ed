"""A plan from a log: its comparisons, intervals and words, and the options of the command."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from planned_run import CONFIG, RIGHT, SECONDS, SETS, N, group, rewards_of, write_planned_run
from refusals import refused
from winnow.algos.costs import COMPUTE, CostCurve, StepCosts
from winnow.algos.planning import Noise, Rule
from winnow.algos.step_plan import Setting
from winnow.commands import app
from winnow.config_file import load
from winnow.core.sizes import options_of, rule_of, setting_of
from winnow.errors import ConfigError, DataError, WinnowError
from winnow.state.cost_files import as_json
from winnow.training.size_fits import Fits, PlanRequest
from winnow_lab.plan.evidence import evidence_of
from winnow_lab.plan.from_log import LogPlan
from winnow_lab.plan.text import log_lines

VERL = Path(__file__).parents[3] / "fixtures" / "verl_run"
COSTS = StepCosts(
    CostCurve(np.array([8.0, 32.0]), np.array([1.0, 1.6]), tokens_per_rollout=6.0),
    CostCurve(np.array([8.0, 24.0]), np.array([0.4, 1.0]), tokens_per_rollout=6.0),
    source="by hand",
)
STEP_SECONDS = sum(SECONDS.values()) - SECONDS["save"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """8 prompts, each in every one of 6 steps."""
    groups = [group(f"p{i}", rewards_of(right)) for i, right in enumerate((*RIGHT, 0, 2, 5, 8))]
    return write_planned_run(tmp_path_factory.mktemp("planned") / "run", groups, steps=6)


@pytest.fixture(scope="module")
def plan(run):
    return LogPlan(evidence_of(run), PlanRequest(), draws=40)


@pytest.fixture(scope="module")
def with_costs(run):
    return LogPlan(evidence_of(run), PlanRequest(), COSTS, draws=20)


def call(*words):
    return CliRunner().invoke(app, ["plan", *map(str, words)])


def test_the_current_setting_is_compared_with_itself(plan):
    place = plan.settings.index(plan.model.current)
    own = next(one for one in plan.ranking if one.prediction.setting == plan.model.current)
    assert (own.per_step.value, own.per_step.low, own.per_second.high) == pytest.approx((1.0, 1.0, 1.0))
    assert plan.table.predicted[place].seconds.total == pytest.approx(STEP_SECONDS, rel=0.1)


def test_answers_are_the_best_of_their_question(plan):
    n, m, every = (plan.answers[name] for name in ("n", "m", "together"))
    assert every.per_second.value >= max(n.per_second.value, m.per_second.value)
    assert n.prediction.setting.kept == n.prediction.setting.rollouts  # as all are kept now
    assert m.prediction.setting.rollouts == N
    assert plan.ranking[0].prediction.setting == every.prediction.setting
    for one in plan.answers.values():
        assert one.per_second.low <= one.per_second.high
        assert 0 <= one.chosen <= 1
    assert "prompts" not in plan.answers  # no seconds of other numbers are known


def test_a_draw_is_of_prompts_with_all_their_groups(plan):
    """Every prompt has the same verdicts in each of 6 steps, so 48 groups are 8 observations: their mean scatters as
    that of 8 rates, and not as that of 48 groups."""
    means = np.array([one.mixture.mean for one in plan.drawn])
    rates = np.array([*RIGHT, 0, 2, 5, 8]) / N
    assert means.std() == pytest.approx(rates.std() / 8**0.5, rel=0.35)


def test_draws_depend_on_the_seed_alone(run):
    one, same, other = (LogPlan(evidence_of(run), PlanRequest(), draws=20, seed=seed) for seed in (1, 1, 2))
    assert one.best.per_second == same.best.per_second
    assert one.best.per_second != other.best.per_second


def test_the_same_progress_costs_the_steps_times_the_ratio(plan):
    place = plan.settings.index(plan.best.prediction.setting)
    now, best = plan.table.predicted[plan.settings.index(plan.model.current)], plan.table.predicted[place]
    saved = plan.saving
    assert saved.steps.value == pytest.approx(6 * now.progress / best.progress)
    assert saved.seconds[0] == pytest.approx(6 * now.seconds.total)
    assert saved.seconds[1].value == pytest.approx(saved.steps.value * best.seconds.total)
    assert saved.seconds[0] / saved.seconds[1].value == pytest.approx(plan.best.per_second.value)


def test_costs_add_the_question_of_prompts_and_are_scaled_to_the_phases(with_costs):
    assert {one.prompts for one in with_costs.settings} == {1, 2, 4, 8, 16}
    assert with_costs.answers["prompts"].prediction.setting.rollouts == N
    seconds = with_costs.clock(with_costs.statistics).seconds(with_costs.statistics.work, at_once=512)
    assert seconds.sampling == pytest.approx(SECONDS["generate"])
    assert seconds.update == pytest.approx(SECONDS["logprobs"] + SECONDS["update"])
    assert seconds.total == pytest.approx(STEP_SECONDS)


def test_costs_as_measured_are_not_scaled(run):
    request = PlanRequest(calibrate=False)
    plan = LogPlan(evidence_of(run), request, COSTS, draws=20)
    seconds = plan.clock(plan.statistics).seconds(plan.statistics.work, at_once=512)
    assert (seconds.update, seconds.rest) == pytest.approx((1.0, 0.0))


def test_a_curve_that_is_0_cannot_be_scaled(run):
    nothing = StepCosts(COSTS.sampling, CostCurve(np.array([24.0]), np.array([0.0])), source="nothing")
    plan = LogPlan(evidence_of(run), PlanRequest(), nothing, draws=20)
    with refused(DataError, "nothing", code="data.incomplete"):
        plan.clock(plan.statistics)


def test_without_phases_costs_are_operations(tmp_path):
    run = write_planned_run(tmp_path / "run", **{"seconds/update": None})
    plan = LogPlan(evidence_of(run), PlanRequest(), draws=20)
    assert not plan.in_seconds
    seconds = plan.clock(plan.statistics).seconds(plan.statistics.work, at_once=512)
    assert seconds.total == pytest.approx(COMPUTE["generate"] * 192 + COMPUTE["update"] * 144)
    assert any("seconds" in what for what, _ in plan.unknown())


def test_less_memory_leaves_out_settings_and_halves_micro_batches(run, plan):
    assert isinstance(plan.fits, Fits)
    whole = {plan.fits.fit(setting).tokens for setting in plan.settings}
    assert whole == {plan.fits.config.update.tokens_per_micro_batch}
    memory = max(plan.fits.fit(setting).bytes for setting in plan.settings) // 2
    less = LogPlan(evidence_of(run), PlanRequest(memory=memory), draws=20)
    fits = [less.fits.fit(setting) for setting in less.settings]
    assert all(fit.bytes <= memory for fit in fits)
    assert {4096 // fit.tokens for fit in fits} != {1}
    with refused(ConfigError, code="config.memory"):
        _ = LogPlan(evidence_of(run), PlanRequest(memory=2**20), draws=20).settings


def test_a_run_whose_model_is_gone_has_a_plan_without_memory(tmp_path):
    run = write_planned_run(tmp_path / "run")
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["config"]["model"]["path"] = str(tmp_path / "gone")
    (run / "manifest.json").write_text(json.dumps(manifest))
    plan = LogPlan(evidence_of(run), PlanRequest(), draws=20)
    assert isinstance(plan.fits, WinnowError)
    assert any("memory" in what for what, _ in plan.unknown())
    assert plan.settings


def test_the_sizes_stay_if_a_better_setting_is_not_shown(run):
    """One group with a signal: a draw without it, or with it twice, changes everything."""
    plan = LogPlan(evidence_of(run), PlanRequest(), draws=40)
    assert plan.keep == (plan.best.per_second.low <= 1)


@pytest.mark.parametrize("noise", [Noise(np.nan, 1.0), Noise(1.0, np.inf)])
def test_noise_that_is_not_finite_is_refused(noise):
    with refused(ConfigError, code="config.value"):
        PlanRequest(noise=noise)


@pytest.mark.parametrize(
    "change",
    [
        'allocate="gvm"',
        "rollout.dynamic_sampling_rounds=1",
        'rounds="pilot_commit"',
        'cut={use="stragglers", share=0.5}',
        'select="random"',
        'select=[{use="finished"}, {use="max_variance"}]',
        'select={use="max_variance", keep_per_prompt=2, chunk=4}',
        'select={use="max_variance", keep_per_prompt=1}',
        'advantage="raft"',
        "advantage.chunk=4",
    ],
)
def test_unsupported_settings_are_refused(change):
    with refused(ConfigError, "here", code="config.unsupported") as caught:
        setting_of(load(CONFIG, [*SETS, change]), "here")
    assert caught.value.key


def test_a_setting_has_the_defaults_of_its_members():
    config = load(CONFIG, [*SETS, 'select="max_variance"', 'advantage="dr_grpo"'])
    assert setting_of(config, "here") == Setting(N, 4, 4)
    assert rule_of(config) == Rule("dr_grpo", "kept")
    share = load(CONFIG, [*SETS, 'select={use="max_variance", keep_per_prompt=0.25}'])
    assert setting_of(share, "here").kept == 2


@pytest.mark.parametrize("setting", [Setting(16, 4, 8), Setting(8, 8, 2)])
def test_the_printed_keys_make_the_setting(setting):
    assert setting_of(load(CONFIG, options_of(setting)), "here") == setting


def test_the_command_prints_the_plan_and_writes_it_as_json(run, tmp_path):
    costs = tmp_path / "costs.json"
    costs.write_text(json.dumps(as_json(COSTS)))
    result = call(run, "--costs", costs, "--draws", "20", "-o", tmp_path / "plan.json")
    assert result.exit_code == 0, result.output
    data = json.loads((tmp_path / "plan.json").read_text())
    best = data["settings"][0]
    assert best["per_second"]["value"] == pytest.approx(data["answers"]["together"]["per_second"]["value"])
    assert (data["draws"], data["seed"], data["steps"]) == (20, 0, [0, 5])
    made = setting_of(load(CONFIG, [*SETS, *best["set"]]), "here")
    assert made == Setting(best["rollouts"], best["kept"], best["prompts"])
    assert best["memory"]["tokens"] > 0
    assert call(run, "-o", tmp_path / "plan.json").exit_code == 2


def test_a_log_of_verl_is_planned_with_words_for_what_it_lacks():
    plan = LogPlan(evidence_of(VERL), PlanRequest(), draws=20)
    text = "\n".join(log_lines(plan))
    assert plan.fits is None
    assert plan.in_seconds
    for word in ("verl", "cannot be known from this log", "actor_rollout_ref.rollout.n"):
        assert word in text
    assert plan.model.work(plan.model.current, plan.statistics).trained == 32  # verl trains on flat groups


@pytest.mark.parametrize("words", [["/nowhere"], ["--costs", "x.json"], ["arithmetic", "--draws", "2"]])
def test_wrong_options_are_refused(words):
    result = call(*words)
    assert result.exit_code == 2


def test_a_run_has_its_own_configuration(run):
    assert call(run, "--set", "steps=3").exit_code == 2
