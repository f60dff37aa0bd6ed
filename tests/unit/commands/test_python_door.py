"""The Python door: train, evaluate, resume, open_run, and the names that come with them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import winnow
from synthetic_run import write_run
from winnow.cli import app
from winnow.errors import ConfigError, DataError, RunFolderError
from winnow.report.opened import OpenRun
from winnow.state.checkpoint import newest
from winnow.state.sweep_folder import read_sweep

QUIET = {"progress": False}


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
    assert "held-out, after 1 steps" in capsys.readouterr().out
    news = (winnow.Started, winnow.Evaluated, winnow.StepReport, winnow.Ended)
    kinds = [type(event) for event in events if isinstance(event, news)]
    assert kinds == [winnow.Started, winnow.Evaluated, winnow.StepReport, winnow.Evaluated, winnow.Ended]
    again = []
    winnow.train(**small(steps=1, output=str(tmp_path / "b")), watch=again.append, progress=False)
    assert capsys.readouterr().out == ""
    assert kinds == [type(event) for event in again if isinstance(event, news)]


def test_a_display_that_is_not_known_ends_before_anything_is_loaded(small, tmp_path):
    with pytest.raises(ConfigError, match=r"progress = 'live': one of 'auto', 'plain', 'json', 'none', true or false"):
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
print("as it is imported")


def talks(prompt, rollout):
    print("as it judges")
    os.write(1, b"below Python")
    return len(rollout.text) % 2
"""


