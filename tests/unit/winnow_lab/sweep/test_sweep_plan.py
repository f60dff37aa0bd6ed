"""The plan of a sweep: what is written before the first run, and what a resume may change."""

from __future__ import annotations

import errno
import json
import os
import tomllib

import pytest

from golden_files import assert_golden
from refusals import refused
from winnow.config_file import load, validate
from winnow.errors import ConfigError, RunFolderError
from winnow.state.folder import has_finished_step
from winnow.state.manifest import describe_run
from winnow.training.resolve import resolve_members
from winnow_lab.sweep import loop
from winnow_lab.sweep.loop import NotLaunched, plan_lines, train_sweep
from winnow_lab.sweep.plan import read_plan, record, reuse
from winnow_lab.sweep.process import OnThisMachine, ProcessEnd
from winnow_lab.sweep_folder import LedgerLine, SweepFolder, read_contents, read_ledger, read_sweep

BASE = """
steps = 3
seed = 9
output = "runs/base"
reward = { use = "mine.py:paid" }
[optimizer]
learning_rate = 1e-3
"""
SWEEP = """
config = "configs/base.toml"
output = "OUT"
seeds = [0, 1]
baseline = "all"
[set]
steps = 2
[variants.all]
select = "all"
[variants.mine]
advantage = "../own.py:credit"
"""


@pytest.fixture
def files(tmp_path):
    """A sweep file with the files that it names; `files(text)` writes another one."""
    (tmp_path / "s" / "configs").mkdir(parents=True)
    base, sweep = tmp_path / "s" / "configs" / "base.toml", tmp_path / "s" / "sweep.toml"
    (base.parent / "mine.py").write_text("def paid(prompt, rollout):\n    return 1.0\n")
    (tmp_path / "own.py").write_text("def credit(groups):\n    return [group.rewards for group in groups]\n")

    def write(text=SWEEP, base_text=BASE):
        base.write_text(base_text)
        sweep.write_text(text.replace("OUT", str(tmp_path / "out")))
        return sweep

    write()
    return write


def do_a_step(run, settings, seed):
    """Write the folder of a run with these settings and one completed step."""
    run.mkdir(parents=True, exist_ok=True)
    members = resolve_members(load(settings, [f"seed={seed}"]), settings.parent)
    described = describe_run(members.config, base=settings.parent, device="cpu", threads=1, inputs={})
    (run / "manifest.json").write_text(json.dumps({"winnow_run": 1, **described}))
    (run / "metrics.jsonl").write_text('{"step":0,"budget/rollouts":8}\n')


def begin(sweep, *, resume=False, steps=True):
    """Record the plan of a sweep; with `steps`, then complete a step of each of its runs."""
    plan = read_plan(sweep, {})
    with SweepFolder.open(plan.output, resume=resume) as folder:
        record(plan, folder)
    for run in read_sweep(plan.output) if steps else ():
        do_a_step(run.path, run.settings, run.seed)
    return plan


def test_runs_without_a_completed_step_may_change(files, tmp_path):
    begin(files(), steps=False)
    (tmp_path / "s" / "configs" / "mine.py").write_text("def paid(prompt, rollout):\n    return 0.5\n")
    begin(files(SWEEP.replace("steps = 2", "steps = 4").replace("[0, 1]", "[2]")), resume=True, steps=False)

    assert tomllib.loads((tmp_path / "out" / "all" / "config.toml").read_text())["steps"] == 4
    assert read_contents(tmp_path / "out").seeds == (2,)


def test_each_label_gets_a_resolved_configuration_file(files, tmp_path):
    plan = begin(files())

    assert list(plan.settings) == ["all", "mine"]
    written = {label: tomllib.loads((tmp_path / "out" / label / "config.toml").read_text()) for label in plan.settings}
    for label, data in written.items():
        config = plan.settings[label].config
        assert not {"seed", "output"} & data.keys()
        again = validate({**data, "seed": config.seed, "output": config.output})
        assert again == config
        assert (data["steps"], data["optimizer"]["learning_rate"]) == (2, 1e-3)
        assert data["reward"]["use"] == f"{tmp_path}/s/configs/mine.py:paid"
    assert written["all"]["select"] == [{"use": "all"}]
    assert written["mine"]["advantage"]["use"] == f"{tmp_path}/own.py:credit"


