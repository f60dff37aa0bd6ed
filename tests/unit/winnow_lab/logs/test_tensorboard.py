"""Logs without rollouts: torch 2.13.0 wrote tests/fixtures/openrlhf_run and skyrl_run, by the calls of OpenRLHF and of
SkyRL (tests/with_tensorboard/make_log.py).
"""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest
from typer.testing import CliRunner

from refusals import check_printed_error, refused
from winnow.commands import app
from winnow.errors import DataError
from winnow.metrics import is_step
from winnow.state.logbook import log_notes, read_metrics
from winnow.state.saved_runs import describe
from winnow_lab.logs.tensorboard import _of_event

FIXTURES = Path(__file__).parents[3] / "fixtures"
PROGRAMS = {"openrlhf_run": "OpenRLHF", "skyrl_run": "SkyRL"}
EVENTS = "events.out.tfevents.0"


@pytest.fixture(params=PROGRAMS)
def run(request, tmp_path):
    return Path(shutil.copytree(FIXTURES / request.param, tmp_path / request.param))


def test_steps_have_the_trainers_numbers(run):
    rows = [row for row in read_metrics(run) if is_step(row)]
    assert describe(run).data["program"] == PROGRAMS[run.name]
    assert [row["step"] for row in rows] == [0, 1, 2]
    for step, row in enumerate(rows, start=1):
        assert row["reward/mean"] == 0.25 * step
        assert (row["budget/rollouts"], row["seconds/step"], row["seconds/generate"]) == (32, 10, 6)
        assert row["budget/tokens_generated"] == row["budget/tokens_trained"] == 32 * (10 + step)
        assert row["policy/loss"] == -0.5


def test_evaluations_are_by_the_number_of_updates():
    first, *_, last = read_metrics(FIXTURES / "openrlhf_run")
    assert "eval/reward_mean" not in first
    assert last == {"step": 3, "eval/reward_mean": 0.5}
    first, *_, last = read_metrics(FIXTURES / "skyrl_run")
    assert (first["eval/gsm8k/reward_mean"], first["eval/math/reward_mean"]) == (0.25, 0.5)
    assert last == {
        "step": 3,
        "eval/gsm8k/reward_mean": 0.75,
        "eval/math/reward_mean": 0.5,
    }  # dumped, not in the events


def test_commands_that_read_metrics_read_it(run):
    for command in (["report"], ["plot", "--summary-only"], ["compare", "--measure", "reward/mean"]):
        result = CliRunner().invoke(app, [*command, str(run)])
        assert result.exit_code == 0, result.output
    for command in (["show"], ["replay"]):
        result = CliRunner().invoke(app, [*command, str(run)])
        check_printed_error(result, PROGRAMS[run.name], code="data.missing")
    assert any("metrics only" in note for note in log_notes(run))


def test_a_record_that_is_being_written_is_ignored(run):
    whole = read_metrics(run)
    data = (run / EVENTS).read_bytes()
    for cut in (1, 3, 11):
        (run / EVENTS).write_bytes(data + data[:cut])
        assert read_metrics(run) == whole
    (run / EVENTS).write_bytes(data[:-2])
    assert len(read_metrics(run)) >= 3


def records(data):
    at = 0
    while at < len(data):
        size = 16 + struct.unpack_from("<Q", data, at)[0]
        yield data[at : at + size]
        at += size


def test_what_a_launch_logged_after_the_step_of_a_resume_is_not_of_the_run(run):
    """The second launch began at step 2 of the trainer, and was killed after it."""
    every = records((run / EVENTS).read_bytes())
    own = [record for record in every if {step for step, *_ in _of_event(record[12:-4])} == {2}]
    (run / EVENTS.replace(".0", ".1")).write_bytes(b"".join(own))
    assert [row["step"] for row in read_metrics(run) if is_step(row)] == [0, 1]


def test_a_launch_that_was_killed_before_its_first_step_is_passed_over(run):
    whole = read_metrics(run)
    (run / EVENTS).rename(run / "events.out.tfevents.1")
    (run / EVENTS).write_bytes(b"")
    assert read_metrics(run) == whole


def test_a_damaged_record_is_refused_by_name(run):
    data = (run / EVENTS).read_bytes()
    (run / EVENTS).write_bytes(data + (4).to_bytes(8, "little") + bytes(4) + b"\x2f\xff\xff\xff" + bytes(4))
    with refused(DataError, EVENTS, code="data.malformed"):
        read_metrics(run)


def test_event_files_of_another_program_are_no_run(run):
    """Without the tag of the number of rollouts: a file of the first program's events, cut before it."""
    (run / EVENTS).write_bytes((run / EVENTS).read_bytes()[:64])
    shutil.rmtree(run / "dumped_evals", ignore_errors=True)
    check_printed_error(CliRunner().invoke(app, ["show", str(run)]), "TensorBoard", "OpenRLHF", code="data.missing")


def test_a_long_text_before_the_numbers_does_not_hide_them(run):
    whole = read_metrics(run)
    text = b"\x1a\xc0\x84\x3d" + bytes(1_000_000)  # a field of 1,000,000 bytes that is no scalar
    record = struct.pack("<Q", len(text)) + bytes(4) + text + bytes(4)
    (run / EVENTS).write_bytes(record + (run / EVENTS).read_bytes())
    assert read_metrics(run) == whole
