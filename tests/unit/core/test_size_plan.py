"""The sizes of a run that chooses them: bounds, the members of a step, decisions, and what a resume continues from."""

import json
from pathlib import Path

import numpy as np
import pytest

from planned_run import CONFIG, N, group, rewards_of
from refusals import refused
from winnow import ranks
from winnow.algos import size_decision
from winnow.algos.costs import CostCurve, StepCosts
from winnow.algos.planning import Noise, group_signal, second_moment
from winnow.algos.reward_mixture import atoms_of
from winnow.algos.size_choice import MEASURED, SUPPOSED, SizeBounds, compare
from winnow.algos.step_plan import NOISE, Setting
from winnow.config_file import load
from winnow.core.size_plan import RunSizes, bounds_of, largest
from winnow.core.sizes import logged_setting, resized, rule_of, setting_of
from winnow.errors import ConfigError, DataError
from winnow.state.logbook import Logbook
from winnow.state.resume import digests
from winnow.training.resolve import resolve_members

SETS = (
    'plan="auto"', "plan.every=2", "task.size=64", "evaluate.problems=4", "rollout.prompts_per_step=4",
    f"rollout.rollouts_per_prompt={N}", "rollout.max_new_tokens=16", 'select={use="max_variance", keep_per_prompt=4}',
    "threads=1",
)  # fmt: skip
COSTS = StepCosts(
    CostCurve(np.array([8.0, 64.0]), np.array([1.0, 1.2]), tokens_per_rollout=6.0),
    CostCurve(np.array([8.0, 64.0]), np.array([1.0, 8.0]), tokens_per_rollout=6.0),
    source="by hand",
)
GROUPS = [group(f"p{i}", rewards_of(right)) for i, right in enumerate((0, 1, 4, 7))]
ROW = {
    "group/count": 4, "budget/rollouts": 32, "budget/tokens_generated": 192, "select/trained": 12,
    "budget/tokens_trained": 72, "seconds/generate": 1.0, "seconds/logprobs": 0.25, "seconds/update": 1.0,
    "seconds/verify": 0.1, "seconds/select": 0.1, "seconds/sync": 0.1, "seconds/step": 3.0, "seconds/save": 0.0,
}  # fmt: skip


def members(*sets):
    return resolve_members(load(CONFIG, [*SETS, *sets]), Path.cwd())


def sizes(*sets, costs=COSTS):
    made = members(*sets)
    return RunSizes(made, bounds_of(made.config), costs)


def filled(plan, steps=(0, 1), share=None, groups=GROUPS, **changes):
    """The plan after steps with these groups, whose updates have the share of signal."""
    products = {} if share is None else {"policy/gradient_along": share, "policy/gradient_square": 1.0}
    for step in steps:
        plan.add(step, groups, {**ROW, **(products if step else {}), **changes})
    return plan


def test_bounds_are_the_users_or_follow_from_the_start():
    assert bounds_of(members().config) == SizeBounds((2, 32), (2, 16), (1, 16))
    given = members("plan.rollouts_per_prompt=[4, 16]", "plan.keep_per_prompt=[1, 8]", "plan.prompts_per_step=[2, 64]")
    assert bounds_of(given.config) == SizeBounds((4, 16), (2, 8), (2, 64))
    assert bounds_of(given.config, problems=40, ranks=3) == SizeBounds((4, 16), (2, 8), (3, 40))
    assert bounds_of(members("update.updates_per_step=4").config).prompts == (4, 16)
    every = bounds_of(members('select="all"', "plan.rollouts_per_prompt=[2, 256]").config)
    assert (every.keeps_all, every.kept) == (True, (2, 256))  # m = n, so n alone is bounded


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ("plan.rollouts_per_prompt=[16, 64]", "plan.rollouts_per_prompt"),
        ("plan.keep_per_prompt=[2, 3]", "plan.keep_per_prompt"),
        ("plan.prompts_per_step=[8, 16]", "plan.prompts_per_step"),
        ("plan.rollouts_per_prompt=[16, 4]", "plan.rollouts_per_prompt"),
        ("plan.every=1", "plan.every"),
        ('select="all" plan.keep_per_prompt=[2,4]', "plan.keep_per_prompt"),
        ('allocate="gvm"', "allocate"),
        ('advantage="raft"', "advantage"),
        ('rounds="pilot_commit"', "rounds"),
        ('select="random"', "select"),
    ],
)
def test_a_run_that_no_plan_is_made_for_is_refused(change, key):
    with refused(ConfigError) as caught:
        members(*change.split())
    assert caught.value.key == key


