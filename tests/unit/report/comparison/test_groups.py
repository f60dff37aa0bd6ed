from __future__ import annotations

import json

import pytest
from written_runs import write_manifest, write_run

from synthetic_run import RIGHT, WRONG
from winnow.errors import ConfigError, DataError, RunFolderError
from winnow.report.comparison.compared import compared
from winnow.state.sweep_folder import Contents, LedgerLine, SweepFolder

CURVE = (0.1, 0.6, 0.6)  # the level is reached before the last evaluation, and the baseline no longer rises
LATE = (0.1, 0.4, 0.6)
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
    assert {row.axis: row.whole.ratio for row in found.speed_ups if row.share < 1} == {
        "seconds": 2.0, "tokens_generated": 1.0, "tokens_trained": 1.0, "steps": 1.0,
    }  # fmt: skip
    assert found.notes == ()


def test_what_computes_no_number_makes_no_other_group_and_another_machine_is_said(runs):
    write_run(runs / "grpo-2", CURVE, seed=2, threads=2, log={"every": 3}, checkpoint={"every": 7}, steps=9, **GRPO)
    found = compare(runs / "grpo-0", runs / "grpo-2")
    assert groups(found) == {"grpo": ["0", "2"]}
    assert "grpo-2 has done 4 of 9 steps: it is still going, or was interrupted" in said(found)
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


def test_a_level_that_is_reached_by_steps_alone_is_said(runs):
    for seed, seconds in ((0, 5), (1, 20)):  # over seconds they end where seed 0 has 60%, and seed 1 is on its way
        write_run(runs / f"slow-{seed}", LATE, seed=seed, seconds=seconds, **PODS)
    found = compare(f"GRPO={runs}/grpo-*", f"slow={runs}/slow-*")
    assert {row.axis: row.whole.other for row in found.speed_ups if row.share < 1} == {
        "seconds": None, "tokens_generated": 4000, "tokens_trained": 1000, "steps": 4,
    }  # fmt: skip
    assert "slow: reached by steps, and not over seconds, where its first seed ended before" in said(found)


def sweep(folder, alone):
    """A sweep of two labels, of which seed 0 has run; PODS had the machine alone as is said."""
    with SweepFolder.open(folder, resume=False) as written:
        written.describe(Contents({"PODS": {}, "GRPO": {}}, seeds=(0, 1), baseline="GRPO", inputs={}))
        for label, own in (("GRPO", True), ("PODS", alone)):
            write_run(folder / label / "seed-0", CURVE, **(GRPO if label == "GRPO" else PODS))
            written.note(LedgerLine(label, 0, "began", own))
            written.note(LedgerLine(label, 0, "finished", own, 0))
    return folder


def test_a_sweep_brings_labels_a_baseline_and_which_runs_had_the_machine_alone(tmp_path):
    found = compare(sweep(tmp_path / "sweep", alone=True))
    assert groups(found) == {"PODS": ["0"], "GRPO": ["0"]}
    assert found.baseline == "GRPO"
    assert "seed-1 has not begun, and is left out" in said(found)
    assert ("PODS", "seconds", "accuracy") in found.curves


@pytest.mark.parametrize("inside", ["", "PODS/seed-0"])
def test_seconds_of_a_run_that_shared_the_machine_do_not_count(tmp_path, inside):
    found = compare(sweep(tmp_path / "sweep", alone=False) / inside)
    assert ("PODS", "seconds", "accuracy") not in found.curves
    assert ("PODS", "tokens_generated", "accuracy") in found.curves
    assert "PODS: no seconds, as seed-0 did not have the machine alone" in said(found)


def test_a_file_and_runs_stand_side_by_side(runs):
    (runs / "GA.csv").write_text("seconds,accuracy\n0,10\n40,61\n")
    found = compare(runs / "GA.csv", f"PODS={runs}/pods-*")
    assert groups(found) == {"GA": [None], "PODS": ["0", "1"]}
    (row,) = (row for row in found.speed_ups if row.share < 1)
    assert (row.axis, row.whole.baseline, row.whole.other) == ("seconds", 40, None)  # 60.39%; PODS ends at 60%
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
