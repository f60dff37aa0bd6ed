from __future__ import annotations

import json

import pytest
from written_runs import write_manifest, write_run, write_sweep

from synthetic_run import RIGHT, WRONG
from winnow.errors import ConfigError, DataError, RunFolderError
from winnow.report.comparison.compared import compared

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


def said(found):
    return " | ".join(found.notes)


def groups(found):
    return {group.label: [curve.seed for curve in group.curves] for group in found.groups}


def compare(*paths, **options):
    return compared([str(path) for path in paths], **options)


def test_runs_that_differ_in_their_seed_are_a_group_named_by_the_keys_in_which_groups_differ(runs):
    found = compare(*(runs / name for name in ("grpo-0", "pods-0", "grpo-1", "pods-1")))
    assert groups(found) == {"select.keep_per_prompt = 16": ["0", "1"], "select.keep_per_prompt = 4": ["0", "1"]}
    assert found.baseline == "select.keep_per_prompt = 16"
    ratios = {row.axis: row.ratio for row in found.speed_ups}
    assert list(ratios) == ["seconds", "tokens_generated", "tokens_trained", "steps"]
    assert [of.ratio for of in ratios.values()] == pytest.approx([2, 1, 1, 1])
    assert (ratios["steps"].baseline, ratios["seconds"].group) == pytest.approx((REACHED, 5 * REACHED))
    assert all(of.paired and of.has_interval for of in ratios.values())
    assert [row.pods.ratio for row in found.speed_ups] == [2, 1, 1, 1]
    assert found.notes == ()


def test_what_computes_no_number_makes_no_other_group_and_another_machine_is_said(runs):
    write_run(runs / "grpo-2", CURVE, seed=2, threads=2, log={"every": 3}, checkpoint={"every": 7}, steps=99, **GRPO)
    found = compare(runs / "grpo-0", runs / "grpo-2")
    assert groups(found) == {"grpo": ["0", "2"]}
    assert "grpo-2 has done 16 of 99 steps: it is still going, or was interrupted" in said(found)
    assert "seconds are of different machines: threads is 1 (grpo-0) and 2 (grpo-2)" in said(found)


def test_the_end_of_a_falling_learning_rate_makes_another_configuration(runs):
    for steps in (4, 8):
        write_run(runs / f"cosine-{steps}", CURVE, steps=steps, optimizer={"schedule": "cosine"})
    assert list(groups(compare(runs / "cosine-4", runs / "cosine-8"))) == ["steps = 4", "steps = 8"]


def test_unlike_evaluations_are_said(runs):
    write_run(runs / "more", CURVE, evaluate={"problems": 64}, **GRPO)
    found = compare(runs / "grpo-0", runs / "more")
    assert list(groups(found)) == ["evaluate.problems = 256", "evaluate.problems = 64"]
    assert "the accuracies are of unlike things: evaluate.problems is 256 (" in said(found)


def test_labels_of_the_user_a_pattern_and_a_folder_of_runs(runs):
    found = compare(f"PODS={runs}/pods-*", f"GRPO={runs / 'grpo-0'}", f"GRPO={runs / 'grpo-1'}", baseline="GRPO")
    assert groups(found) == {"PODS": ["0", "1"], "GRPO": ["0", "1"]}
    assert found.baseline == "GRPO"
    assert len(compare(runs).groups) == 2
    mixed = compare(f"all={runs / 'grpo-0'}", f"all={runs / 'pods-1'}")
    assert "all: its runs are no seeds of one configuration: select.keep_per_prompt is 16 (grpo-0) and 4" in said(mixed)


@pytest.mark.parametrize(
    ("paths", "said"),
    [
        (("grpo-0", "grpo-0"), "is named twice"),
        (("nothing",), "there is no .*nothing; name run folders"),
        (("A=grpo-0", "A=twin"), "A holds two runs of seed 0: .*grpo-0 and .*twin"),
        (("empty",), "empty is no run folder, and holds none"),
        (("begun",), "nothing is left to compare; .*begun has no evaluation yet, and is left out"),
    ],
)
def test_what_cannot_be_compared_is_refused(runs, monkeypatch, paths, said):
    monkeypatch.chdir(runs)
    write_run(runs / "twin", CURVE, seed=0, **GRPO)
    (runs / "empty").mkdir()
    write_run(runs / "begun", (), done=1)
    with pytest.raises(DataError, match=said):
        compare(*paths)


def test_a_run_without_an_evaluation_is_left_out_and_said(runs):
    write_run(runs / "grpo-2", (), done=1, seed=2, **GRPO)
    found = compare(runs / "grpo-0", runs / "grpo-2")
    assert groups(found) == {"grpo-0": ["0"]}
    assert "grpo-2 has no evaluation yet, and is left out" in said(found)
    assert "one seed, so nothing is known of how far another would differ" in said(found)


def test_a_folder_without_a_readable_manifest_is_refused(runs):
    (runs / "grpo-0" / "manifest.json").write_text("{}")
    with pytest.raises(RunFolderError, match="is no manifest of a run of winnow"):
        compare(runs / "grpo-0")


def test_an_unknown_baseline_is_refused_with_the_nearest(runs):
    with pytest.raises(ConfigError, match="there is no group 'GRPP' to be the baseline; did you mean 'GRPO'"):
        compare(f"GRPO={runs}/grpo-*", baseline="GRPP")


def test_a_resume_that_changed_something_is_said(runs):
    write_manifest(runs / "grpo-0", changes=[{"step": 2, "key": "optimizer.learning_rate"}], **GRPO)
    assert "grpo-0 was resumed with other optimizer.learning_rate" in said(compare(runs / "grpo-0", runs / "grpo-1"))