def test_a_step_of_one_prompt_that_would_be_biased_is_refused_before_it_is_chosen():
    change = ('sample="greso"', 'weighting="unbiased"')
    with refused(ConfigError, key="plan.prompts_per_step", code="config.combination"):
        members(*change)
    members(*change, "plan.prompts_per_step=[2, 16]")


def test_rollouts_of_the_step_before_are_refused():
    engine = 'rollout.engine={use="native", process="own"}'
    with refused(ConfigError, key="rollout.ahead", code="config.combination"):
        members("rollout.ahead=1", engine, 'correction="none"')


def test_keys_of_a_run_with_fixed_sizes_have_no_effect_and_a_saved_configuration_is_read_again():
    with refused(ConfigError, key="plan.every", code="config.no_effect"):
        load(CONFIG, ["plan.every=4"])
    assert load(CONFIG, ['plan.use="fixed"', "plan.every=10"]).plan.use == "fixed"


def test_members_of_other_sizes_select_and_are_configured_so():
    own = members()
    found = resized(own, Setting(16, 2, 8))
    assert setting_of(found.config, "here") == Setting(16, 2, 8)
    assert found.selectors[0].options["keep_per_prompt"] == 2
    assert found.selectors[0].entry is own.selectors[0].entry
    assert own.config.rollout.prompts_per_step == 4  # unchanged
    every = resized(members('select="all"'), Setting(16, 16, 2))
    assert setting_of(every.config, "here") == Setting(16, 16, 2)


def test_a_decision_comes_before_every_window_and_never_twice():
    plan, due = sizes(), []
    for step in range(7):
        due.append(plan.due(step))
        if plan.due(step):
            plan.apply(step, plan.decide(step))
            assert not plan.due(step)
        filled(plan, steps=[step])
    assert due == [False, False, True, False, True, False, True]


def test_a_run_that_may_jump_looks_after_two_four_and_eight_steps_of_a_window():
    """Flat groups show no gain, so it goes on waiting; the next window has looks, too."""
    plan, due, kept = sizes("plan.every=10"), [], []
    for step in range(21):
        if plan.due(step):
            row = plan.decide(step)
            assert plan.apply(step, row) is None
            due.append((step, row["whole"], row["waits"]))
            kept.append(len(plan.state_dict()["steps"]))
        filled(plan, steps=[step], groups=[group("p", rewards_of(0))])
    first = [(2, False, True), (4, False, True), (8, False, True), (10, True, False)]
    assert due == [*first, (12, False, True), (14, False, True), (18, False, True), (20, True, False)]
    assert kept == [2, 4, 8, 0] * 2


CHEAP = StepCosts(  # rollouts are almost free, and updates in proportion
    CostCurve(np.array([8.0, 4096.0]), np.array([1.0, 1.001]), 6.0),
    CostCurve(np.array([8.0, 64.0]), np.array([8.0, 64.0]), 6.0),
)


