"""The Python interface: train, evaluate, resume, open_run, and the exported names."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import forked
import winnow
from refusals import refused
from synthetic_run import write_run
from winnow.commands import app
from winnow.errors import ConfigError, DataError, RunFolderError
from winnow.run_view.data import OpenRun
from winnow.state.checkpoint import newest
from winnow_lab.sweep_folder import read_sweep

QUIET = {"progress": False}
NO_WORKER = {"workers": 0}  # a process costs more than the evaluation


def even(prompt, rollout):
    """Share of characters with an even code point."""
    return sum(ord(c) % 2 == 0 for c in rollout.text) / max(1, len(rollout.text))


@pytest.fixture
def small(smallest):
    def configuration(**changes):
        return smallest(reward=even, task={"levels": [2]}, verify={"workers": 0}, **changes)

    return configuration


def test_watch_adds_to_the_display_and_progress_switches_it_off(small, tmp_path, capsys):
    events = []
    winnow.train(**small(steps=1, output=str(tmp_path / "a")), watch=events.append)
    assert str(tmp_path / "a") in capsys.readouterr().out
    news = (winnow.Started, winnow.Evaluated, winnow.StepReport, winnow.Ended)
    kinds = [type(event) for event in events if isinstance(event, news)]
    assert kinds == [winnow.Started, winnow.Evaluated, winnow.StepReport, winnow.Evaluated, winnow.Ended]
    again = []
    winnow.train(**small(steps=1, output=str(tmp_path / "b")), watch=again.append, progress=False)
    assert capsys.readouterr().out == ""
    assert kinds == [type(event) for event in again if isinstance(event, news)]


def test_an_unknown_display_is_refused_before_anything_is_loaded(small, tmp_path):
    with refused(ConfigError, "'live'", "'auto'", "'plain'", "'json'", "'none'", code="config.value"):
        winnow.train(**small(output=str(tmp_path / "a")), progress="live")
    assert not (tmp_path / "a").exists()


PRINTS = """
import os, sys, winnow
from pathlib import Path
print("first")
winnow.train(
    model={"path": sys.argv[1]}, task={"use": "arithmetic", "levels": [1], "size": 16}, output=sys.argv[2], steps=1,
    threads=1, device="cpu", reward="talks.py:talks", verify={"workers": 0}, evaluate={"problems": 2},
    rollout={"prompts_per_step": 2, "rollouts_per_prompt": 2, "max_new_tokens": 4}, select="all", progress="json",
)
print("last")
"""
TALKS = """
import os
print("at import")


def talks(prompt, rollout):
    print("in the reward")
    os.write(1, b"below Python")
    return len(rollout.text) % 2
"""


def test_with_json_progress_only_events_reach_standard_output(tiny_folder, tmp_path):
    (tmp_path / "talks.py").write_text(TALKS)
    (tmp_path / "prints.py").write_text(PRINTS)
    done = forked.python(tmp_path / "prints.py", tiny_folder("qwen2"), tmp_path / "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    first, *events, last = done.stdout.splitlines()
    assert (first, last) == ("first", "last")
    assert [event for line in events if (event := json.loads(line)["event"]) in ("started", "step", "ended")] == [
        "started",
        "step",
        "ended",
    ]
    for text in ("at import", "in the reward", "below Python"):
        assert text in done.stderr


def test_with_json_progress_only_events_reach_a_notebooks_output(small, tmp_path, capsys):
    """A notebook's output is an object, and not a descriptor of the process."""

    def watch(event):
        print("seen")

    winnow.train(**small(steps=1, output=str(tmp_path / "a")), progress="json", watch=watch)
    printed = capsys.readouterr()
    events = {json.loads(line)["event"] for line in printed.out.splitlines()}
    assert events >= {"started", "step", "evaluated", "ended"}
    assert set(printed.err.splitlines()) == {"seen"}