@pytest.mark.parametrize(
    ("old", "new", "line", "key", "code", "names"),
    [
        ("steps = 2", "stpes = 2", 7, "stpes", "config.unknown_key", ("'all'", "'steps'")),
        (
            'select = "all"',
            'select = { use = "all", keep = 4 }',
            *(9, "select.keep", "config.unknown_key", ("'all'",)),
        ),
        (
            'advantage = "../own.py:credit"',
            '"optimizer.learning_rate" = -1.0',
            *(11, "optimizer.learning_rate", "config.value", ("'mine'", "-1.0")),
        ),
        ("../own.py", "own.py", 11, "advantage", "config.user_code", ("'mine'",)),
        ("configs/base.toml", "configs/bsae.toml", 2, None, "config.unreadable", ("bsae.toml",)),
    ],
)
def test_a_mistake_is_refused_before_a_folder_is_made(files, tmp_path, old, new, line, key, code, names):
    with refused(ConfigError, f"sweep.toml, line {line}", *names, key=key, code=code):
        read_plan(files(SWEEP.replace(old, new)), {})
    assert not (tmp_path / "out").exists()


def test_a_recipe_is_named_by_a_bare_word_that_is_nothing_beside_the_sweep_file(files, monkeypatch, tmp_path):
    (tmp_path / "arithmetic").mkdir()
    monkeypatch.chdir(tmp_path)  # with a folder of the recipe's name, which is not beside the sweep file
    text = SWEEP.replace("configs/base.toml", "arithmetic")
    assert read_plan(files(text), {}).settings["all"].config.task.options["levels"] == (2, 3, 4)
    with refused(ConfigError, "sweep.toml, line 2", "'arithmetic'", code="config.unknown_name"):
        read_plan(files(text.replace("arithmetic", "arithmetics")), {})
    (tmp_path / "s" / "arithmetic").touch()
    with refused(ConfigError, "sweep.toml, line 2", "'./arithmetic'", code="config.duplicate"):
        read_plan(files(text), {})


def test_a_mistake_in_the_base_configuration_is_named_with_its_line(files):
    with refused(ConfigError, "base.toml, line 7", key="optimizer.rate", code="config.unknown_key"):
        read_plan(files(base_text=BASE.replace("learning_rate", "rate")), {})


def test_a_resume_accepts_new_seeds_and_configurations(files, tmp_path):
    begin(files())
    more = SWEEP.replace("[0, 1]", "[0, 1, 2]").replace("[variants.mine]", "[variants.few]\nsteps = 2\n[variants.mine]")
    begin(
        files(
            more.replace("[set]\nsteps = 2\n", "[set]\n")
            .replace("select =", "steps = 2\nselect =")
            .replace("advantage =", "steps = 2\nadvantage =")
        ),
        resume=True,
    )

    assert list(read_contents(tmp_path / "out").labels) == ["all", "few", "mine"]
    assert read_contents(tmp_path / "out").seeds == (0, 1, 2)
    assert (tmp_path / "out" / "few" / "config.toml").is_file()


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ("steps = 2", "steps = 4", ("all: steps", "mine: steps", 2, 4)),
        ('select = "all"', 'select = "random"', ("all: select", "'all'", "'random'")),
        ("[0, 1]", "[0]", ("seed 1",)),
        ("variants.mine", "variants.other", ("'mine'",)),
    ],
)
def test_a_resume_with_another_file_is_refused_by_label_and_key(files, old, new, names):
    begin(files())
    with refused(RunFolderError, *names, code="run_folder.changed"):
        begin(files(SWEEP.replace(old, new)), resume=True)


def test_a_resume_with_another_base_or_a_changed_reward_is_refused(files, tmp_path):
    begin(files())
    with refused(RunFolderError, "all: optimizer.learning_rate", 0.001, 0.002, code="run_folder.changed"):
        begin(files(base_text=BASE.replace("1e-3", "2e-3")), resume=True)
    sweep = files()
    (tmp_path / "s" / "configs" / "mine.py").write_text("def paid(prompt, rollout):\n    return 0.5\n")
    with refused(RunFolderError, "all: reward.use", "mine.py", code="run_folder.changed"):
        begin(sweep, resume=True)


@pytest.mark.parametrize(
    ("eps", "seed", "key", "was"), [("1e-08", 7, "seed", 7), ("1e-07", 2, "optimizer.eps", "1e-07")]
)
def test_a_foreign_run_in_a_run_s_folder_is_refused(files, tmp_path, eps, seed, key, was):
    begin(files())
    other, run = tmp_path / "other.toml", tmp_path / "out" / "all" / "seed-2"
    other.write_text((tmp_path / "out" / "all" / "config.toml").read_text().replace("eps = 1e-08", f"eps = {eps}"))
    do_a_step(run, other, seed)
    with refused(RunFolderError, run, key, was, code="run_folder.foreign"):
        begin(files(SWEEP.replace("[0, 1]", "[0, 1, 2]")), resume=True)
    assert read_contents(tmp_path / "out").seeds == (0, 1)


