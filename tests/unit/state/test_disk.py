"""Links, pipes and folders in the place of a run's file are refused by name, and neither followed nor waited for."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import NamedTuple

import pytest

from refusals import refused
from synthetic_run import RIGHT, WRONG, group
from winnow.errors import DataError, RunFolderError
from winnow.state.disk import compact_json, write_json
from winnow.state.folder import RunFolder
from winnow.state.logbook import Logbook, read_metrics, read_rows


class Pair(NamedTuple):
    first: int
    second: float | None


def obstacle(path: Path, what: str) -> None:
    match what:
        case "a named pipe":
            os.mkfifo(path)
        case "a folder":
            path.mkdir()
        case "a symbolic link":
            path.with_name("target").write_text('{"step":0}\n')
            path.symlink_to("target")


@pytest.mark.parametrize("what", ["a named pipe", "a folder", "a symbolic link"])
@pytest.mark.parametrize("name", ["metrics.jsonl", "rollouts/.index.jsonl", "rollouts/step-000003.parquet"])
def test_a_log_that_is_not_a_file_is_refused_without_waiting(tmp_path, name, what):
    (tmp_path / "rollouts").mkdir()
    obstacle(tmp_path / name, what)
    log = Logbook(tmp_path, seed=0)
    acts = [lambda: log.truncate_from(0), *([] if "step" in name else [log.check])]
    for act in acts:
        with refused(RunFolderError, Path(name).name, code="run_folder.unwritable"):
            act()
    if name == "metrics.jsonl":
        with refused(RunFolderError, name, code="run_folder.unwritable"):
            log.write_between(0, {"reward/mean": 1.0})
    if what == "a symbolic link":
        assert (tmp_path / name).with_name("target").read_text() == '{"step":0}\n'


@pytest.mark.parametrize("what", ["a named pipe", "a file", "a symbolic link"])
def test_something_else_than_a_folder_of_rollouts_is_refused(tmp_path, what):
    if what == "a file":
        (tmp_path / "rollouts").write_text("mine")
    else:
        obstacle(tmp_path / "rollouts", what)
    log = Logbook(tmp_path, seed=0)
    acts = [log.check, lambda: log.truncate_from(0), lambda: log.write(0, {}, [group("a", (RIGHT, WRONG))], [])]
    for act in acts:
        with refused(RunFolderError, "rollouts", code="run_folder.unwritable"):
            act()


def test_reading_a_pipe_is_refused_and_a_link_may_be_read(tmp_path):
    os.mkfifo(tmp_path / "metrics.jsonl")
    with refused(DataError, "metrics.jsonl", code="data.unreadable"):
        read_metrics(tmp_path)
    Logbook(tmp_path / "run", seed=0).write(0, {}, [group("a", (RIGHT, WRONG))], [])
    (tmp_path / "rollouts").symlink_to("run/rollouts")
    assert len(list(read_rows(tmp_path))) == 2
    os.mkfifo(tmp_path / "run" / "rollouts" / "step-000001.parquet")
    with refused(DataError, "step-000001.parquet", code="data.unreadable"):
        list(read_rows(tmp_path))


@pytest.mark.parametrize("what", ["a named pipe", "a folder", "a symbolic link"])
def test_a_lock_that_is_not_a_file_is_refused(tmp_path, what):
    run = tmp_path / "run"
    run.mkdir()
    obstacle(run / ".lock", what)
    (run / "target").unlink(missing_ok=True)
    with refused(RunFolderError, ".lock", key="output", code="run_folder.unwritable"):
        RunFolder.open(run, resume=False)


def test_a_manifest_that_is_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "manifest.json")
    with refused(RunFolderError, "manifest.json", key="output"):
        RunFolder.open(tmp_path, resume=True)


def test_json_is_written_beside_a_link_not_through_it(tmp_path):
    for name in (".a.json.draft", "a.json"):
        (tmp_path / "precious").write_text("mine")
        (tmp_path / name).symlink_to("precious")
    write_json(tmp_path / "a.json", {"a": 1})
    assert (tmp_path / "precious").read_text() == "mine"
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": 1}
    assert not (tmp_path / "a.json").is_symlink()


@pytest.mark.parametrize(
    "data",
    [
        {"a": [1, 2.5, "b"], "rows": (1, 2)},
        {"none": None, "text": "null"},
        {"large": 2**100, "small": 1e-300, "third": 1 / 3},
        {"record": Pair(1, None)},
        {"record": Pair(1, 2.0)},
    ],
)
def test_compact_json_is_what_json_reads(data):
    assert json.loads(compact_json(data)) == json.loads(json.dumps(data))
    assert b"\n" not in compact_json(data)


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_compact_json_refuses_a_number_that_is_not_finite(number):
    with pytest.raises(ValueError, match="JSON"):
        compact_json({"text": "a", "number": [number]})