def test_a_resume_continues_with_the_configuration_in_the_folder(small, tmp_path):
    whole = winnow.train(**small(steps=3, output=str(tmp_path / "whole")), **QUIET)
    winnow.train(**small(steps=2, checkpoint={"every": 1}), **QUIET)
    resumed = winnow.resume(tmp_path / "run", steps=3, reward=even, **QUIET)
    assert (resumed.steps, resumed.interrupted) == (3, False)
    weights = [(result.model / "model.safetensors").read_bytes() for result in (whole, resumed)]
    assert weights[0] == weights[1]


def test_a_function_given_from_python_is_needed_again(small, tmp_path):
    winnow.train(**small(steps=1), **QUIET)
    with refused(ConfigError, "even", key="reward", code="config.user_code"):
        winnow.resume(tmp_path / "run", steps=2, **QUIET)
    checkpoint = newest(tmp_path / "run").path
    with refused(ConfigError, "even", key="reward", code="config.user_code"):
        winnow.evaluate(checkpoint)


def test_critic_is_a_table_or_a_function(small):
    """In Python as in TOML, a mistake in the table is refused by its key. Other values are refused before loading."""
    with refused(ConfigError, "critic.form = 'shared'", key="critic.epochs", code="config.unknown_key"):
        winnow.train(**small(advantage="gae"), critic={"form": "shared", "epochs": 2}, **QUIET)
    with refused(ConfigError, "mine.py:values", key="critic", code="config.value"):
        winnow.train(**small(advantage="gae"), critic="mine.py:values", **QUIET)