def test_a_run_with_the_sweep_s_settings_started_manually_is_accepted(files, tmp_path):
    begin(files())
    do_a_step(tmp_path / "out" / "all" / "seed-2", tmp_path / "out" / "all" / "config.toml", 2)
    begin(files(SWEEP.replace("[0, 1]", "[0, 1, 2]")), resume=True)

    assert read_contents(tmp_path / "out").seeds == (0, 1, 2)


@pytest.mark.parametrize("damage", [b"steps = = 2", b"\xff"])
def test_a_damaged_configuration_of_a_label_is_named(files, tmp_path, damage):
    begin(files())
    config = tmp_path / "out" / "all" / "config.toml"
    config.write_bytes(damage)
    with refused(RunFolderError, config, code="run_folder.damaged"):
        begin(files(), resume=True, steps=False)


def test_options_of_the_command_are_checked_with_the_file(files):
    sweep = files(SWEEP.replace("seeds =", "cpus_per_run = 2\nseeds ="))
    assert read_plan(sweep, {"ray": "auto"}).file.cpus_per_run == 2
    with refused(ConfigError, "sweep.toml, line 4", key="cpus_per_run", code="config.no_effect"):
        read_plan(sweep, {})
    for key in ("output", "ray"):
        with refused(ConfigError, f"--{key}", "''", key=key, code="config.value"):
            read_plan(sweep, {key: ""})


def test_the_displayed_plan_matches_its_golden_file(files, tmp_path):
    plan = begin(files(SWEEP.replace("baseline", "at_once = 2\nbaseline")))
    text = "\n".join(plan_lines(plan, read_sweep(plan.output), ["all/seed-0"]))
    assert_golden("sweep_plan", text.replace(str(tmp_path), "FOLDER"))


OTHER_SWEEP = """
config = "base.toml"
output = "OUT"
seeds = [0, 1]
[variants.LABEL]
select = "all"
[variants.other]
"optimizer.learning_rate" = RATE
"""


@pytest.fixture
def sweep_file(tmp_path):
    (tmp_path / "mine.py").write_text("def paid(prompt, rollout):\n    return 1.0\n")
    (tmp_path / "base.toml").write_text('steps = 2\nreward = { use = "mine.py:paid" }\n')

    def write(name, *, label, rate, reuse=()):
        path = tmp_path / f"{name}.toml"
        text = OTHER_SWEEP.replace("OUT", str(tmp_path / name)).replace("LABEL", label).replace("RATE", str(rate))
        path.write_text(f"reuse = {json.dumps([str(tmp_path / other) for other in reuse])}\n{text}")
        return read_plan(path, {})

    return write


def trained(plan, *, finished=("a",), alone=True):
    """Write the folder of a sweep in which the runs of some labels are finished."""
    with SweepFolder.open(plan.output, resume=False) as folder:
        record(plan, folder)
        for run in read_sweep(folder.path):
            run.path.mkdir()
            config = load(run.settings, [f"seed={run.seed}", f"output={run.path}"])
            described = describe_run(
                resolve_members(config, run.settings.parent).config,
                base=run.settings.parent,
                device="cpu",
                threads=1,
                inputs={},
            )
            (run.path / "manifest.json").write_text(json.dumps({"winnow_run": 1, **described}))
            (run.path / "metrics.jsonl").write_text('{"step":0,"budget/rollouts":8}\n')
            (run.path / ".lock").write_text("")
            ends = ("began", "finished") if run.label in finished else ("began", "stopped")
            for status in ends:
                folder.note(LedgerLine(run.label, run.seed, status, alone, 75 if status == "stopped" else None))


def reused(plan, *, resume=False):
    with SweepFolder.open(plan.output, resume=resume) as folder:
        record(plan, folder)
        return reuse(plan, folder)


@pytest.mark.parametrize("alone", [True, False])
def test_a_finished_run_of_the_same_configuration_and_seed_is_copied(sweep_file, alone):
    trained(sweep_file("first", label="a", rate=1e-3), finished=("a",), alone=alone)
    plan = sweep_file("second", label="b", rate=2e-3, reuse=["missing", "firs*"])
    assert reused(plan) == ["b/seed-0", "b/seed-1"]
    runs = {run.name: run for run in read_sweep(plan.output)}
    assert [run.finished for run in runs.values()] == [True, True, False, False]
    assert runs["b/seed-0"].alone is alone
    assert not (runs["b/seed-0"].path / ".lock").exists()
    assert not has_finished_step(runs["other/seed-0"].path)
    assert reused(plan, resume=True) == []  # and a resume accepts what was copied