def test_json_has_standard_output_to_itself_while_the_run_lasts(tiny_folder, tmp_path):
    (tmp_path / "talks.py").write_text(TALKS)
    command = [sys.executable, "-c", PRINTS, str(tiny_folder("qwen2")), str(tmp_path / "run")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    first, *events, last = done.stdout.splitlines()
    assert (first, last) == ("first", "last")
    assert [event for line in events if (event := json.loads(line)["event"]) in ("started", "step", "ended")] == [
        "started",
        "step",
        "ended",
    ]
    for text in ("as it is imported", "as it judges", "below Python"):
        assert text in done.stderr


def test_json_has_a_notebooks_output_to_itself(small, tmp_path, capsys):
    """Which is no descriptor of the process."""

    def watch(event):
        print("seen")

    winnow.train(**small(steps=1, output=str(tmp_path / "a")), progress="json", watch=watch)
    said = capsys.readouterr()
    assert {json.loads(line)["event"] for line in said.out.splitlines()} >= {"started", "step", "evaluated", "ended"}
    assert set(said.err.splitlines()) == {"seen"}


def test_a_run_goes_on_with_what_its_folder_says(small, tmp_path):
    whole = winnow.train(**small(steps=3, output=str(tmp_path / "whole")), **QUIET)
    winnow.train(**small(steps=2, checkpoint={"every": 1}), **QUIET)
    resumed = winnow.resume(tmp_path / "run", steps=3, reward=even, **QUIET)
    assert (resumed.steps, resumed.interrupted) == (3, False)
    weights = [(result.model / "model.safetensors").read_bytes() for result in (whole, resumed)]
    assert weights[0] == weights[1]


def test_a_function_that_a_run_was_given_has_to_be_given_again(small, tmp_path):
    winnow.train(**small(steps=1), **QUIET)
    with pytest.raises(ConfigError, match=r"only the name of 'even \(given from Python\)' was saved; give the same"):
        winnow.resume(tmp_path / "run", steps=2, **QUIET)
    checkpoint = newest(tmp_path / "run").path
    with pytest.raises(ConfigError, match=r"reward: only the name of 'even .*give the same function again"):
        winnow.evaluate(checkpoint)


def test_critic_is_a_table_or_a_function(small):
    """In Python as in TOML, the table is refused by key, and what is neither says so before anything is loaded."""
    with pytest.raises(ConfigError, match=r"critic\.epochs has no effect under critic\.form = 'shared'"):
        winnow.train(**small(advantage="gae"), critic={"form": "shared", "epochs": 2}, **QUIET)
    with pytest.raises(ConfigError, match=r"'critic' is 'mine\.py:values'"):
        winnow.train(**small(advantage="gae"), critic="mine.py:values", **QUIET)


def test_a_resume_refuses_another_configuration_and_no_run(small, tmp_path):
    winnow.train(**small(steps=1), **QUIET)
    with pytest.raises(RunFolderError, match="seed was 0 and is now 1"):
        winnow.resume(tmp_path / "run", steps=2, seed=1, reward=even, **QUIET)
    with pytest.raises(RunFolderError, match="cannot read"):
        winnow.resume(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


def test_an_evaluation_of_a_run_s_checkpoint(small, tmp_path):
    result = winnow.train(**small(steps=1), **QUIET)
    found = winnow.evaluate(result.model, reward=even, problems=3, rollouts_per_prompt=2, greedy=False, temperature=0.5)
    asked = found.asked()
    assert (asked["task"], asked["split"], asked["problems"], asked["rollouts_per_prompt"]) == (
        "arithmetic",
        "test",
        3,
        2,
    )
    assert (asked["temperature"], asked["max_new_tokens"], asked["greedy"], asked["reward"]) == (0.5, 8, False, "even")
    assert [len(rollouts) for rollouts in found.sampled.values()] == [2, 2, 2]
    assert found.metrics["eval/reward_mean"] == pytest.approx(np.mean([row["reward"] for row in found.rows]))
    everything = winnow.evaluate(str(result.model), reward=even, rollouts_per_prompt=1, greedy=False)
    assert (everything.asked()["problems"], everything.config.evaluate.problems) == (16, 16)


def test_a_checkpoint_is_evaluated_on_the_problems_of_its_run_or_not_at_all(small, tmp_path, monkeypatch):
    """A path starts from where the user stands, and another file may be there."""
    problems = tmp_path / "problems.jsonl"
    rows = [json.dumps({"question": f"What is {i} + 2?", "answer": f"{i + 2}"}) + "\n" for i in range(64)]
    problems.write_text("".join(rows))
    monkeypatch.chdir(tmp_path)
    config = {**small(steps=1, evaluate={"problems": 2}), "task": {"use": "jsonl", "path": "problems.jsonl"}}
    made = winnow.train(**config, **QUIET).model
    asked = {"problems": 2, "rollouts_per_prompt": 1, "reward": even}
    assert winnow.evaluate(made, **asked).asked()["task_options"] == {"path": "problems.jsonl"}
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    with pytest.raises(DataError, match=r"task\.path: from here, .*'problems\.jsonl' is not what the run of .* read"):
        winnow.evaluate(made, **asked)
    Path("problems.jsonl").write_text("".join(rows[:32]))
    with pytest.raises(DataError, match=r"task\.path: from here"):
        winnow.evaluate(made, **asked)
    winnow.evaluate(made, task={"use": "jsonl", "path": str(problems)}, **asked)


def test_an_evaluation_says_that_the_reward_s_form_is_asked_for_nowhere():
    found = winnow.evaluate("bundled", problems=1, rollouts_per_prompt=1, reward="boxed")
    (warning,) = found.warnings
    assert warning.startswith("reward = 'boxed' reads an answer by")


def test_a_file_that_is_imported_for_its_functions_starts_no_run(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import winnow\n\n\ndef one(prompt, rollout):\n    return 1.0\n\n\nwinnow.train(reward=one, steps=1)\n"
    )
    with pytest.raises(ConfigError, match=r"mine\.py is imported for its functions.*if __name__ == .__main__.:"):
        winnow.train(reward=f"{tmp_path}/mine.py:one", steps=1, output=str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_an_open_run_is_its_logs_as_arrays(tmp_path):
    run = winnow.open_run(with_manifest(write_run(tmp_path / "toy")))
    metrics = run.metrics()
    assert metrics["step"].tolist() == list(range(10))  # the evaluation after the last step is none
    assert metrics["reward/mean"].dtype == np.float64
    assert metrics["reward/mean"].shape == (10,)
    assert metrics["reward/mean"].mean() == pytest.approx(0.55)
    assert metrics["eval/accuracy_sampled"][[0, 5]].tolist() == [0.05, 0.61]  # those before a step are in its row
    rows = run.rollouts(step=3)
    count = len(rows["text"])
    assert set(rows["step"].tolist()) == {3}
    assert (rows["index"].dtype, rows["keep"].dtype, rows["reward"].dtype) == (np.int64, np.bool_, np.float64)
    assert rows["tokens"].shape == (count,)  # ragged or not, one list per rollout
    assert len(run.rollouts()["step"]) > count
    assert run.config == {"seed": 0}
    assert run.manifest == {"winnow_run": 1, "config": {"seed": 0}}


def test_what_a_rollout_is_made_of_is_decoded(tmp_path):
    run = winnow.open_run(with_manifest(write_run(tmp_path / "toy", steps=1)))
    rows = run.rollouts(step=0)
    assert rows["answer"].tolist() == ["132"] * 7
    assert rows["meta"].tolist() == [{}] * 7
    assert rows["parts"][0] == {}
    assert rows["tokens"][0].tolist() == [0, 1, 2]
    assert rows["correct"].tolist() == [True, True, False, False, False, None, False]
    assert np.isnan(rows["reward"][5])  # its verifier failed
    assert rows["weight"].dtype == np.float64


def test_columns_are_chosen_and_others_are_not_read(tmp_path):
    run = winnow.open_run(with_manifest(write_run(tmp_path / "toy")))
    assert list(run.rollouts(step=3, columns=["reward", "step"])) == ["step", "reward"]
    with pytest.raises(DataError, match="rewards"):
        run.rollouts(columns=["rewards"])


def test_evaluations_are_rows_of_their_own(tmp_path):
    run = winnow.open_run(with_manifest(write_run(tmp_path / "toy")))
    found = run.evaluations()
    assert found["step"].tolist() == [0, 5, 10]
    assert found["eval/accuracy_sampled"].tolist() == [0.05, 0.61, 0.58]
    assert all(name == "step" or name.startswith("eval/") for name in found)


def test_a_run_says_what_it_is(tmp_path):
    folder = with_manifest(write_run(tmp_path / "toy"))
    (folder / "manifest.json").write_text(
        '{"winnow_run": 1, "config": {"steps": 40, "model": {"path": "bundled\\u001b[2J"}}}'
    )
    assert repr(winnow.open_run(folder)) == f"OpenRun({str(folder)!r}): 10 of 40 steps, 3 checkpoints, bundled\\x1b[2J"
    (folder / "metrics.jsonl").write_text("no row\n")
    assert repr(winnow.open_run(folder)) == f"OpenRun({str(folder)!r})"
    (folder / "metrics.jsonl").unlink()
    with pytest.raises(DataError, match=r"cannot read .*metrics.jsonl"):  # it has checkpoints, so there was one
        winnow.open_run(folder).metrics()


def test_a_run_that_has_begun_and_taken_no_step_has_empty_columns(tmp_path):
    (tmp_path / "manifest.json").write_text('{"winnow_run": 1, "config": {"steps": 40}}')
    run = winnow.open_run(tmp_path)
    assert repr(run) == f"OpenRun({str(tmp_path)!r}): 0 of 40 steps, 0 checkpoints"
    assert run.alarms() == []
    for _ in range(2):
        for found in (run.metrics(), run.evaluations()):
            assert {name: column.tolist() for name, column in found.items()} == {"step": []}
            assert found["step"].dtype == np.int64
        (tmp_path / "metrics.jsonl").touch()
    assert run.frame("metrics", columns=["step", "reward/mean"]).shape == (0, 2)


def test_what_a_frame_cannot_be_asked_for_is_said(tmp_path):
    run = winnow.open_run(with_manifest(write_run(tmp_path / "toy")))
    with pytest.raises(ConfigError, match=r"`step` chooses among rollouts; of metrics .* frame\[frame.step == 0\]"):
        run.frame("metrics", step=0)
    for ask in (run.frame, lambda columns: run.rollouts(columns=columns)):
        with pytest.raises(ConfigError, match=r"columns is a list of names: columns=\['reward'\]"):
            ask(columns="reward")


def test_what_belongs_to_a_run_names_it(tmp_path):
    folder = with_manifest(write_run(tmp_path / "toy"))
    for part in ("metrics.jsonl", "checkpoints", "checkpoints/step-000010"):
        with pytest.raises(RunFolderError, match=rf"belongs to the run {re.escape(str(folder.resolve()))}: open that"):
            winnow.open_run(folder / part)


def test_a_sweep_names_its_runs(tmp_path):
    said = {"winnow_sweep": 1, "labels": {"a": {}}, "seeds": [1, 2], "baseline": None, "inputs": {}}
    (tmp_path / "sweep.json").write_text(json.dumps(said))
    with pytest.raises(RunFolderError, match="is a sweep: none of its runs has begun"):
        winnow.open_run(tmp_path)
    run = next(run.path for run in read_sweep(tmp_path))
    run.mkdir(parents=True)
    with_manifest(run)
    with pytest.raises(RunFolderError, match=rf"is a sweep: open one of its 1 runs, such as {re.escape(str(run))};"):
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
    assert winnow.open_run(str(with_manifest(tmp_path))).checkpoints.keys() == {2, 9, 10}  # not a step yet


def test_a_frame_needs_pandas(tmp_path, monkeypatch):
    run = winnow.open_run(with_manifest(write_run(tmp_path / "toy")))
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match=r"pip install .winnow-rl\[pandas\]."):
        run.frame()


def test_a_frame_has_the_arrays_as_columns(tmp_path):
    pandas = pytest.importorskip("pandas")
    run = winnow.open_run(with_manifest(write_run(tmp_path / "toy")))
    assert isinstance(run.frame(), pandas.DataFrame)
    assert list(run.frame("rollouts", step=3)["text"]) == list(run.rollouts(3)["text"])
    frame = run.frame("rollouts", step=3, columns=["reward", "correct", "index"])
    kinds = {"step": "int64", "index": "int64", "reward": "float64", "correct": "boolean"}
    assert frame.dtypes.astype(str).to_dict() == kinds
    assert frame["correct"].mean() == pytest.approx(2 / 6)  # the one whose verifier failed is left out
    assert frame["reward"].mean() == pytest.approx(2 / 6)
    assert run.frame("evaluations", columns=["eval/accuracy_greedy"])["eval/accuracy_greedy"].tolist() == [
        0.04,
        0.7,
        0.66,
    ]
    assert run.frame().set_index("step").loc[4, "reward/mean"] == 0.5
    assert run.frame().dtypes["step"] == "int64"
    with pytest.raises(ConfigError, match="the run's metrics have no 'reward/maen'; did you mean 'reward/mean'"):
        run.frame(columns=["reward/maen"])
    with pytest.raises(ConfigError, match="there is no frame of 'metric'"):
        run.frame("metric")


def test_a_folder_that_is_no_run_is_not_opened(tmp_path):
    for folder in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(RunFolderError, match=r"cannot read .*manifest\.json"):
            winnow.open_run(folder)


def test_the_door_is_light_and_opening_a_run_stays_so(tmp_path):
    with_manifest(write_run(tmp_path / "toy"))
    code = """
import sys, winnow
assert not {"torch", "transformers", "typer", "rich", "winnow.training.fit"} & set(sys.modules)
run = winnow.open_run(sys.argv[1])
run.metrics(), run.rollouts(), run.checkpoints, run.config
print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "toy")], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("False\n", 0), done.stderr


def test_the_version_is_said_once_and_everywhere():
    assert CliRunner().invoke(app, ["--version"]).output == f"winnow {winnow.__version__}\n"
    assert winnow.__version__.split(".")[0].isdigit()
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    assert "version" in project["project"]["dynamic"]
    assert project["tool"]["hatch"]["version"]["path"] == "src/winnow/version.py"


def test_an_unknown_name_is_an_attribute_error():
    assert winnow.OpenRun is OpenRun
    with pytest.raises(AttributeError, match="no attribute 'evalute'"):
        winnow.evalute  # noqa: B018