def test_a_certain_gain_is_taken_before_the_window_ends_and_the_next_window_is_shorter():
    many = [group(f"p{i}", rewards_of(right)) for i, right in enumerate((1, 2, 3, 4, 5, 6) * 8)]
    plan = filled(sizes("plan.every=10", costs=CHEAP), share=0.5, groups=many)
    row = plan.decide(2)
    assert (row["whole"], row["waits"], row["jump"]) == (False, False, True)
    assert row["noise"] == {}  # of one product
    assert row["compared"][0]["least_gain"] > 1.05 * np.exp(2 * row["error"])
    assert row["chosen"] != row["before"]
    assert "become" in plan.apply(2, json.loads(json.dumps(row)))
    assert plan.state_dict()["steps"] == []
    assert not filled(plan, steps=(2, 3)).due(4)  # the jump is over
    assert filled(plan, steps=range(4, 10)).due(10)
    assert plan.decide(10)["window"] == [2, 9]


def test_an_uncertain_gain_waits_for_more_steps():
    """Two groups, of which one is flat: other draws of them have no signal at all."""
    few = [group("p", rewards_of(0)), group("q", rewards_of(3))]
    plan = filled(sizes("plan.every=10", costs=CHEAP), share=0.5, groups=few)
    row = json.loads(json.dumps(plan.decide(2)))
    assert row["waits"]
    assert row["compared"][0]["least_gain"] > 1.05
    assert row["compared"][0]["least_gain"] < 1.05 * np.exp(2 * row["error"])
    before = plan.state_dict()
    assert plan.apply(2, row) is None
    assert plan.state_dict() == {**before, "decided": 2}
    assert filled(plan, steps=(2, 3), share=0.5, groups=few).due(4)
    whole = filled(plan, steps=range(4, 10), share=0.5, groups=few).decide(10)
    assert (whole["window"], whole["whole"], whole["waits"]) == ([0, 9], True, False)
    assert whole["chosen"] != whole["before"]  # the rule of a whole window has no standard error


def test_seconds_of_few_steps_make_a_gain_uncertain():
    """At given costs nothing scatters. The error of measured ones falls with the warm steps."""
    many = [group(f"p{i}", rewards_of(4)) for i in range(64)]
    given = filled(sizes("plan.every=20", costs=CHEAP), groups=many).decide(2)["error"]
    one, three, seven = (
        filled(sizes("plan.every=20", costs=None), steps=range(of), groups=many).decide(of)["error"] for of in (2, 4, 8)
    )
    assert given < 0.03
    assert (one, three, seven) == pytest.approx([0.1, 0.1 / 3**0.5, 0.1 / 7**0.5], abs=0.02)


def test_a_decision_is_within_the_bounds_and_states_what_it_expects():
    plan = filled(sizes("plan.rollouts_per_prompt=[4, 8]"), share=0.5)
    row = json.loads(json.dumps(plan.decide(2)))
    assert (row["window"], row["jump"], row["outcome"]) == ([0, 1], True, None)
    assert row["before"] == {"rollouts": N, "kept": 4, "prompts": 4}
    assert {one["rollouts"] for one in row["compared"]} <= {4, 8}
    best = row["compared"][0]
    assert best["least_gain"] == max(one["least_gain"] for one in row["compared"])
    if best["least_gain"] >= 1.05:
        assert row["chosen"] == {name: best[name] for name in ("rollouts", "kept", "prompts")}
    assert row["measured"]["reward"] == pytest.approx(12 / 32, abs=0.03)
    assert row["measured"]["flat"] == 0.25
    assert 0 < row["seconds"] < 60


def test_dear_updates_and_cheap_rollouts_make_the_run_sample_more_and_keep_less():
    cheap = StepCosts(
        CostCurve(np.array([8.0, 4096.0]), np.array([1.0, 1.001]), 6.0),
        CostCurve(np.array([8.0, 64.0]), np.array([8.0, 64.0]), 6.0),
    )
    plan = filled(sizes(costs=cheap), share=0.5)
    chosen = Setting(**plan.decide(2)["chosen"])
    assert (chosen.rollouts, chosen.kept) == (32, 2)
    dear = StepCosts(
        CostCurve(np.array([8.0, 4096.0]), np.array([8.0, 4096.0]), 6.0),
        CostCurve(np.array([8.0, 64.0]), np.array([1.0, 1.001]), 6.0),
    )
    chosen = Setting(**filled(sizes(costs=dear), share=0.5).decide(2)["chosen"])
    assert chosen.rollouts == chosen.kept <= N


