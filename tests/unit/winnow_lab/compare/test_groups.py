"""Groups of runs that are seeds of one configuration, their labels, and what is refused or noted."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from typer.testing import CliRunner
from written_runs import write_manifest, write_run, write_sweep

from refusals import refused
from synthetic_run import RIGHT, WRONG
from winnow.algos.costs import CostCurve, StepCosts
from winnow.commands import app
from winnow.errors import ConfigError, DataError, RunFolderError
from winnow.run_view.configuration import keys_of
from winnow_lab.compare.comparison import compare_inputs

# Means of three: ... 0.5 0.5667 0.6, so that 0.57, 95% of the plateau, is reached after 5.1 evaluations.
CURVE = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.6, 0.6, 0.6)
REACHED = 10.2  # steps, with an evaluation every two
PODS = {"select": {"use": "max_variance", "keep_per_prompt": 4}}
GRPO = {"select": {"use": "max_variance", "keep_per_prompt": 16}}


@pytest.fixture
def runs(tmp_path):
    """Two seeds of each of two configurations."""
    for seed in (0, 1):
        write_run(tmp_path / f"grpo-{seed}", CURVE, seed=seed, **GRPO)
        write_run(tmp_path / f"pods-{seed}", CURVE, seed=seed, seconds=5, **PODS)
    return tmp_path


def notes(result):
    return " | ".join(result.notes)


def noted(result, *names):
    """Whether one note contains all these names."""
    return any(all(name in note for name in names) for note in result.notes)


def groups(result):
    return {group.label: [curve.seed for curve in group.curves] for group in result.groups}


def compare(*paths, **options):
    return compare_inputs([str(path) for path in paths], **options)


def test_seeds_of_a_configuration_are_a_group_named_by_differing_keys(runs):
    result = compare(*(runs / name for name in ("grpo-0", "pods-0", "grpo-1", "pods-1")))
    assert groups(result) == {"select.keep_per_prompt = 16": ["0", "1"], "select.keep_per_prompt = 4": ["0", "1"]}
    assert result.baseline == "select.keep_per_prompt = 16"
    ratios = {row.axis: row.ratio for row in result.speed_ups}
    assert list(ratios) == ["seconds", "tokens_generated", "tokens_trained", "steps"]
    assert [of.ratio for of in ratios.values()] == pytest.approx([2, 1, 1, 1])
    assert (ratios["steps"].baseline, ratios["seconds"].group) == pytest.approx((REACHED, 5 * REACHED))
    assert all(of.paired and of.has_interval for of in ratios.values())
    assert [row.pods.ratio for row in result.speed_ups] == [2, 1, 1, 1]
    assert result.notes == ()


def test_keys_that_affect_no_result_make_no_group_and_machines_are_noted(runs):
    none = {"log": {"every": 3}, "alarms": {"steps": 9}, "track": {"use": "wandb", "name": "grpo-2"}}
    write_run(runs / "grpo-2", CURVE, seed=2, threads=2, checkpoint={"every": 7}, steps=99, **none, **GRPO)
    result = compare(runs / "grpo-0", runs / "grpo-2")
    assert groups(result) == {"grpo": ["0", "2"]}
    assert noted(result, "grpo-2 (16 of 99 steps)", "unfinished")
    assert noted(result, "seconds", "threads is 1 (grpo-0) and 2 (grpo-2)")


@pytest.mark.parametrize(("hours", "unfinished"), [(0.25, True), (0.5, False)])
def test_a_run_that_ended_before_its_hours_is_noted(runs, hours, unfinished):
    evaluation = [{"eval/training_hours": hours * place / 8} for place in range(9)]
    write_run(runs / "grpo-2", CURVE, seed=2, steps=99, max_hours=0.5, evaluation=evaluation, **GRPO)
    result = compare(runs / "grpo-0", runs / "grpo-2")
    assert noted(result, "grpo-2 (16 of 99 steps)", "unfinished") == unfinished


def test_the_end_of_a_falling_learning_rate_makes_another_configuration(runs):
    for steps in (4, 8):
        write_run(runs / f"cosine-{steps}", CURVE, steps=steps, optimizer={"schedule": "cosine"})
    assert list(groups(compare(runs / "cosine-4", runs / "cosine-8"))) == ["steps = 4", "steps = 8"]


@pytest.mark.parametrize("schedule", ["constant", "linear"])
def test_the_end_of_a_value_models_falling_learning_rate_does_too(schedule):
    critic = {"form": "model", "optimizer": {"schedule": schedule}}
    assert ("steps" in keys_of({"steps": 4, "critic": critic})) == (schedule == "linear")


def test_different_evaluations_are_noted(runs):
    write_run(runs / "more", CURVE, evaluate={"problems": 64}, **GRPO)
    result = compare(runs / "grpo-0", runs / "more")
    assert list(groups(result)) == ["evaluate.problems = 256", "evaluate.problems = 64"]
    assert noted(result, "evaluate.problems is 256 (", " and 64 (")


def test_labels_of_the_user_a_pattern_and_a_folder_of_runs(runs):
    result = compare(f"PODS={runs}/pods-*", f"GRPO={runs / 'grpo-0'}", f"GRPO={runs / 'grpo-1'}", baseline="GRPO")
    assert groups(result) == {"PODS": ["0", "1"], "GRPO": ["0", "1"]}
    assert result.baseline == "GRPO"
    assert len(compare(runs).groups) == 2
    mixed = compare(f"all={runs / 'grpo-0'}", f"all={runs / 'pods-1'}")
    assert noted(mixed, "all: ", "select.keep_per_prompt is 16 (grpo-0) and 4")


@pytest.mark.parametrize(
    ("paths", "named", "code"),
    [
        (("grpo-0", "grpo-0"), ("grpo-0",), "data.mismatch"),
        (("nothing",), ("nothing",), "data.missing"),
        (("A=grpo-0", "A=twin"), ("A", "seed 0", "grpo-0", "twin"), "data.mismatch"),
        (("empty",), ("empty",), "data.missing"),
        (("begun",), ("begun",), "data.empty"),
    ],
)
def test_inputs_that_cannot_be_compared_are_refused(runs, monkeypatch, paths, named, code):
    monkeypatch.chdir(runs)
    write_run(runs / "twin", CURVE, seed=0, **GRPO)
    (runs / "empty").mkdir()
    write_run(runs / "begun", (), done=1)
    with refused(DataError, *named, code=code):
        compare(*paths)


def test_a_run_without_an_evaluation_is_omitted_with_a_note(runs):
    write_run(runs / "grpo-2", (), done=1, seed=2, **GRPO)
    result = compare(runs / "grpo-0", runs / "grpo-2")
    assert groups(result) == {"grpo-0": ["0"]}
    assert noted(result, "grpo-2", "evaluation")
    assert noted(result, "one seed")


def test_a_run_without_a_step_is_omitted_with_a_note(runs):
    write_manifest(runs / "grpo-2", seed=2, **GRPO)
    result = compare(runs)
    assert {seed for seeds in groups(result).values() for seed in seeds} == {"0", "1"}
    assert noted(result, "grpo-2")
    with refused(DataError, "grpo-2", code="data.empty"):
        compare(runs / "grpo-2")


def test_a_folder_without_a_readable_manifest_is_refused(runs):
    (runs / "grpo-0" / "manifest.json").write_text("{}")
    with refused(RunFolderError, runs / "grpo-0" / "manifest.json"):
        compare(runs / "grpo-0")


def test_an_unknown_baseline_is_refused_with_the_nearest(runs):
    with refused(ConfigError, "GRPP", "GRPO", code="config.unknown_name"):
        compare(f"GRPO={runs}/grpo-*", baseline="GRPP")


def test_a_resume_that_changed_a_key_is_noted(runs):
    write_manifest(runs / "grpo-0", changes=[{"step": 2, "key": "optimizer.learning_rate"}], **GRPO)
    assert noted(compare(runs / "grpo-0", runs / "grpo-1"), "grpo-0", "optimizer.learning_rate")


def test_a_resume_that_changed_nothing_that_is_compared_is_not_noted(runs):
    changes = [{"step": 2, "key": key} for key in ("max_hours", "log.every", "alarms.off", "checkpoint.every", "track")]
    write_manifest(runs / "grpo-0", changes=changes, **GRPO)
    assert not noted(compare(runs / "grpo-0", runs / "grpo-1"), "was resumed")


def test_an_edited_input_is_noted(runs):
    for seed, digest in ((0, "aa"), (1, "bb")):
        write_manifest(runs / f"grpo-{seed}", seed=seed, inputs={"reward.use": {"mine.py": digest}}, **GRPO)
    result = compare(runs / "grpo-0", runs / "grpo-1")
    assert noted(result, "reward.use", "mine.py", str(runs / "grpo-1"), str(runs / "grpo-0"))


ONE, OTHER = "sha256:aa", "sha256:bb"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        # A relative and an absolute path of one file, and of one file on two machines
        ({"mine.py:f": ONE, "/here/mine.py:f": ONE, "/there/theirs.py:f": ONE}, 1),
        ({"mine.py:f": ONE, "mine.py:g": ONE}, 2),  # another function of the file
        ({"mine.py:f": ONE, "/there/mine.py:f": OTHER}, 2),
    ],
)
def test_a_reward_of_ones_own_is_identified_by_its_contents(tmp_path, values, expected):
    for seed, (value, digest) in enumerate(values.items()):
        inputs = {"reward.use": {value.partition(":")[0]: digest}}
        write_run(tmp_path / f"run-{seed}", CURVE, seed=seed, reward={"use": value}, inputs=inputs)
    found = groups(compare(*sorted(tmp_path.iterdir())))
    assert len(found) == expected
    assert [seed for seeds in found.values() for seed in seeds] == [str(seed) for seed in range(len(values))]


def test_one_path_with_two_contents_is_two_groups_with_labels_of_their_own(tmp_path):
    for seed, digest in enumerate((ONE, OTHER)):
        inputs = {"reward.use": {"mine.py": digest}}
        write_run(tmp_path / f"run-{seed}", CURVE, seed=seed, reward={"use": "mine.py:f"}, inputs=inputs)
    result = compare(tmp_path / "run-0", tmp_path / "run-1")
    assert [label.startswith("reward.use = mine.py:f (contents ") for label in groups(result)] == [True, True]
    assert noted(result, "reward.use", "the evaluations are not comparable")


def test_a_policy_in_another_folder_is_one_policy(tmp_path):
    for seed, digest in enumerate((ONE, ONE, OTHER)):
        inputs = {"model.path": {"config.json": ONE, "model.safetensors": digest}}
        write_run(tmp_path / f"run-{seed}", CURVE, seed=seed, model={"path": f"/machine-{seed}/policy"}, inputs=inputs)
    found = groups(compare(*sorted(tmp_path.iterdir())))
    assert found == {"model.path = /machine-0/policy": ["0", "1"], "model.path = /machine-2/policy": ["2"]}


@pytest.mark.parametrize("damage", ["inputs", "changes", "device"])
def test_a_manifest_of_another_form_prevents_no_comparison(runs, damage):
    path = runs / "grpo-0" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["config"] |= {"optimizer": 3, "steps": "many", "allocate": [1], "max_hours": "x", "seed": [2]}
    path.write_text(json.dumps({**manifest, damage: ["strange", {"key": 1}]}))
    assert "grpo-0" in "".join(groups(compare(runs / "grpo-0"))) + notes(compare(runs / "grpo-0"))


def test_a_seed_that_lacks_an_evaluation_of_the_others_is_noted(runs):
    write_run(runs / "grpo-2", (*CURVE[:3], None, *CURVE[4:]), seed=2, **GRPO)
    (note,) = compare(*(runs / f"grpo-{seed}" for seed in range(3))).notes
    assert ("grpo-2" in note, "after 6 steps" in note) == (True, True)


def test_evaluations_by_the_clock_are_at_other_steps_for_every_seed(runs):
    clock = {"evaluate": {"every_minutes": 1.0}}
    write_run(runs / "a", CURVE, seed=0, **clock)
    write_run(runs / "b", (*CURVE[:3], None, *CURVE[4:]), seed=1, **clock)
    assert compare(f"G={runs / 'a'}", f"G={runs / 'b'}").notes == ()


@pytest.mark.parametrize(
    ("accuracies", "words"),
    [
        ((0.1,) * 9, ["2 of 2 seeds", "never"]),
        ((0.6,) * 9, ["2 of 2 seeds", "first"]),
        ((*(0.1,) * 7, 0.5, 0.7), ["2 of 2 seeds", "last"]),
        ((0.1, *(0.6,) * 8), ["1.8"]),
    ],
)
def test_times_that_longer_runs_could_change_have_a_note(runs, accuracies, words):
    for seed in (0, 1):
        write_run(runs / f"other-{seed}", accuracies, seed=seed)
    (note,) = compare(f"GRPO={runs}/grpo-*", f"other={runs}/other-*").notes
    assert note.startswith("other (")
    assert [word for word in words if word not in note] == []


def test_a_rising_baseline_and_one_without_a_level_have_a_note(runs):
    for seed in (0, 1):
        write_run(runs / f"rising-{seed}", (*CURVE[:7], 0.62, 0.64), seed=seed)
        write_run(runs / f"nothing-{seed}", (0.0,) * 9, seed=seed)
    others = f"rising={runs}/rising-*", f"nothing={runs}/nothing-*"
    rising = compare(*others, baseline="rising")
    assert (rising.plateau.still_rising, noted(rising, "rising: ", "bound")) == (True, True)
    assert notes(compare(f"rising={runs}/rising-*")) == ""  # nothing is compared with it
    without = compare(*others, baseline="nothing")
    assert (without.plateau.level, without.speed_ups, without.times) == (None, (), {})
    assert noted(without, "nothing: ", " 0")


def test_a_sweep_has_labels_a_baseline_and_runs_that_ran_alone(tmp_path):
    result = compare(write_sweep(tmp_path / "sweep", CURVE, pods=PODS, grpo=GRPO, alone=True))
    assert groups(result) == {"PODS": ["0"], "GRPO": ["0"]}
    assert result.baseline == "GRPO"
    assert noted(result, "seed-1")
    assert ("PODS", "seconds", "accuracy") in result.curves


@pytest.mark.parametrize("inside", ["", "PODS", "PODS/seed-0"])
def test_seconds_of_a_run_that_shared_its_machine_are_omitted(tmp_path, inside):
    result = compare(write_sweep(tmp_path / "sweep", CURVE, pods=PODS, grpo=GRPO, alone=False) / inside)
    assert ("PODS", "seconds", "accuracy") not in result.curves
    assert ("PODS", "tokens_generated", "accuracy") in result.curves
    assert [note for note in result.notes if "seconds" in note and "PODS" in note and "GRPO" not in note] != []


def test_a_file_is_compared_with_runs(runs):
    (runs / "GA.csv").write_text("seconds,accuracy\n0,10\n10,10\n20,10\n30,61\n40,61\n50,61\n")
    result = compare(runs / "GA.csv", f"PODS={runs}/pods-*")
    assert groups(result) == {"GA": [None], "PODS": ["0", "1"]}
    (row,) = result.speed_ups
    # 0.5795, from a mean of 0.44 after 30 seconds to one of 0.61 after 40; PODS: 0.5795 from 0.5667 to 0.6
    ends = 30 + 10 * (0.5795 - 0.44) / 0.17, 50 + 10 * (0.5795 - 17 / 30) / (1 / 30)
    assert (row.axis, row.ratio.baseline, row.ratio.group) == ("seconds", *map(pytest.approx, ends))
    assert not row.ratio.has_interval  # a mean curve has none
    assert (row.pods.baseline, row.pods.other) == (30, None)  # 60.39%; PODS ends at 60%
    (runs / "named.csv").write_text("group,seconds,accuracy\nB,0,10\n")
    with refused(DataError, runs / "named.csv", "group", code="data.mismatch"):
        compare(f"A={runs / 'named.csv'}")


def test_runs_with_an_allocator_have_rollouts_by_pass_rate(runs):
    # the one prompt of every step: 1 of 3, 0 of 2 right
    write_run(runs / "gvm", CURVE, rollouts=(RIGHT, WRONG, WRONG), allocate="gvm_online", **PODS)
    write_run(runs / "even", CURVE, rollouts=(WRONG, WRONG), **PODS)
    result = compare(f"GVM={runs / 'gvm'}", f"even={runs / 'even'}", f"silent={runs / 'grpo-0'}")
    assert [count and count.mean for count in result.allocation["GVM"]] == [None, None, 3, None, None, None]
    assert [count and count.mean for count in result.allocation["even"]] == [2, None, None, None, None, None]
    assert noted(result, "silent: ", "grpo-0")
    assert compare(f"even={runs / 'even'}").allocation == {}


ACCURACIES = (0.1, 0.6, 0.6, 0.6, 0.6)


def costs(**options):
    """Lines through 0: 16 rollouts are sampled in 2 seconds, 8 are trained in 1."""
    sampling, update = CostCurve(np.array([16.0]), np.array([2.0])), CostCurve(np.array([8.0]), np.array([1.0]))
    return StepCosts(sampling, update, source="a table", **options)


def trained(count):
    return lambda step: {"select/trained": count}


def seconds(run, of):
    (group,) = compare_inputs([str(run)], costs=of).groups
    return group.curves[0].x["seconds"].tolist()


def test_a_step_costs_its_rollouts_and_the_training_of_each_epoch(tmp_path):
    run = write_run(tmp_path / "run", ACCURACIES, step=trained(8), update={"epochs": 2})
    # 16 rollouts in 2 seconds, twice 8 in 2, and half a second: 4.5 a step, with an evaluation every two
    assert seconds(run, costs(seconds_per_step=0.5)) == pytest.approx([0, 9, 18, 27, 36])


def test_a_probe_costs_one_more_call(tmp_path):
    def step(number):
        probe = {"budget/probe_rollouts": 32, "budget/probe_tokens": 2000} if number == 2 else {}
        return {"select/trained": 8, **probe}

    run = write_run(tmp_path / "run", ACCURACIES, step=step)
    assert seconds(run, costs(seconds_per_step=0.5)) == pytest.approx([0, 7, 18, 25, 32])  # 3.5 a step, and 4 once
    # of a prompt: four prompts side by side, each with 4 rollouts, 2 of them trained; the probe's 32 are spread on four
    assert seconds(run, costs(per="prompt")) == pytest.approx([0, 1.5, 4, 5.5, 7])


def test_seconds_of_a_run_that_shared_its_machine_are_compared(tmp_path):
    sweep = write_sweep(tmp_path / "sweep", ACCURACIES, alone=False, pods={}, grpo={}, step=trained(8))
    (row, *_) = compare_inputs([str(sweep)], costs=costs()).speed_ups
    assert (row.group, row.axis, row.ratio.ratio) == ("PODS", "seconds", pytest.approx(1))


def test_a_remedy_for_two_sweeps_with_one_label_works_as_it_is_written(tmp_path):
    one, two = (
        write_sweep(tmp_path / name, ACCURACIES, alone=True, pods={}, grpo={}, step=trained(8)) for name in ("a", "b")
    )
    with refused(DataError, "seed 0", code="data.mismatch"):
        compare(one, two)
    with refused(DataError, two, code="data.mismatch") as caught:
        compare(one, f"mine={two}")
    found = compare(one, caught.value.remedy.rpartition(" ")[2])
    assert groups(found) == {"PODS": ["0"], "GRPO": ["0"], "mine": ["0"]}


def test_computed_seconds_ignore_machines_and_name_their_source(tmp_path):
    for label, count, threads in (("a", 16, 1), ("b", 8, 2)):
        for seed in (0, 1):
            run = tmp_path / f"{label}-{seed}"
            write_run(run, ACCURACIES, seed=seed, step=trained(count), threads=threads)
    arguments = [f"{label}={tmp_path}/{label}-*" for label in "ab"]
    result = compare_inputs(arguments, costs=costs())
    assert {row.axis: row.ratio.ratio for row in result.speed_ups}["seconds"] == pytest.approx(4 / 3)
    assert sum("a table" in note for note in result.notes) == 1
    assert not any("machine" in note for note in result.notes)
    table = tmp_path / "costs.json"
    curves = {"sampling": {"rollouts": [16], "seconds": [2]}, "update": {"rollouts": [8], "seconds": [1]}}
    table.write_text(json.dumps({"winnow_costs": 1, "source": "the paper", **curves}))
    printed = CliRunner().invoke(app, ["compare", *arguments, "--costs", str(table)])
    assert printed.exit_code == 0, printed.output
    assert printed.output.count("the paper") == 2  # above the costs of a step, and in the notes


@pytest.mark.parametrize(("per", "beyond"), [("step", "4 steps"), ("prompt", "")])
def test_seconds_beyond_the_last_point_are_noted(tmp_path, per, beyond):
    """A step samples 16 rollouts of 4 prompts: more than 12 on one machine, and 4 on each of four."""
    write_run(tmp_path / "run", (0.1, 0.6, 0.6), step=trained(8))
    points, seconds = np.array([4.0, 8.0, 12.0]), np.array([1.0, 2.0, 3.0])
    of = StepCosts(CostCurve(points, seconds), CostCurve(points, seconds), per, source="a table")
    found = [note for note in compare_inputs([str(tmp_path / "run")], costs=of).notes if "extrapolated" in note]
    assert [re.findall(r"run \((.+?)\)", note) for note in found] == ([[beyond]] if beyond else [])


@pytest.mark.parametrize(
    ("label", "keys"),
    [
        ("ppo", {"critic": {"form": "shared"}, "advantage": "gae"}),
        ("gvm", {"allocate": "gvm"}),
    ],
)
def test_work_that_the_costs_omit_is_noted(tmp_path, label, keys):
    write_run(tmp_path / "grpo", ACCURACIES, step=trained(8))
    write_run(tmp_path / "other", ACCURACIES, step=trained(8), **keys)
    notes = compare_inputs([f"grpo={tmp_path / 'grpo'}", f"{label}={tmp_path / 'other'}"], costs=costs()).notes
    omitted = [note.split(":")[0] for note in notes if "costs" in note and "a table" not in note]
    assert omitted == [label]


def test_seconds_of_a_run_that_samples_ahead_are_noted(tmp_path):
    for label, ahead in (("one", 1), ("none", 0)):
        write_run(tmp_path / label, ACCURACIES, step=trained(8), rollout={"ahead": ahead})
    notes = compare_inputs([f"{label}={tmp_path / label}" for label in ("one", "none")], costs=costs()).notes
    assert [note.split(":")[0] for note in notes if "overlaps" in note] == ["one"]


def test_a_run_that_lacks_the_work_of_its_steps_is_refused(tmp_path):
    run = write_run(tmp_path / "run", ACCURACIES)
    with refused(DataError, run, "step 0", "select/trained", code="data.incomplete"):
        compare_inputs([str(run)], costs=costs())


def test_seconds_of_a_file_cannot_be_computed_again(tmp_path):
    (tmp_path / "a.csv").write_text("hours,accuracy\n0,0.1\n1,0.5\n")
    (tmp_path / "b.csv").write_text("steps,accuracy\n0,0.1\n1,0.5\n")
    with refused(DataError, "a.csv", code="data.mismatch"):
        compare_inputs([str(tmp_path / "a.csv")], costs=costs())
    assert compare_inputs([str(tmp_path / "b.csv")], costs=costs()).axes == ["steps"]