def test_a_resume_refuses_another_configuration_and_no_run(small, tmp_path):
    winnow.train(**small(steps=1), **QUIET)
    with refused(RunFolderError, "seed", 0, 1, key="seed", code="run_folder.changed"):
        winnow.resume(tmp_path / "run", steps=2, seed=1, reward=even, **QUIET)
    with refused(RunFolderError, tmp_path / "nothing", code="run_folder.unreadable"):
        winnow.resume(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


def test_an_evaluation_of_a_run_s_checkpoint(small, tmp_path):
    result = winnow.train(**small(steps=1), **QUIET)
    evaluation = winnow.evaluate(
        result.model, reward=even, problems=3, rollouts_per_prompt=2, greedy=False, temperature=0.5
    )
    expected = {
        "task": "arithmetic",
        "split": "test",
        "problems": 3,
        "rollouts_per_prompt": 2,
        "temperature": 0.5,
        "max_new_tokens": 8,
        "greedy": False,
        "reward": "even",
    }
    assert {name: evaluation.settings()[name] for name in expected} == expected
    assert [len(rollouts) for rollouts in evaluation.sampled.values()] == [2, 2, 2]
    assert evaluation.metrics["eval/reward_mean"] == pytest.approx(np.mean([row["reward"] for row in evaluation.rows]))
    everything = winnow.evaluate(str(result.model), reward=even, rollouts_per_prompt=1, greedy=False)
    assert (everything.settings()["problems"], everything.config.evaluate.problems) == (16, 16)


def test_a_checkpoint_is_only_evaluated_on_its_runs_problems(small, tmp_path, monkeypatch):
    """A path is relative to the working directory, which may contain another file of the same name."""
    problems = tmp_path / "problems.jsonl"
    rows = [json.dumps({"question": f"What is {i} + 2?", "answer": f"{i + 2}"}) + "\n" for i in range(64)]
    problems.write_text("".join(rows))
    monkeypatch.chdir(tmp_path)
    config = {**small(steps=1, evaluate={"problems": 2}), "task": {"use": "jsonl", "path": "problems.jsonl"}}
    model = winnow.train(**config, **QUIET).model
    few = {"problems": 2, "rollouts_per_prompt": 1, "reward": even}
    assert winnow.evaluate(model, **few).settings()["task_options"] == {"path": "problems.jsonl"}
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    with refused(DataError, "problems.jsonl", key="task.path", code="data.changed"):
        winnow.evaluate(model, **few)
    Path("problems.jsonl").write_text("".join(rows[:32]))
    with refused(DataError, key="task.path", code="data.changed"):
        winnow.evaluate(model, **few)
    winnow.evaluate(model, task={"use": "jsonl", "path": str(problems)}, **few)


def test_an_evaluation_warns_of_a_format_that_the_prompt_does_not_request():
    few = {"task": {"use": "arithmetic", "size": 8}, "problems": 1, "rollouts_per_prompt": 1, "greedy": False}
    short = {"rollout": {"max_new_tokens": 2}, "verify": NO_WORKER}
    (warning,) = winnow.evaluate("bundled", **few, **short, reward="boxed").warnings
    assert "reward = 'boxed'" in warning
    assert r"\boxed" in warning


def test_a_file_that_is_imported_for_its_functions_starts_no_run(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import winnow\n\n\ndef one(prompt, rollout):\n    return 1.0\n\n\nwinnow.train(reward=one, steps=1)\n"
    )
    with refused(ConfigError, tmp_path / "mine.py", "__main__", code="config.user_code"):
        winnow.train(reward=f"{tmp_path}/mine.py:one", steps=1, output=str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_an_open_run_returns_its_logs_as_arrays(tmp_path):
    run = winnow.open_run(with_manifest(write_run(tmp_path / "toy")))
    metrics = run.metrics()
    assert metrics["step"].tolist() == list(range(10))  # without the evaluation after the last step
    assert metrics["reward/mean"].dtype == np.float64
    assert metrics["reward/mean"].shape == (10,)
    assert metrics["reward/mean"].mean() == pytest.approx(0.55)
    assert metrics["eval/accuracy_sampled"][[0, 5]].tolist() == [
        0.05,
        0.61,
    ]  # a row has the evaluation before its step
    rows = run.rollouts(step=3)
    count = len(rows["text"])
    assert set(rows["step"].tolist()) == {3}
    assert (rows["index"].dtype, rows["keep"].dtype, rows["reward"].dtype) == (np.int64, np.bool_, np.float64)
    assert rows["tokens"].shape == (count,)  # ragged or not, one list per rollout
    assert len(run.rollouts()["step"]) > count
    assert run.config == {"seed": 0}
    assert run.manifest == {"winnow_run": 1, "config": {"seed": 0}}


def test_the_fields_of_rollouts_are_decoded(tmp_path):
    run = winnow.open_run(with_manifest(write_run(tmp_path / "toy", steps=1)))
    rows = run.rollouts(step=0)
    assert rows["answer"].tolist() == ["132"] * 7
    assert rows["meta"].tolist() == [{}] * 7
    assert rows["parts"][0] == {}
    assert rows["tokens"][0].tolist() == [0, 1, 2]
    assert rows["correct"].tolist() == [True, True, False, False, False, None, False]
    assert np.isnan(rows["reward"][5])  # its verifier failed
    assert rows["weight"].dtype == np.float64


def test_only_the_chosen_columns_are_read(tmp_path):
    run = winnow.open_run(with_manifest(write_run(tmp_path / "toy")))
    assert list(run.rollouts(step=3, columns=["reward", "step"])) == ["step", "reward"]
    every = run.rollouts(columns=["reward"])
    assert (list(every), sorted(set(every["step"].tolist()))) == (["step", "reward"], list(range(10)))
    with refused(DataError, "'rewards'", "'reward'", code="data.missing"):
        run.rollouts(columns=["rewards"])


def test_a_run_in_the_home_directory_is_resumed_by_its_name(small, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    winnow.train(**small(steps=1, output="~/mine"), **QUIET)
    assert winnow.resume("~/mine", steps=2, reward=even, **QUIET).steps == 2


def test_evaluations_are_separate_rows(tmp_path):
    evaluations = winnow.open_run(with_manifest(write_run(tmp_path / "toy"))).evaluations()
    assert evaluations["step"].tolist() == [0, 5, 10]
    assert evaluations["eval/accuracy_sampled"].tolist() == [0.05, 0.61, 0.58]
    assert all(name == "step" or name.startswith("eval/") for name in evaluations)


def test_the_repr_of_a_run_has_folder_steps_checkpoints_and_model(tmp_path):
    folder = with_manifest(write_run(tmp_path / "toy"))
    (folder / "manifest.json").write_text(
        '{"winnow_run": 1, "config": {"steps": 40, "model": {"path": "bundled\\u001b[2J"}}}'
    )
    assert repr(winnow.open_run(folder)) == f"OpenRun({str(folder)!r}): 10 of 40 steps, 3 checkpoints, bundled\\x1b[2J"
    (folder / "metrics.jsonl").write_text("no row\n")
    assert repr(winnow.open_run(folder)) == f"OpenRun({str(folder)!r})"
    (folder / "metrics.jsonl").unlink()
    with refused(DataError, folder / "metrics.jsonl", code="data.unreadable"):  # checkpoints imply an earlier log
        winnow.open_run(folder).metrics()


def test_a_run_without_a_finished_step_has_empty_columns(tmp_path):
    (tmp_path / "manifest.json").write_text('{"winnow_run": 1, "config": {"steps": 40}}')
    run = winnow.open_run(tmp_path)
    assert repr(run) == f"OpenRun({str(tmp_path)!r}): 0 of 40 steps, 0 checkpoints"
    assert run.alarms() == []
    for _ in range(2):
        for columns in (run.metrics(), run.evaluations()):
            assert {name: column.tolist() for name, column in columns.items()} == {"step": []}
            assert columns["step"].dtype == np.int64
        (tmp_path / "metrics.jsonl").touch()
    assert run.frame("metrics", columns=["step", "reward/mean"]).shape == (0, 2)


def test_a_frame_refuses_a_step_of_metrics_and_a_name_for_a_list(tmp_path):
    run = winnow.open_run(with_manifest(write_run(tmp_path / "toy")))
    with refused(ConfigError, "metrics", "frame[frame.step == 0]", code="config.combination"):
        run.frame("metrics", step=0)
    for read in (run.frame, lambda columns: run.rollouts(columns=columns)):
        with refused(ConfigError, "columns", "'reward'", code="config.value"):
            read(columns="reward")


def test_a_file_of_a_run_is_refused_with_the_run_s_folder(tmp_path):
    folder = with_manifest(write_run(tmp_path / "toy"))
    for part in ("metrics.jsonl", "checkpoints", "checkpoints/step-000010"):
        with refused(RunFolderError, folder / part, folder.resolve(), code="run_folder.foreign"):
            winnow.open_run(folder / part)


def test_a_sweep_is_refused_with_one_of_its_runs(tmp_path):
    description = {"winnow_sweep": 1, "labels": {"a": {}}, "seeds": [1, 2], "baseline": None, "inputs": {}}
    (tmp_path / "sweep.json").write_text(json.dumps(description))
    with refused(RunFolderError, tmp_path, 0, code="run_folder.foreign"):
        winnow.open_run(tmp_path)
    run = next(run.path for run in read_sweep(tmp_path))
    run.mkdir(parents=True)
    with_manifest(run)
    with refused(RunFolderError, tmp_path, 1, run, code="run_folder.foreign"):
        winnow.open_run(tmp_path)


def with_manifest(folder: Path) -> Path:
    (folder / "manifest.json").write_text('{"winnow_run": 1, "config": {"seed": 0}}')
    for name in ("step-000010", "step-000002", "step-9", "other"):
        (folder / "checkpoints" / name).mkdir(parents=True)
    return folder


def test_checkpoints_are_in_the_order_of_their_steps(tmp_path):
    run = winnow.open_run(str(with_manifest(write_run(tmp_path / "toy"))))
    assert [(step, path.name) for step, path in run.checkpoints.items()] == [
        (2, "step-000002"),
        (9, "step-9"),
        (10, "step-000010"),
    ]
    assert winnow.open_run(str(with_manifest(tmp_path))).checkpoints.keys() == {2, 9, 10}  # before its first step


def test_a_frame_needs_pandas(tmp_path, monkeypatch):
    run = winnow.open_run(with_manifest(write_run(tmp_path / "toy")))
    monkeypatch.setitem(sys.modules, "pandas", None)
    with refused(ConfigError, "pandas", "winnow-rl[pandas]", code="config.not_installed"):
        run.frame()


def test_a_frame_has_the_arrays_as_columns(tmp_path):
    pandas = pytest.importorskip("pandas")
    run = winnow.open_run(with_manifest(write_run(tmp_path / "toy")))
    assert isinstance(run.frame(), pandas.DataFrame)
    assert list(run.frame("rollouts", step=3)["text"]) == list(run.rollouts(3)["text"])
    frame = run.frame("rollouts", step=3, columns=["reward", "correct", "index"])
    kinds = {"step": "int64", "index": "int64", "reward": "float64", "correct": "boolean"}
    assert frame.dtypes.astype(str).to_dict() == kinds
    assert frame["correct"].mean() == pytest.approx(2 / 6)  # without the rollout whose verifier failed
    assert frame["reward"].mean() == pytest.approx(2 / 6)
    assert run.frame("evaluations", columns=["eval/accuracy_greedy"])["eval/accuracy_greedy"].tolist() == [
        0.04,
        0.7,
        0.66,
    ]
    assert run.frame().set_index("step").loc[4, "reward/mean"] == 0.5
    assert run.frame().dtypes["step"] == "int64"
    with refused(ConfigError, "'reward/maen'", "'reward/mean'", code="config.unknown_name"):
        run.frame(columns=["reward/maen"])
    with refused(ConfigError, "'metric'", "'metrics'", code="config.unknown_name"):
        run.frame("metric")


def test_a_folder_that_is_not_a_run_is_refused(tmp_path):
    for folder in (tmp_path, tmp_path / "nothing"):
        with refused(RunFolderError, folder / "manifest.json", code="run_folder.unreadable"):
            winnow.open_run(folder)


def test_importing_winnow_and_opening_a_run_load_no_torch(tmp_path):
    with_manifest(write_run(tmp_path / "toy"))
    code = """
import sys, winnow
assert not {"numpy", "torch", "transformers", "typer", "rich", "winnow.training.fit"} & set(sys.modules)
run = winnow.open_run(sys.argv[1])
run.metrics(), run.rollouts(), run.checkpoints, run.config
print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "toy")], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("False\n", 0), done.stderr


def test_the_version_has_one_source():
    assert CliRunner().invoke(app, ["--version"]).output == f"winnow {winnow.__version__}\n"
    assert winnow.__version__.split(".")[0].isdigit()
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    assert "version" in project["project"]["dynamic"]
    assert project["tool"]["hatch"]["version"]["path"] == "src/winnow/version.py"


def test_an_unknown_name_is_an_attribute_error():
    assert winnow.OpenRun is OpenRun
    with pytest.raises(AttributeError, match="evalute"):
        winnow.evalute  # noqa: B018


def test_an_evaluation_uses_a_given_table_and_does_not_change_it():
    table = {"problems": 1, "rollouts_per_prompt": 1, "greedy": False, "split": "validation"}
    before = dict(table)
    task = {"use": "arithmetic", "size": 16}
    found = winnow.evaluate("bundled", evaluate=table, task=task, rollout={"max_new_tokens": 2}, verify=NO_WORKER)
    assert (table, found.settings()["split"]) == (before, "validation")


@pytest.mark.parametrize("name", ["compare", "into", "resume", "sets", "tasks"])
def test_an_evaluation_from_python_is_of_one_model_and_one_task(name):
    with refused(ConfigError, f"'{name}'", key=name, code="config.unknown_key"):
        winnow.evaluate("bundled", problems=1, **{name: ["arithmetic"]})


@pytest.mark.parametrize("progress", [True, "plain", False])
def test_an_evaluation_accepts_what_train_accepts_for_its_display(progress):
    few = {"task": {"use": "arithmetic", "size": 8}, "problems": 1, "rollouts_per_prompt": 1, "greedy": False}
    short = {"rollout": {"max_new_tokens": 2}, "verify": NO_WORKER}
    assert len(winnow.evaluate("bundled", **few, **short, progress=progress).rows) == 1