def test_after_the_jump_sizes_change_by_a_factor_of_two_at_most():
    plan = filled(sizes(), share=0.5)
    plan.apply(2, {**plan.decide(2), "chosen": {"rollouts": 8, "kept": 4, "prompts": 4}})
    row = filled(plan, steps=(2, 3)).decide(4)
    assert not row["jump"]
    for one in row["compared"]:
        assert {one["rollouts"] / 8, one["kept"] / 4, one["prompts"] / 4} <= {0.5, 1.0, 2.0}
        assert 0.5 <= one["kept"] * one["prompts"] / 16 <= 2


def test_the_next_decision_has_what_came_of_the_one_before():
    plan = filled(sizes(costs=None), share=0.5)
    expected = plan.decide(2)
    plan.apply(2, expected)
    row = filled(plan, steps=(2, 3), share=0.4).decide(4)
    assert row["outcome"]["seconds"] == [expected["expected"]["seconds"], pytest.approx(3.0)]
    assert row["outcome"]["flat"] == [expected["expected"]["flat"], 0.25]
    assert row["outcome"]["signal_share"][0] == expected["expected"]["signal_share"]
    assert row["spent"] == {"steps": 2, "seconds": 6.0, "tokens": 384.0}


def test_the_noise_is_measured_from_the_products_and_averaged_over_windows():
    """A window whose share of signal is that of twice the supposed noise, then one of half of it."""
    plan = sizes()
    counts = np.array([[N - right, right] for right in (0, 1, 4, 7)])
    mixture = atoms_of(np.array([0.0, 1.0])).fit(counts, np.full(4, 2.0))
    group = group_signal(mixture, N, 4, rule_of(plan.config))

    def share(factor):
        noise = Noise(NOISE.rollout * factor, NOISE.between * factor)
        return group.signal**2 / second_moment(group, 4, noise) / (1 - (1 - group.learning) ** 4)

    row = filled(plan, share=share(2.0)).decide(2)
    assert row["noise"]["factor"] == pytest.approx(2.0, rel=1e-6)
    plan.apply(2, {**row, "chosen": row["before"]})
    row = filled(plan, steps=(2, 3), share=share(0.5)).decide(4)
    assert row["noise"]["factor"] == pytest.approx(1.0, rel=1e-6)


def test_without_products_the_noise_is_supposed():
    assert filled(sizes()).decide(2)["noise"] == {}
    assert filled(sizes(), share=np.nan).decide(2)["noise"] == {}


def test_a_noise_of_few_updates_is_as_uncertain_as_a_supposed_one(monkeypatch):
    """Seven updates in the first window, and fourteen after the second."""
    used = []

    def noting(*of, factors, **keys):
        used.append(factors)
        return compare(*of, factors=factors, **keys)

    monkeypatch.setattr(size_decision, "compare", noting)
    plan = filled(sizes(), steps=range(8), share=0.5)
    row = plan.decide(8)
    assert row["noise"]["updates"] == 7
    plan.apply(8, {**row, "chosen": row["before"]})
    row = filled(plan, steps=range(9, 16), share=0.5).decide(16)
    assert row["noise"]["updates"] == 14
    assert used == [SUPPOSED, MEASURED]
    several = filled(sizes("update.updates_per_step=4"), steps=(0, 1, 2), share=0.5)
    assert several.decide(4)["noise"]["updates"] == 8


