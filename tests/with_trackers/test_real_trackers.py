"""Each library stores all metrics of a run that is interrupted, killed and resumed."""

from __future__ import annotations

import functools
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from read_back import (
    ONE_OF_EACH,
    Values,
    from_mlflow,
    from_tensorboard,
    from_trackio,
    from_wandb,
    logged,
    runs_of,
    tracker_id,
)

from refusals import refused
from winnow.errors import ConfigError
from winnow.registry import members
from winnow.testing import check_member
from winnow.trackers.interface import TrackedRun
from winnow.trackers.mlflow import mlflow

PROGRAM = Path(__file__).with_name("run_program.py")


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline, with every database below the test's own folder."""
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    from trackio import sqlite_storage, utils

    for module in (sqlite_storage, utils):  # these read the variable once, when they are imported
        monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path / "trackio")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.chdir(tmp_path)


def program(folder: Path, steps: int, *, resume: bool = False, kill_after: int = 0, track: list[str]) -> Any:
    tables = [{"use": name, "rollouts": 6, "wait_seconds": 300} for name in track]  # however busy the machine is
    text = json.dumps({"track": tables})
    command = [sys.executable, str(PROGRAM), str(folder), str(steps), str(int(resume)), str(kill_after), text]
    # W&B passes the address of its server to child processes, and a killed run would remain active in that server
    alone = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=alone, check=False)


def assert_same(read: Values, run: Path) -> None:
    wanted = logged(run)
    assert {step: set(row) for step, row in read.items()} == {step: set(row) for step, row in wanted.items()}
    for step, row in wanted.items():
        for name, value in row.items():
            stored = read[step][name]
            assert stored == value or (math.isnan(stored) and math.isnan(value)), (step, name, stored, value)


def reader(name: str, tmp_path: Path) -> Callable[[Path], Values]:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    readers: dict[str, Callable[[Path], Values]] = {
        "wandb": from_wandb,
        "tensorboard": from_tensorboard,
        "trackio": from_trackio,
        "mlflow": functools.partial(from_mlflow, uri=uri),
    }
    return readers[name]


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize("name", sorted(members("tracker")))
def test_a_tracker_keeps_its_contract_and_writes_nothing_to_the_terminal(name, capfd):
    check_member(members("tracker")[name])
    assert capfd.readouterr() == ("", "")


# Checkpoints are of 2, 4 and 6 steps: a kill after the fifth goes back to 4, one after the third to 2.
@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize("kill_after", [5, 3, -3], ids=["killed late", "killed between checkpoints", "interrupted"])
def test_a_resumed_run_is_one_run_with_the_metrics_of_its_log(kill_after, tmp_path):
    run, names = tmp_path / "run", sorted(members("tracker"))
    first = program(run, 6, kill_after=kill_after, track=names)
    assert first.returncode == (-9 if kill_after > 0 else 75), first.stderr
    known_as = {name: tracker_id(run, name) for name in names}
    second = program(run, 6, resume=True, track=names)
    assert second.returncode == 0, second.stderr
    assert {name: tracker_id(run, name) for name in names} == known_as
    assert runs_of(tmp_path) == ONE_OF_EACH
    assert len(logged(run)) == 7  # with the evaluation after the last
    for name in names:
        assert_same(reader(name, tmp_path)(run), run)


@pytest.mark.usefixtures("environment")
def test_a_tracker_that_is_added_at_a_resume_gets_the_whole_curve(tmp_path):
    run, names = tmp_path / "run", sorted(members("tracker"))
    assert program(run, 2, track=[]).returncode == 0
    resumed = program(run, 4, resume=True, track=names)
    assert resumed.returncode == 0, resumed.stderr
    for name in names:
        assert_same(reader(name, tmp_path)(run), run)


@pytest.mark.usefixtures("environment")
def test_trackers_receive_metrics_configuration_rollouts_and_plots(tmp_path):
    from mlflow import MlflowClient
    from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
    from trackio.sqlite_storage import SQLiteStorage

    run = tmp_path / "run"
    names = sorted(members("tracker"))
    ended = program(run, 2, track=names)
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr
    for name in names:
        assert_same(reader(name, tmp_path)(run), run)
    client = MlflowClient(tracking_uri=os.environ["MLFLOW_TRACKING_URI"])
    kept = client.get_run(tracker_id(run, "mlflow"))
    assert kept.info.status == "FINISHED"
    assert kept.data.params["rollout.max_new_tokens"] == "12"
    assert {"config.json", "rollouts", "plot"} <= {entry.path for entry in client.list_artifacts(kept.info.run_id)}
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    assert "plot" in events.Tags()["tensors"]
    assert len(events.Tensors("rollouts/text_summary")) == 2
    assert len(SQLiteStorage.get_traces("winnow", "run", run_id=tracker_id(run, "trackio"))) == 12
    tables = list((run / "trackers" / "wandb").glob("offline-run-*/files/media/table/rollouts_*.table.json"))
    assert [len(json.loads(table.read_text())["data"]) for table in tables] == [6, 6]
    assert list((run / "trackers" / "wandb").glob("offline-run-*/files/media/images/plot_*.png"))


def test_mlflow_accepts_every_name_and_telemetry_is_off(tmp_path, monkeypatch):
    """MLflow's telemetry is on by default, and off only with MLFLOW_DISABLE_TELEMETRY, or in a test."""
    from mlflow import MlflowClient

    monkeypatch.chdir(tmp_path)  # where it puts artifacts
    monkeypatch.delenv("MLFLOW_DISABLE_TELEMETRY", raising=False)
    uri = f"sqlite:///{tmp_path}/ml.db"
    tracker = mlflow(TrackedRun("run", tmp_path, {"steps": 1}, 0), tracking_uri=uri)
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    names = ["reward/part/a//b", "..", "x" * 300, "a:b", "a_b", "reward/mean"]
    tracker.log(3, dict.fromkeys(names, 0.5))
    data = MlflowClient(tracking_uri=uri).get_run(tracker.id).data
    assert len(data.metrics) == len(names)
    with refused(ConfigError, "f" * 32, key="track", code="config.tracker"):
        mlflow(TrackedRun("run", tmp_path, {}, 1, id="f" * 32), tracking_uri=uri)


def test_wandb_without_a_key_does_not_prompt(tmp_path, monkeypatch):
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    ended = program(tmp_path / "run", 1, track=["wandb"])
    assert ended.returncode == 0, ended.stderr  # the run does not depend on it
    assert ended.stdout == ""


def test_an_experiment_that_another_run_creates_meanwhile_is_used(tmp_path, monkeypatch):
    from mlflow import MlflowClient

    monkeypatch.chdir(tmp_path)
    uri, asked, find = f"sqlite:///{tmp_path}/ml.db", [], MlflowClient.get_experiment_by_name
    known = MlflowClient(tracking_uri=uri).create_experiment("winnow")

    def late(client, name):
        asked.append(name)
        return find(client, name) if len(asked) > 1 else None

    monkeypatch.setattr(MlflowClient, "get_experiment_by_name", late)
    made = mlflow(TrackedRun("run", tmp_path, {"steps": 1}, 0), tracking_uri=uri)
    assert MlflowClient(tracking_uri=uri).get_run(made.id).info.experiment_id == known
