"""A plan from a log: its comparisons, intervals and words, and the options of the command."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from chat_templates import render_here
from planned_run import CONFIG, RIGHT, SECONDS, SETS, N, group, rewards_of, write_planned_run
from refusals import refused
from winnow.algos.costs import COMPUTE, CostCurve, StepCosts
from winnow.algos.planning import Noise, Rule
from winnow.algos.step_plan import NOISE, Setting
from winnow.commands import app
from winnow.config_file import load
from winnow.core.sizes import options_of, rule_of, setting_of
from winnow.errors import ConfigError, DataError, WinnowError
from winnow.state.cost_files import as_json
from winnow.state.decisions import DECISIONS, DecisionLog
from winnow.training.size_fits import Fits, MemoryFit, PlanRequest
from winnow_lab.plan import text
from winnow_lab.plan.advice import Range, against
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


@pytest.fixture(autouse=True)
def _rendered_here(monkeypatch):
    """Else each plan, which renders the prompts of its run, takes two forks of this process."""
    render_here(monkeypatch)


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


LONG = ["arithmetic", "--length", "1e11"]  # a rollout has far fewer tokens


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
    one, same, other = (LogPlan(evidence_of(run), PlanRequest(), draws=5, seed=seed) for seed in (1, 1, 2))
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
    (seconds,) = with_costs.clock(with_costs.statistics).seconds([with_costs.statistics.work], at_once=512)
    assert seconds.sampling == pytest.approx(SECONDS["generate"])
    assert seconds.update == pytest.approx(SECONDS["logprobs"] + SECONDS["update"])
    assert seconds.total == pytest.approx(STEP_SECONDS)


def test_costs_as_measured_are_not_scaled(run):
    request = PlanRequest(calibrate=False)
    plan = LogPlan(evidence_of(run), request, COSTS, draws=20)
    (seconds,) = plan.clock(plan.statistics).seconds([plan.statistics.work], at_once=512)
    assert (seconds.update, seconds.rest) == pytest.approx((1.0, 0.0))


def test_a_curve_that_is_0_cannot_be_scaled(run):
    nothing = StepCosts(COSTS.sampling, CostCurve(np.array([24.0]), np.array([0.0])), source="nothing")
    plan = LogPlan(evidence_of(run), PlanRequest(), nothing, draws=20)
    with refused(DataError, "nothing", code="data.incomplete"):
        plan.clock(plan.statistics)


@pytest.mark.parametrize("costs", [COSTS, None], ids=["curves", "fitted"])
def test_a_draw_of_steps_without_an_update_has_the_costs_of_the_window(tmp_path, costs):
    """One step of six has an update."""
    run = write_planned_run(tmp_path / "run", steps=6)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for place, line in enumerate(lines):
        line |= {} if place == 1 else {"select/trained": 0, "budget/tokens_trained": 0}
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    plan = LogPlan(evidence_of(run), PlanRequest(), costs, draws=20)
    without = next(one for one in plan.drawn if not one.work.trained)
    clock, whole = plan.clock(without), plan.clock(plan.statistics)
    assert (clock.sampling_factor, clock.update_factor) == (whole.sampling_factor, whole.update_factor)
    assert np.isfinite(plan.best.per_second.low)


def test_without_phases_costs_are_operations(tmp_path):
    run = write_planned_run(tmp_path / "run", **{"seconds/update": None})
    plan = LogPlan(evidence_of(run), PlanRequest(), draws=20)
    assert not plan.in_seconds
    (seconds,) = plan.clock(plan.statistics).seconds([plan.statistics.work], at_once=512)
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
    run = write_planned_run(tmp_path / "run", sets=["update.updates_per_step=2"])
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["config"]["model"]["path"] = str(tmp_path / "gone")
    (run / "manifest.json").write_text(json.dumps(manifest))
    plan = LogPlan(evidence_of(run), PlanRequest(), draws=20)
    assert isinstance(plan.fits, WinnowError)
    assert any("memory" in what for what, _ in plan.unknown())
    assert plan.model.updates == 2
    assert min(one.prompts for one in plan.settings) >= 2


def test_code_of_a_run_is_imported_from_its_own_folder_and_only_if_trusted(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "own.py").write_text("def reward(prompt, rollout):\n    return 0.0\n")
    run = write_planned_run(tmp_path / "run")
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["base"], manifest["config"]["reward"] = str(tmp_path / "mine"), {"use": "own.py:reward"}
    (run / "manifest.json").write_text(json.dumps(manifest))
    monkeypatch.chdir(tmp_path)
    no, yes = (LogPlan(evidence_of(run), PlanRequest(), draws=20, trust_run=trust).fits for trust in (False, True))
    assert isinstance(no, WinnowError)
    assert no.code == "config.untrusted"
    assert isinstance(yes, Fits)


def test_sampling_one_step_ahead_is_not_free(tmp_path):
    """Only the first step, which warms up, has seconds of sampling."""
    run = write_planned_run(tmp_path / "run", steps=6, sets=("rollout.ahead=1",))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for row in rows[1:]:
        row["seconds/wait"] = row.pop("seconds/generate")
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    plan = LogPlan(evidence_of(run), PlanRequest(), COSTS, draws=20)
    assert not plan.evidence.has_phases
    assert "rollout.ahead = 1" in dict(plan.unknown())["seconds of another setting"]
    (seconds,) = plan.clock(plan.statistics).seconds([plan.statistics.work], at_once=512)
    assert seconds.sampling > 0


def test_the_sizes_stay_unless_the_gain_holds_at_every_noise(run, with_costs):
    """With the curves, more prompts gain at the supposed noise, and lose at a quarter of it."""
    assert with_costs.best.per_second.low > 1
    low = {factor: gain.low for factor, gain in with_costs.gains.items()}
    assert list(low) == [0.25, 1.0, 4.0]
    assert low[1.0] == with_costs.best.per_second.low
    assert with_costs.keep == (min(low.values()) <= 1)
    for factor in (0.25, 4.0):
        noise = Noise(6.3 * factor, 4.3 * factor)
        other = LogPlan(with_costs.evidence, PlanRequest(noise=noise), COSTS, draws=20)
        place = other.settings.index(with_costs.best.prediction.setting)
        assert against(other.table, other.model.current, place).per_second == with_costs.gains[factor]


def test_a_verdict_that_depends_on_the_noise_is_to_keep(run):
    """Without a signal's noise one prompt is as good as many, so that a larger step only costs more."""
    quiet = LogPlan(evidence_of(run), PlanRequest(noise=Noise(0.5, 0.1)), COSTS, draws=20)
    assert not all(gain.low > 1 for gain in quiet.gains.values())
    assert quiet.keep