@pytest.mark.parametrize("chosen", [{"rollouts": 64}, {"kept": 1}, {"prompts": 0}])
def test_sizes_of_a_changed_decision_that_are_outside_of_the_bounds_are_refused(chosen):
    plan = filled(sizes(), share=0.5)
    row = plan.decide(2)
    with refused(DataError, code="data.malformed"):
        plan.apply(2, {**row, "chosen": {**row["before"], **chosen}})


def test_a_window_of_flat_groups_keeps_the_sizes_and_the_jump():
    plan = filled(sizes(), groups=[group("p", rewards_of(0))])
    row = plan.decide(2)
    assert row["chosen"] == row["before"]
    assert row["reason"]
    assert plan.apply(2, row) is None
    assert filled(plan, steps=(2, 3)).decide(4)["jump"]


def test_flat_groups_of_different_rewards_keep_the_sizes():
    """Some prompts are always solved and some never. The fit's remainder of other pass rates is no evidence."""
    flat = [group("p", rewards_of(0)), group("q", rewards_of(N)), group("r", [1.0, *[np.nan] * (N - 1)])]
    row = filled(sizes(), groups=flat).decide(2)
    assert row["chosen"] == row["before"]
    assert row["reason"]
    assert "reason" not in filled(sizes(), groups=[*flat, group("s", rewards_of(1))]).decide(2)


def test_failed_verdicts_are_no_rewards():
    plan = filled(sizes(), groups=[group("p", [np.nan] * N), group("q", [1.0, 0.0, np.nan, np.nan])])
    assert plan.decide(2)["measured"]["groups"] == 2  # q, in two steps
    nothing = filled(sizes(), groups=[group("p", [np.nan] * N)])
    assert "reason" in nothing.decide(2)


def test_a_state_continues_as_if_nothing_had_happened():
    """Also through JSON, and with a decision from the log in place of one that is made."""
    first = filled(sizes(), share=0.5)
    row = first.decide(2)
    other = sizes()
    other.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert {**other.decide(2), "seconds": 0} == {**row, "seconds": 0}
    for plan in (first, other):
        plan.apply(2, json.loads(json.dumps(row)))
        filled(plan, steps=(2, 3), share=0.3)
    assert first.state_dict() == other.state_dict()
    assert {**other.decide(4), "seconds": 0} == {**first.decide(4), "seconds": 0}


@pytest.mark.parametrize(
    "change",
    ["rollout.rollouts_per_prompt=16", "plan.rollouts_per_prompt=[2, 16]", "plan.keep_per_prompt=[2, 8]"],
)
def test_a_state_of_other_configured_sizes_or_bounds_starts_again_with_the_configured_sizes(change):
    """Else n = 32 would stay, outside of the bounds whose memory was planned."""
    first = filled(sizes(), share=0.5)
    first.apply(2, {**first.decide(2), "chosen": {"rollouts": 32, "kept": 4, "prompts": 4}})
    state = json.loads(json.dumps(first.state_dict()))
    same, other = sizes(), sizes(change)
    same.load_state_dict(state)
    assert same.setting == Setting(32, 4, 4)
    other.load_state_dict(state)
    assert other.setting == setting_of(other.config, "here")
    assert filled(other, steps=(2, 3)).decide(4)["jump"]


def test_a_state_of_other_ranks_starts_again_with_the_configured_sizes(monkeypatch):
    first = filled(sizes(), share=0.5)
    first.apply(2, {**first.decide(2), "chosen": {"rollouts": 32, "kept": 4, "prompts": 4}})
    state = json.loads(json.dumps(first.state_dict()))
    other = sizes()
    monkeypatch.setattr("winnow.ranks.count", lambda: 2)
    other.load_state_dict(state)
    assert other.setting == setting_of(other.config, "here")