def test_an_edited_input_is_said(runs):
    for seed, digest in ((0, "aa"), (1, "bb")):
        write_manifest(runs / f"grpo-{seed}", seed=seed, inputs={"reward.use": {"mine.py": digest}}, **GRPO)
    found = compare(runs / "grpo-0", runs / "grpo-1")
    assert said(found).startswith(
        f"reward.use: mine.py was another file for {runs / 'grpo-1'} than for {runs / 'grpo-0'}"
    )


@pytest.mark.parametrize("damage", ["inputs", "changes", "device"])
def test_a_manifest_of_strange_shape_ends_no_comparison(runs, damage):
    path = runs / "grpo-0" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["config"] |= {"optimizer": 3, "steps": "many", "allocate": [1], "max_hours": "x", "seed": [2]}
    path.write_text(json.dumps({**manifest, damage: ["strange", {"key": 1}]}))
    assert "grpo-0" in "".join(groups(compare(runs / "grpo-0"))) + said(compare(runs / "grpo-0"))


def test_a_seed_that_lacks_an_evaluation_of_the_others_is_named(runs):
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
        ((0.1,) * 9, "2 of 2 seeds never reached the level"),
        ((0.6,) * 9, "2 of 2 seeds are above the level at their first evaluation"),
        ((*(0.1,) * 7, 0.5, 0.7), "2 of 2 seeds first reach the level at their last evaluation"),
        ((0.1, *(0.6,) * 8), "reaches the level 1.8 evaluations after its first one"),
    ],
)
def test_times_that_longer_runs_or_more_evaluations_could_change_get_a_note(runs, accuracies, words):
    for seed in (0, 1):
        write_run(runs / f"other-{seed}", accuracies, seed=seed)
    (note,) = compare(f"GRPO={runs}/grpo-*", f"other={runs}/other-*").notes
    assert note.startswith("other: ")
    assert words in note


def test_a_baseline_that_still_rises_and_one_without_a_level_get_a_note(runs):
    for seed in (0, 1):
        write_run(runs / f"rising-{seed}", (*CURVE[:7], 0.62, 0.64), seed=seed)
        write_run(runs / f"nothing-{seed}", (0.0,) * 9, seed=seed)
    others = f"rising={runs}/rising-*", f"nothing={runs}/nothing-*"
    assert compare(*others, baseline="rising").plateau.still_rising
    assert said(compare(f"rising={runs}/rising-*")) == ""  # nothing is compared with it
    without = compare(*others, baseline="nothing")
    assert (without.plateau.level, without.speed_ups, without.times) == (None, (), {})
    assert "nothing: its plateau is 0" in said(without)


def test_a_sweep_brings_labels_a_baseline_and_which_runs_had_the_machine_alone(tmp_path):
    found = compare(write_sweep(tmp_path / "sweep", CURVE, pods=PODS, grpo=GRPO, alone=True))
    assert groups(found) == {"PODS": ["0"], "GRPO": ["0"]}
    assert found.baseline == "GRPO"
    assert "seed-1 has not begun, and is left out" in said(found)
    assert ("PODS", "seconds", "accuracy") in found.curves


@pytest.mark.parametrize("inside", ["", "PODS/seed-0"])
def test_seconds_of_a_run_that_shared_the_machine_do_not_count(tmp_path, inside):
    found = compare(write_sweep(tmp_path / "sweep", CURVE, pods=PODS, grpo=GRPO, alone=False) / inside)
    assert ("PODS", "seconds", "accuracy") not in found.curves
    assert ("PODS", "tokens_generated", "accuracy") in found.curves
    assert "PODS: no seconds, as seed-0 did not have the machine alone" in said(found)


def test_a_file_and_runs_stand_side_by_side(runs):
    (runs / "GA.csv").write_text("seconds,accuracy\n0,10\n10,10\n20,10\n30,61\n40,61\n50,61\n")
    found = compare(runs / "GA.csv", f"PODS={runs}/pods-*")
    assert groups(found) == {"GA": [None], "PODS": ["0", "1"]}
    (row,) = found.speed_ups
    # 0.5795, from a mean of 0.44 after 30 seconds to one of 0.61 after 40; PODS: 0.5795 from 0.5667 to 0.6
    ends = 30 + 10 * (0.5795 - 0.44) / 0.17, 50 + 10 * (0.5795 - 17 / 30) / (1 / 30)
    assert (row.axis, row.ratio.baseline, row.ratio.group) == ("seconds", *map(pytest.approx, ends))
    assert not row.ratio.has_interval  # a mean curve has none
    assert (row.pods.baseline, row.pods.other) == (30, None)  # 60.39%; PODS ends at 60%
    (runs / "named.csv").write_text("group,seconds,accuracy\nB,0,10\n")
    with pytest.raises(DataError, match="its column 'group' names its curves; name the file without a label"):
        compare(f"A={runs / 'named.csv'}")


def test_rollouts_by_pass_rate_where_an_allocator_is_at_work(runs):
    # the one prompt of every step: 1 of 3, 0 of 2 right
    write_run(runs / "gvm", CURVE, rollouts=(RIGHT, WRONG, WRONG), allocate="gvm_online", **PODS)
    write_run(runs / "even", CURVE, rollouts=(WRONG, WRONG), **PODS)
    found = compare(f"GVM={runs / 'gvm'}", f"even={runs / 'even'}", f"silent={runs / 'grpo-0'}")
    assert [count and count.mean for count in found.allocation["GVM"].counts] == [None, None, 3, None, None, None]
    assert [count and count.mean for count in found.allocation["even"].counts] == [2, None, None, None, None, None]
    assert "silent: no rollouts by pass rate (grpo-0 logged no rollouts)" in said(found)
    assert compare(f"even={runs / 'even'}").allocation == {}