def test_the_best_at_another_noise_samples_as_many_at_once_as_the_memory_allows(with_costs, monkeypatch):
    asked = []

    def at_once(plan, setting):
        asked.append(setting)
        return 8.0

    monkeypatch.setattr(LogPlan, "at_once", at_once)
    found = with_costs.best_at(4.0)
    assert set(asked) == set(with_costs.settings)
    clock = with_costs.clock(with_costs.statistics)
    noisy = replace(with_costs.model, noise=with_costs.model.noise.times(4.0))
    predicted = noisy.predict(with_costs.settings, with_costs.statistics, clock, at_once=8.0)
    rates = [one.rate for one in predicted]
    assert found == with_costs.settings[int(np.argmax(rates))]


def test_an_update_has_a_cost_per_call_without_cost_curves(tmp_path):
    """Seconds of a half and ten per thousand tokens: half of the tokens do not take half of the seconds."""
    run = write_planned_run(tmp_path / "run", steps=40)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for place, line in enumerate(lines):
        line["budget/tokens_trained"] = tokens = 60.0 + 8 * place
        line["select/trained"] = tokens / 6
        line["seconds/logprobs"], line["seconds/update"] = 0.0, 0.5 + tokens / 100
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    plan = LogPlan(evidence_of(run, window=40), PlanRequest(), draws=20)
    clock, work = plan.clock(plan.statistics), plan.statistics.work
    half = work._replace(trained=work.trained / 2, tokens_trained=work.tokens_trained / 2)
    whole, of_half = (one.update for one in clock.seconds([work, half], at_once=512))
    assert whole == pytest.approx(plan.statistics.seconds["update"], rel=1e-6)
    assert of_half == pytest.approx(0.5 + work.tokens_trained / 200, rel=0.05)


def test_a_forecast_is_of_the_evaluations_that_can_be_compared(tmp_path):
    """A resume evaluated on other problems from step 3 on: five evaluations are left of eight."""
    run = write_planned_run(tmp_path / "run", steps=8)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for place, line in enumerate(lines):
        line["eval/accuracy_sampled"] = 0.9 if place < 3 else 0.2 + 0.1 * (place - 3)
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    every = LogPlan(evidence_of(run), PlanRequest(), draws=20).forecast
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["changes"] = [{"step": 3, "key": "evaluate.problems", "was": 2, "now": 4}]
    (run / "manifest.json").write_text(json.dumps(manifest))
    since = LogPlan(evidence_of(run), PlanRequest(), draws=20).forecast
    assert every is not None
    assert since is not None
    assert not every.rises
    assert since.rises
    manifest["changes"][0]["step"] = 4
    (run / "manifest.json").write_text(json.dumps(manifest))
    assert LogPlan(evidence_of(run), PlanRequest(), draws=20).forecast is None  # four evaluations are too few


