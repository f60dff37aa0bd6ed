"""A checkpoint relies on the rows before it: they are synced before it, and a resume checks that none is missing."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

import winnow
from refusals import refused
from synthetic_run import FAILED, RIGHT, WRONG, group
from winnow.errors import DataError, RunFolderError
from winnow.state import checkpoint
from winnow.state import log as log_lines
from winnow.state import log as log_marks
from winnow.state.disk import opened
from winnow.state.log import TAIL_BYTES, lost, synced_mark
from winnow.state.logbook import Logbook, read_metrics
from winnow.state.rollout_files import INDEX, files_by_step

SAVED = Path("run/checkpoints/step-000003")


def three_steps(folder, *, first=0):
    """metrics.jsonl of three steps, and where it ended."""
    log = Logbook(folder, seed=0)
    for step in range(first, first + 3):
        log.write(step, {"reward/mean": step / 3}, [], [])
    return log.sync(first + 3)


def test_both_logs_are_on_the_disk_before_the_checkpoint_has_its_name(smallest, tmp_path, monkeypatch):
    """The syncs and renames, in order, of a run of one step."""
    events = []
    fsync, replace = os.fsync, os.replace

    def synced(descriptor):
        events.append(("sync", Path(os.readlink(f"/proc/self/fd/{descriptor}")).name))
        fsync(descriptor)

    def renamed(source, target, **more):
        events.append(("rename", Path(target).name))
        replace(source, target, **more)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    result = winnow.train(**smallest(steps=1))

    published = events.index(("rename", "step-000001"))
    for name in ("step-000000.parquet", ".index.jsonl", "metrics.jsonl"):
        assert ("sync", name) in events[:published]
    assert ("sync", "rollouts") in events[:published]
    assert ("sync", "run") in events[:published]  # their names, and the name of the folder of checkpoints
    assert ("sync", "checkpoints") in events[published:]

    found = checkpoint.newest(result.folder)
    rows = (result.folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    assert found.logs["metrics.jsonl"].bytes == sum(map(len, rows[:-1]))  # the last evaluation comes after
    assert found.logs[INDEX].bytes == (result.folder / INDEX).stat().st_size


def test_a_mark_is_a_length_and_a_digest_of_the_bytes_before_it(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"a" * TAIL_BYTES + b"b")
    mark = synced_mark(path)
    assert mark.bytes == TAIL_BYTES + 1
    assert lost(path, mark) is None
    path.write_bytes(path.read_bytes() + b"later")
    assert lost(path, mark) is None
    path.write_bytes(b"a" * TAIL_BYTES + b"c")
    assert lost(path, mark)
    path.write_bytes(b"a" * TAIL_BYTES)
    assert bytes_in(lost(path, mark)) == [65536, 65537]
    path.unlink()
    assert bytes_in(lost(path, mark)) == [65537]


def bytes_in(text):
    return [int(number) for number in re.findall(r"\d+", text)]


DAMAGES = {  # a damage, and names in the refusal
    "no file": (lambda path: path.unlink(), []),
    "empty": (lambda path: path.write_bytes(b""), [0]),
    "a row short": (
        lambda path: path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2])),
        ["step 1"],
    ),
    "a row cut": (lambda path: os.truncate(path, path.stat().st_size - 5), ["step 1"]),
    "a row cut inside": (
        lambda path: path.write_bytes(path.read_bytes().replace(b'"reward/mean":0.333', b"")),
        ["step 2"],
    ),
    "a hole": (lambda path: path.write_bytes(path.read_bytes()[:-9] + bytes(9)), []),
}


def lost_rows(*named):
    """The refusal of a checkpoint whose rows are missing; it names the checkpoint."""
    return refused(RunFolderError, SAVED, *named, code="run_folder.damaged")


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_log_without_the_rows_of_a_checkpoint_is_refused_unchanged(tmp_path, damage):
    do, named = DAMAGES[damage]
    marks = three_steps(tmp_path)
    path = tmp_path / "metrics.jsonl"
    do(path)
    before = path.read_bytes() if path.exists() else None
    with lost_rows(path, *named):
        Logbook(tmp_path, seed=0, marks=marks).check(SAVED)
    assert (path.read_bytes() if path.exists() else None) == before


def test_the_log_of_another_run_is_refused(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "this").mkdir()
    marks = three_steps(tmp_path / "this")
    three_steps(tmp_path / "other", first=3)
    (tmp_path / "other" / "metrics.jsonl").replace(tmp_path / "this" / "metrics.jsonl")
    with lost_rows(tmp_path / "this" / "metrics.jsonl"):
        Logbook(tmp_path / "this", seed=0, marks=marks).check(SAVED)


def test_a_longer_log_is_accepted_and_cut(tmp_path):
    marks = three_steps(tmp_path)
    Logbook(tmp_path, seed=0).write_between(3, {"eval/accuracy_greedy": 0.5})
    log = Logbook(tmp_path, seed=0, marks=marks)
    log.check(SAVED)
    log.truncate_from(4)
    assert [row["step"] for row in read_metrics(tmp_path)] == [0, 1, 2, 3]
    log.truncate_from(3)
    assert [row["step"] for row in read_metrics(tmp_path)] == [0, 1, 2]


@pytest.mark.parametrize("torn", [bytes(40), bytes(20) + b"\n" + bytes(20), b'{"step":3,"rew\n{"step":3}\n'])
def test_torn_bytes_after_the_mark_are_cut_off(tmp_path, torn):
    marks = three_steps(tmp_path)
    path = tmp_path / "metrics.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    log = Logbook(tmp_path, seed=0, marks=marks)
    log.check(SAVED)
    log.truncate_from(3)
    assert path.read_bytes() == whole


def test_a_resume_compares_only_the_last_bytes_before_the_mark(tmp_path):
    """A reader of the log finds older damage."""
    log = Logbook(tmp_path, seed=0)
    row = {"reward/mean": 1 / 3}
    for step in range(2 * TAIL_BYTES // 40):
        log.write(step, row, [], [])
    marks = log.sync(2 * TAIL_BYTES // 40)
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"garbled" + path.read_bytes()[7:])
    log = Logbook(tmp_path, seed=0, marks=marks)
    log.check(SAVED)
    log.truncate_from(2 * TAIL_BYTES // 40)
    with refused(DataError, f"{path}, line 1", code="data.malformed"):
        read_metrics(tmp_path)
    with refused(DataError, f"{path}, line 1", code="data.malformed"):
        Logbook(tmp_path, seed=0).truncate_from(3000)


def interrupted(config, at):
    """A run that stops after step `at`, before its last one."""

    class Enough(Exception):
        pass

    def stop(event):
        if getattr(event, "step", None) == at and hasattr(event, "metrics") and "budget/updates" in event.metrics:
            raise Enough

    with pytest.raises(Enough):
        winnow.train(**config, watch=stop)


def test_a_resume_without_its_rows_is_refused_with_three_remedies(smallest, tmp_path):
    """Restore the rows, delete the checkpoint, or remove its marks."""
    config = smallest(steps=4, checkpoint={"every": 1}, evaluate={"problems": 1, "rollouts_per_prompt": 1})
    interrupted(config, 2)
    logged = tmp_path / "run" / "rollouts"
    (logged / "step-000001.parquet").rename(tmp_path / "step-000001.parquet")

    with refused(RunFolderError, logged, "step-000001.parquet", '"logs"', code="run_folder.damaged"):
        winnow.train(**config, resume=True)

    *_, newest = sorted((tmp_path / "run" / "checkpoints").iterdir())
    done = int(newest.name.removeprefix("step-"))
    newest.rename(tmp_path / "elsewhere")
    if done > 2:
        (tmp_path / "step-000001.parquet").rename(logged / "step-000001.parquet")
    winnow.train(**{**config, "steps": done}, resume=True)  # from the older checkpoint, whose rows exist
    assert list(files_by_step(logged)) == list(range(done))

    for path in files_by_step(logged).values():
        path.unlink()
    edited = json.loads((newest / "manifest.json").read_text())
    assert set(edited["logs"]) == {"metrics.jsonl", INDEX}
    del edited["logs"]
    (newest / "manifest.json").write_text(json.dumps(edited))
    assert winnow.train(**config, resume=True).steps == 4
    assert list(files_by_step(logged)) == list(range(done, 4))
    assert winnow.train(**{**config, "steps": 5}, resume=True).steps == 5  # the index lists the files that exist


def logged_steps(folder, *, steps=3):
    """The rollouts of some steps, and where the logs ended."""
    log = Logbook(folder, seed=0)
    for step in range(steps):
        log.write(step, {"reward/mean": 0.5}, [group(f"p{step}", (RIGHT, WRONG, FAILED))], [])
    return log.sync(steps)


LOST = {
    "no file": lambda path: path.unlink(),
    "cut": lambda path: os.truncate(path, path.stat().st_size - 5),
    "an end of zeros": lambda path: path.write_bytes(path.read_bytes()[:-9] + bytes(9)),
    "another's": lambda path: path.write_bytes(path.read_bytes()[::-1]),
}


@pytest.mark.parametrize("damage", LOST)
def test_a_damaged_file_of_rollouts_is_refused_and_nothing_changes(tmp_path, damage):
    marks = logged_steps(tmp_path)
    LOST[damage](tmp_path / "rollouts" / "step-000002.parquet")
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with lost_rows(tmp_path / "rollouts", "step-000002.parquet"):
        Logbook(tmp_path, seed=0, marks=marks).check(SAVED)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_older_files_are_compared_by_size_and_only_the_newest_is_opened(tmp_path, monkeypatch):
    marks = logged_steps(tmp_path, steps=4)
    opens = []
    monkeypatch.setattr(log_marks, "opened", lambda path, flags: opens.append(path.name) or opened(path, flags))
    Logbook(tmp_path, seed=0, marks=marks).check(SAVED)
    assert [name for name in opens if name.endswith(".parquet")] == ["step-000003.parquet"]
    os.truncate(tmp_path / "rollouts" / "step-000000.parquet", 10)
    with lost_rows("step-000000.parquet", "10 bytes"):
        Logbook(tmp_path, seed=0, marks=marks).check(SAVED)


def test_files_of_steps_after_the_mark_are_accepted_and_removed(tmp_path):
    marks = logged_steps(tmp_path)
    later = Logbook(tmp_path, seed=0)
    later.write(3, {"reward/mean": 0.5}, [group("p3", (RIGHT,))], [])
    (tmp_path / "rollouts" / "step-000003.parquet").write_bytes(b"garbled")
    (tmp_path / "rollouts" / "notes.txt").write_text("mine")
    log = Logbook(tmp_path, seed=0, marks=marks)
    log.check(SAVED)
    log.truncate_from(3)
    assert list(files_by_step(tmp_path / "rollouts")) == [0, 1, 2]
    assert (tmp_path / "rollouts" / "notes.txt").read_text() == "mine"
    assert log.sync(3) == marks


def test_a_whole_checkpoint_with_changed_rows_is_saved_again(tmp_path):
    """It was skipped while the disk could not read it. The repeated rows have other seconds than those it relies on."""

    def write_model(path):
        (path / "weights").write_text("1")
        return {}

    def save(logs):
        checkpoint.save(
            tmp_path, 3, write_model=write_model,
            tensors={}, state={}, keep_last=1, logs=logs,
        )  # fmt: skip

    first = three_steps(tmp_path)
    save(first)
    before = (tmp_path / "checkpoints" / "step-000003").stat().st_ino
    save(first)
    assert (tmp_path / "checkpoints" / "step-000003").stat().st_ino == before

    log = Logbook(tmp_path, seed=0)
    log.truncate_from(2)
    log.write(2, {"reward/mean": 0.6666, "seconds/step": 1.5}, [], [])
    save(log.sync(3))
    assert checkpoint.newest(tmp_path).logs == log.sync(3)


def test_a_checkpoint_does_not_rely_on_a_row_right_before_a_signal(tmp_path, monkeypatch):
    """The signal is between the row's bytes and the code after the write. A resume cuts the row off."""
    rows = three_steps(tmp_path)
    log = Logbook(tmp_path, seed=0)
    write_all = log_lines.write_all

    def interrupted(descriptor, data):
        write_all(descriptor, data)
        raise KeyboardInterrupt

    monkeypatch.setattr(log_lines, "write_all", interrupted)
    with pytest.raises(KeyboardInterrupt):
        log.write_between(3, {"seconds/probe": 0.5})
    assert log.sync(3) == rows


def test_a_checkpoint_does_not_rely_on_rows_of_the_next_step(tmp_path):
    """They are of a probe, an evaluation, or an interrupted step. A resume cuts them off."""
    rows = three_steps(tmp_path)
    log = Logbook(tmp_path, seed=0)
    log.write_between(3, {"eval/accuracy_greedy": 0.5})
    log.write_between(3, {"seconds/probe": 0.5})
    assert log.sync(3) == rows
    log.write(3, {"reward/mean": 1.0}, [], [])
    assert log.sync(3) == rows
    assert log.sync(4)["metrics.jsonl"].bytes == (tmp_path / "metrics.jsonl").stat().st_size
    log.truncate_from(3)
    assert log.sync(3) == rows