def test_a_run_whose_reward_changed_since_is_trained_again(sweep_file, tmp_path):
    trained(sweep_file("first", label="a", rate=1e-3), finished=("a",))
    (tmp_path / "mine.py").write_text("def paid(prompt, rollout):\n    return 2.0\n")
    assert reused(sweep_file("second", label="b", rate=1e-3, reuse=["first"])) == []


def test_a_run_of_the_same_files_is_found_behind_one_of_others(sweep_file, tmp_path):
    """The first folder has runs of the same configuration with an earlier reward, and the second one with this one."""
    trained(sweep_file("earlier", label="a", rate=1e-3))
    (tmp_path / "mine.py").write_text("def paid(prompt, rollout):\n    return 2.0\n")
    trained(sweep_file("later", label="a", rate=1e-3))
    plan = sweep_file("second", label="b", rate=1e-3, reuse=["earlier", "later"])
    assert reused(plan) == ["b/seed-0", "b/seed-1"]


def test_a_run_that_ended_before_its_first_step_is_trained(sweep_file):
    trained(sweep_file("first", label="a", rate=1e-3))
    plan = sweep_file("second", label="b", rate=1e-3, reuse=["first"])
    with SweepFolder.open(plan.output, resume=False) as folder:
        record(plan, folder)
        begun = plan.output / "b" / "seed-0" / "manifest.json"
        begun.parent.mkdir()
        begun.write_text("{}")
        assert reuse(plan, folder) == ["b/seed-1"]
        assert begun.read_text() == "{}"


def test_a_copy_that_does_not_fit_leaves_nothing_on_the_disk(sweep_file, monkeypatch):
    trained(sweep_file("first", label="a", rate=1e-3))
    plan = sweep_file("second", label="a", rate=2e-3, reuse=["first"])

    def full(source, target, **_):
        target.mkdir(exist_ok=True)
        (target / "metrics.jsonl").write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("shutil.copytree", full)
    with refused(RunFolderError, plan.output / "a" / "seed-0", key="reuse"):
        reused(plan)
    assert [path.name for path in (plan.output / "a").iterdir()] == ["config.toml"]


def test_an_interrupted_copy_is_repeated(sweep_file):
    trained(sweep_file("first", label="a", rate=1e-3))
    plan = sweep_file("second", label="a", rate=2e-3, reuse=["first"])
    with SweepFolder.open(plan.output, resume=False) as folder:
        record(plan, folder)
        half = plan.output / "a" / ".seed-0.copy"
        half.mkdir()
        (half / "half").write_text("")
        assert reuse(plan, folder) == ["a/seed-0", "a/seed-1"]
    assert not half.exists()
    assert not (plan.output / "a" / "seed-0" / "half").exists()


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("", "a0 a1 a2 b0 b1 b2 c0 c1 c2"),
        ('order = "configurations"\n', "a0 a1 a2 b0 b1 b2 c0 c1 c2"),
        ('order = "seeds"\n', "a0 b0 c0 b1 c1 a1 c2 a2 b2"),
    ],
)
def test_runs_begin_in_the_order_of_the_file_also_after_a_resume(files, monkeypatch, order, expected):
    """Every run fails, so the resume begins all of them again."""
    text = SWEEP.replace("[0, 1]", "[0, 1, 2]").replace('"all"\n[set]', '"a"\n' + order + "[set]")
    text = text[: text.index("[variants")] + "".join(f"[variants.{label}]\nsteps = {ord(label)}\n" for label in "abc")
    path = files(text.replace("[set]\nsteps = 2\n", ""))
    monkeypatch.setattr(loop, "POLL_SECONDS", 0)
    monkeypatch.setattr(OnThisMachine, "start", lambda self, run, arguments: NotLaunched(ProcessEnd(1)))
    for resume in (False, True):
        result = train_sweep(path, {}, resume=resume)
    began = [f"{line.label}{line.seed}" for line in read_ledger(result.folder) if line.status == "began"]
    assert began == expected.split() * 2


def test_an_order_that_does_not_exist_is_refused(files):
    path = files(SWEEP.replace("[set]", 'order = "arms"\n[set]'))
    with refused(ConfigError, "sweep.toml, line 6", "'arms'", key="order", code="config.value"):
        read_plan(path, {})