@pytest.mark.parametrize(("count", "few"), [(9, True), (10, False)])
def test_few_prompts_are_named_as_what_cannot_be_known(tmp_path, count, few):
    run = write_planned_run(tmp_path / "run", [group(f"p{i}", rewards_of(i % 8)) for i in range(count)], steps=2)
    found = [
        why for what, why in LogPlan(evidence_of(run), PlanRequest(), draws=3).unknown() if "prompts differ" in what
    ]
    assert [f"has {count} " in why for why in found] == [True] * few


def test_a_plus_is_explained_if_it_is_printed(plan, with_costs):
    """The curves end at 32 sampled and 24 trained rollouts."""
    beyond = [any(one.prediction.extrapolated for one in of.answers.values()) for of in (plan, with_costs)]
    assert beyond == [False, True]
    assert [any(line.startswith("+: ") for line in log_lines(of)) for of in (plan, with_costs)] == beyond


def test_a_share_that_is_not_0_is_not_printed_as_0():
    shown = [text._percent(share) for share in (0.0, 0.004, 0.0051, 0.25, 0.996, 1.0)]
    assert shown == ["0%", "under 1%", "under 1%", "25%", "over 99%", "100%"]
    assert text._range(Range(0.001, 0.0001, 0.004), text._percent) == "under 1%"
    assert text._range(Range(0.0, 0.0, 0.02), text._percent) == "0% (0% to 2%)"


def test_a_run_that_chose_its_sizes_is_planned_from_the_last_ones(tmp_path):
    run = write_planned_run(tmp_path / "run", steps=6)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for place, line in enumerate(lines):
        line |= {"plan/rollouts": 8, "plan/kept": 8 if place < 4 else 4, "plan/prompts": 4}
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = evidence_of(run)
    assert found.steps.tolist() == [4, 5]
    assert found.setting == Setting(8, 4, 4)
    plan = LogPlan(found, PlanRequest(), draws=3)
    assert plan.model.current == Setting(8, 4, 4)  # its configuration has m = 8
    now = next(one for one in plan.ranking if one.prediction.setting == Setting(8, 4, 4))
    assert now.per_second.value == pytest.approx(1.0)


def test_the_noise_that_a_run_has_measured_takes_the_place_of_the_supposed_one(tmp_path):
    """Of three decisions, the first rests on too few updates, and the last has none."""
    run = write_planned_run(tmp_path / "run", steps=6)
    log = DecisionLog(run)
    sizes = {"chosen": {"rollouts": 8, "kept": 8, "prompts": 4}}
    for step, noise in ((2, {"factor": 5.0, "updates": 2}), (4, {"factor": 0.5, "updates": 9}), (6, {})):
        log.append(step, {**sizes, "noise": noise})
    assert evidence_of(run).noise == 0.5
    output, given = tmp_path / "plan.json", tmp_path / "given.json"
    assert call(run, "--draws", "20", "-o", output).exit_code == 0
    plan = json.loads(output.read_text())
    assert (plan["rollout"], plan["between"]) == (0.5 * NOISE.rollout, 0.5 * NOISE.between)
    assert list(plan["gains"]) == ["0.5", "1", "2"]
    assert call(run, "--draws", "20", "--noise", "3", "-o", given).exit_code == 0
    assert json.loads(given.read_text())["rollout"] == 3.0
    (run / DECISIONS).unlink()
    assert evidence_of(run).noise is None


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
    plan = LogPlan(evidence_of(VERL), PlanRequest(), draws=3)
    words = "\n".join(log_lines(plan))
    assert plan.fits is None
    assert plan.in_seconds
    for word in ("verl", "cannot be known from this log", "actor_rollout_ref.rollout.n"):
        assert word in words
    (now,) = plan.model.predict([plan.model.current], plan.statistics, plan.clock(plan.statistics))
    assert now.work.trained == 32  # verl trains on flat groups


@pytest.mark.parametrize("words", [["/nowhere"], ["--costs", "x.json"], ["arithmetic", "--draws", "2"], LONG])
def test_wrong_options_are_refused(words):
    result = call(*words)
    assert result.exit_code == 2


def test_a_run_has_its_own_configuration(run):
    assert call(run, "--set", "steps=3").exit_code == 2


def test_the_sizes_now_take_the_measured_seconds_if_few_rollouts_fit_at_once(run, monkeypatch):
    plan = LogPlan(evidence_of(run), PlanRequest(), COSTS, draws=20)
    monkeypatch.setattr(plan.fits, "fit", lambda setting: MemoryFit(4096, 8, 1))
    now = plan.table.predicted[plan.settings.index(plan.model.current)]
    assert now.seconds.sampling == pytest.approx(SECONDS["generate"])
