"""A plan from a run's folder and a file of costs: seconds, ranking, and options that are refused early."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner
from winnow_lab.profile.plan import PlanRequest, prepare_plan
from winnow_lab.profile.plan_text import opening_lines, plan_lines
from winnow_lab.profile.run_statistics import StepClock, calibrated, own_work, statistics_of, uncalibrated
from winnow_lab.profile.setting import Setting, rule_of, setting_of

from golden_files import assert_golden
from planned_run import CONFIG, SECONDS, SETS, N, write_planned_run
from refusals import refused
from winnow.algos.costs import CostCurve, StepCosts, StepWork
from winnow.algos.planning import Noise, Rule, flat_share, group_signal
from winnow.commands import app
from winnow.config_file import load, validate
from winnow.errors import ConfigError, DataError
from winnow_lab.costs import as_json

COSTS = StepCosts(
    CostCurve(np.array([8.0, 32.0]), np.array([1.0, 1.6]), tokens_per_rollout=6.0),
    CostCurve(np.array([8.0, 24.0]), np.array([0.4, 1.0]), tokens_per_rollout=6.0),
    source="by hand",
)
STEP_SECONDS = sum(SECONDS.values()) - SECONDS["save"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_planned_run(tmp_path_factory.mktemp("planned") / "run")


@pytest.fixture(scope="module")
def costs(tmp_path_factory):
    path = tmp_path_factory.mktemp("costs") / "costs.json"
    path.write_text(json.dumps(as_json(COSTS)))
    return path


@pytest.fixture(scope="module")
def plan(run):
    return prepare_plan(CONFIG, SETS, run, PlanRequest(), window=20)


def call(*words, sets=SETS):
    return CliRunner().invoke(app, ["profile", str(CONFIG), *(x for s in sets for x in ("--set", s)), *map(str, words)])


def test_at_the_runs_own_setting_a_scaled_clock_gives_its_seconds(run):
    found = statistics_of(run, window=20)
    clock = calibrated(COSTS, found, at_once=512)
    seconds = clock.seconds(own_work(found), at_once=512)
    assert seconds.sampling == pytest.approx(SECONDS["generate"])
    assert seconds.update == pytest.approx(SECONDS["logprobs"] + SECONDS["update"])
    assert seconds.total == pytest.approx(STEP_SECONDS)


def test_verification_grows_with_the_rollouts_and_weight_sync_does_not(run):
    clock = calibrated(COSTS, statistics_of(run, window=20), at_once=512)
    assert clock.per_rollout == pytest.approx((SECONDS["verify"] + SECONDS["select"]) / 32)
    work = StepWork(prompts=4, rollouts=64.0, tokens_generated=384.0, trained=24.0, tokens_trained=144.0)
    assert clock.seconds(work, at_once=512).rest == pytest.approx(0.64 + SECONDS["sync"])


def test_an_uncalibrated_clock_does_not_scale_the_costs(run):
    clock = uncalibrated(COSTS, statistics_of(run, window=20))
    assert (clock.sampling_factor, clock.update_factor, clock.per_rollout, clock.per_step) == (1.0, 1.0, 0.0, 0.0)
    work = StepWork(prompts=4, rollouts=32.0, tokens_generated=192.0, trained=24.0, tokens_trained=144.0)
    seconds = clock.seconds(work, at_once=512)
    # 4 tokens with 32 rollouts, 4 with 16, each a sixth of a call: (1.6 + 1.2) * 4 / 6
    assert (seconds.sampling, seconds.update) == pytest.approx((2.8 * 4 / 6, 1.0))


def test_prompts_with_a_machine_each_need_the_seconds_of_one(run):
    per_prompt = StepCosts(COSTS.sampling, COSTS.update, per="prompt")
    clock = StepClock(per_prompt, np.ones(6))
    work = StepWork(prompts=4, rollouts=32.0, tokens_generated=192.0, trained=32.0, tokens_trained=192.0)
    assert clock.seconds(work, at_once=512).total == pytest.approx(1.0 + 0.4)
    assert not clock.extrapolates(work, at_once=512)
    assert StepClock(COSTS, np.ones(6)).extrapolates(work, at_once=512)  # 32 in an update, and the curve ends at 24


def test_a_curve_without_seconds_cannot_be_calibrated(run):
    nothing = StepCosts(COSTS.sampling, CostCurve(np.array([24.0]), np.array([0.0])))
    with refused(DataError, code="data.incomplete"):
        calibrated(nothing, statistics_of(run, window=20), at_once=512)


def test_candidates_are_sorted_by_rate_and_match_the_law(plan):
    clock = plan.clock(COSTS)
    found = plan.candidates(clock)
    rates = [one.rate for one in found]
    assert rates == sorted(rates, reverse=True)
    assert {one.setting.prompts for one in found} == {1, 2, 4, 8, 16}
    current = next(one for one in found if one.setting == plan.current)
    assert plan.current == Setting(rollouts=N, kept=N, prompts=4)
    group = group_signal(plan.run.rates, N, N, Rule("grpo"))
    assert current.flat == pytest.approx(flat_share(plan.run.rates, N))
    trained = 4 * N * group.learning
    seconds = clock.seconds(StepWork(4, 32.0, 192.0, trained, 6.0 * trained), at_once=512)
    assert (current.seconds.sampling, current.seconds.update) == pytest.approx((seconds.sampling, seconds.update))


@pytest.mark.parametrize("noise", [Noise(np.nan, 1.0), Noise(1.0, np.inf)])
def test_noise_that_is_not_finite_is_refused(noise):
    with refused(ConfigError, code="config.value"):
        PlanRequest(noise=noise)


def test_prompts_of_a_step_can_be_fixed(run):
    plan = prepare_plan(CONFIG, SETS, run, PlanRequest(prompts=2), window=20)
    assert {setting.prompts for setting in plan.settings} == {2, 4}  # and the current setting, to compare with
    with refused(ConfigError, 65, 64, key="rollout.prompts_per_step", code="config.value"):
        prepare_plan(CONFIG, SETS, run, PlanRequest(prompts=65), window=20)


def test_progress_up_to_a_high_pass_rate_favours_large_groups(run, plan):
    """If most prompts are solved, one of 4 rollouts is rarely wrong."""
    far = prepare_plan(CONFIG, SETS, run, PlanRequest(until=0.9), window=20)
    few, many = Setting(4, 4, 4), Setting(32, 4, 4)
    ratio = {}
    for name, one in (("now", plan), ("far", far)):
        clock = one.clock(COSTS)
        ratio[name] = one.candidate(few, clock).progress / one.candidate(many, clock).progress
    assert ratio["far"] < ratio["now"] < 1
    with refused(ConfigError, code="config.value"):
        prepare_plan(CONFIG, SETS, run, PlanRequest(until=0.1), window=20)


def test_less_memory_needs_smaller_micro_batches(run, plan):
    tokens = {fit.tokens for fit in (plan.fit(setting) for setting in plan.settings) if fit}
    assert tokens == {plan.config.update.tokens_per_micro_batch}
    memory = max(plan.fit(setting).bytes for setting in plan.settings) // 2
    less = prepare_plan(CONFIG, SETS, run, PlanRequest(memory=memory), window=20)
    fits = [less.fit(setting) for setting in less.settings]
    assert {4096 // fit.tokens for fit in fits} > {1}  # some are halved, and some are not
    assert all(fit.bytes <= memory for fit in fits)


def test_a_memory_without_a_fitting_candidate_is_refused(run):
    with refused(ConfigError, code="config.memory"):
        prepare_plan(CONFIG, SETS, run, PlanRequest(memory=2**20, prompts=4), window=20)


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


def test_a_run_whose_rollouts_were_cut_has_no_plan(tmp_path):
    """The log has their tokens up to the cut, which is not where they would have ended."""
    cut = write_planned_run(tmp_path / "cut", sets=['cut="stragglers"', 'weighting="prompt"'])
    with refused(ConfigError, cut, key="cut", code="config.unsupported"):
        prepare_plan(CONFIG, SETS, cut, PlanRequest(), window=20)


def test_a_setting_has_the_defaults_of_its_members():
    config = load(CONFIG, [*SETS, 'select="max_variance"', 'advantage="dr_grpo"'])
    assert setting_of(config, "here") == Setting(N, 4, 4)
    assert rule_of(config) == Rule("dr_grpo", "kept")
    share = load(CONFIG, [*SETS, 'select={use="max_variance", keep_per_prompt=0.25}'])
    assert setting_of(share, "here").kept == 2


@pytest.mark.parametrize("setting", [Setting(16, 4, 8), Setting(8, 8, 2)])
def test_the_printed_keys_make_the_setting(setting):
    assert setting_of(load(CONFIG, setting.settings), "here") == setting


def test_the_command_prints_the_plan_and_writes_it_as_json(run, costs, tmp_path):
    result = call("--plan", "--run", run, "--costs", costs, "-o", tmp_path / "plan")
    assert result.exit_code == 0, result.output
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]
    data = json.loads((tmp_path / "plan.json").read_text())
    best, current = data["candidates"][0], data["current"]
    assert best["progress_per_second"] >= current["progress_per_second"]
    assert current["seconds"]["step"] == pytest.approx(
        STEP_SECONDS, rel=0.1
    )  # the fitted share of flat groups differs from the measured one
    assert data["run"]["steps"] == [0, 2]
    assert data["costs"]["sampling"]["seconds"] == [1.0, 1.6]
    assert "winnow train arithmetic --set " in result.output  # a recipe by its name, which is valid on any machine
    for word in best["set"]:
        assert word in result.output
    made = setting_of(load(CONFIG, [*SETS, *best["set"]]), "here")
    assert made == Setting(best["rollouts_per_prompt"], best["keep_per_prompt"], best["prompts_per_step"])
    assert call("--plan", "--run", run, "--costs", costs, "-o", tmp_path / "plan").exit_code == 2


def test_the_displayed_plan_matches_its_golden_file(tmp_path):
    sets = [*SETS, 'device="cpu"', 'model.dtype="float32"', 'rollout.engine="native"']
    run = write_planned_run(tmp_path / "run", sets=sets[len(SETS) :])
    plan = prepare_plan(CONFIG, sets, run, PlanRequest(memory=2**29), window=20)
    clock = plan.clock(COSTS)
    lines = [*opening_lines(plan), *plan_lines(plan, clock, plan.candidates(clock), Path("mine.toml"))]
    assert_golden("step_plan", "\n".join(lines).replace(str(run), "RUN"))


@pytest.mark.parametrize(
    "words",
    [
        ["--plan"],
        ["--prompts", "4"],
        ["--costs", "x.json"],
        ["--plan", "--run", "/nowhere"],
        ["--as-measured"],
    ],
)
def test_options_that_exclude_each_other_are_refused(words):
    result = call(*words)
    assert result.exit_code == 2
    assert "tokens/s" not in result.output  # the head of the table


def test_costs_are_measured_at_the_runs_length_without_a_file(run, tmp_path):
    # A step trains on 24: seconds there are measured, and not drawn on from fewer, as those of a busy machine may fall
    words = ("--plan", "--run", run, "--rollouts", "24", "--kept", "8,24", "--repeats", "1", "-o", tmp_path / "plan")
    result = call(*words)
    assert result.exit_code == 0, result.output
    measured = json.loads((tmp_path / "plan.costs.json").read_text())
    assert measured["sampling"]["rollouts"] == [24]
    assert measured["update"]["rollouts"] == [8, 24]
    assert measured["sampling"]["tokens_per_rollout"] == measured["update"]["tokens_per_rollout"] == 6
    assert json.loads((tmp_path / "plan.json").read_text())["costs"] == measured


def test_a_manifest_with_an_invalid_configuration_is_refused(run, tmp_path):
    broken = write_planned_run(tmp_path / "run")
    manifest = json.loads((broken / "manifest.json").read_text())
    manifest["config"]["rollout"]["rollouts_per_prompt"] = "many"
    (broken / "manifest.json").write_text(json.dumps(manifest))
    with refused(ConfigError, key="rollout.rollouts_per_prompt"):
        statistics_of(broken, window=20)
    validate(json.loads((run / "manifest.json").read_text())["config"])