@pytest.mark.parametrize(
    ("prompts", "bounds"), [(16, {"problems": 10}), (2, {"ranks": 4})], ids=["more than problems", "fewer than ranks"]
)
def test_a_state_with_prompts_outside_of_the_bounds_starts_again(prompts, bounds):
    first = filled(sizes(), share=0.5)
    first.apply(2, {**first.decide(2), "chosen": {"rollouts": 8, "kept": 4, "prompts": prompts}})
    made = members()
    other = RunSizes(made, bounds_of(made.config, **bounds), COSTS)
    other.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert other.setting == Setting(8, 4, 4)


def test_the_largest_members_are_those_that_need_the_most_memory():
    found = largest(members(), problems=10)
    assert setting_of(found.config, "here") == Setting(32, 16, 10)
    fixed = members("plan.use='fixed'", "plan.every=10")
    assert largest(fixed) is fixed


def test_given_costs_leave_no_seconds_in_the_state():
    """So two runs have the same state, however fast they were."""
    one, two = sizes(), sizes()
    filled(one)
    filled(two, **{"seconds/generate": 7.0, "seconds/step": 20.0})
    for plan in (one, two):
        plan.add_evaluation({"eval/seconds": 3.0, "budget/evaluation_tokens": 64, "eval/length_mean": 4.0})
    assert one.state_dict() == two.state_dict()
    assert {**one.decide(2), "seconds": 0} == {**two.decide(2), "seconds": 0}
    own = filled(sizes(costs=None), **{"seconds/generate": 7.0})
    own.add_evaluation({"eval/seconds": 3.0, "budget/evaluation_tokens": 64, "eval/length_mean": 4.0})
    assert own.state_dict()["measured"] == [[16.0, 64.0, 0.0, 3.0, 0.0, 0.0]]


def test_an_evaluation_that_samples_unlike_a_step_shows_no_seconds():
    """64 tokens at a mean of 4 are no 16 rollouts if some are of another task, and float32 decodes slower."""
    metrics = {"eval/seconds": 3.0, "budget/evaluation_tokens": 64, "eval/length_mean": 4.0}
    several, rounded = sizes('evaluate.tasks=["arithmetic"]', costs=None), sizes(costs=None)
    several.add_evaluation(metrics)
    rounded.add_evaluation({**metrics, "eval/weight_bits": 32.0})
    assert several.state_dict()["measured"] == rounded.state_dict()["measured"] == []


def test_a_step_is_evidence_once_it_is_logged_and_its_row_has_the_sizes(tmp_path):
    plan = sizes(costs=None)
    log = Logbook(tmp_path, seed=0, rollouts="none", sizes=plan)
    log.begin(0, GROUPS, [])
    with pytest.raises(KeyError):
        log.finish(0, {**ROW, "no/metric": 1.0})
    assert plan.state_dict()["steps"] == []
    log.begin(0, GROUPS, [])
    report = log.finish(0, ROW)
    assert logged_setting(report.metrics) == logged_setting(log.metrics()[0]) == Setting(N, 4, 4)
    (step,) = json.loads(json.dumps(plan.state_dict()))["steps"]
    assert (step["rewards"][N : 2 * N], step["sizes"]) == (rewards_of(1), [N] * 4)
    log.write_between(1, {"eval/seconds": 3.0, "budget/evaluation_tokens": 64.0, "eval/length_mean": 4.0})
    assert plan.state_dict()["measured"] == [[16.0, 64.0, 0.0, 3.0, 0.0, 0.0]]


def test_a_file_of_costs_is_an_input_of_the_run(tmp_path):
    (tmp_path / "costs.json").write_text("{}")
    config = load(CONFIG, [*SETS, f'plan.costs="{tmp_path}/costs.json"'])
    assert list(digests(config, tmp_path)["plan.costs"]) == [f"{tmp_path}/costs.json"]


def test_every_rank_samples_side_by_side(monkeypatch):
    plan = filled(sizes())
    monkeypatch.setattr(ranks, "count", lambda: 4)
    assert plan.decide(2)["run"]["at_once"] == 4 * 512
