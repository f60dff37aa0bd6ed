"""The reported cause of a failed run of several ranks is the first failure, not its effect on the other ranks."""

from __future__ import annotations

import json
import signal
import socket

import pytest

from winnow.commands.command_line import RunFailed
from winnow.commands.train.rank_end import NOTE, RankEnd, first_cause, suffered
from winnow.errors import ConfigError, EngineError, RankError, RunFolderError

HOST = socket.gethostname()
GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:1"


def cause(seen, *errors, signals=()):
    """`errors`: (rank, what it raised)."""
    notes = [RankEnd.of(error, rank) for rank, error in errors]
    return first_cause(seen, notes, ranks=3, timeout_seconds=60, signals=signals)


def test_a_killed_rank_is_the_cause_of_the_other_ranks_errors():
    killed = cause((1, -9), (0, RuntimeError(GLOO)), (2, RankError("rank 0 failed")))

    assert killed.code == 1
    assert killed.text.startswith(f"rank 1 of 3 on {HOST} ")
    assert "SIGKILL" in killed.text


def test_an_error_is_reported_with_its_rank_though_another_ended_first():
    failed = cause((0, 1), (0, RankError("rank 2 failed (sampling): EngineError: no")), (2, EngineError("no\nlast")))

    # The lines after an error, which report what was saved, are printed before it: the cause is the last line.
    assert (failed.text, failed.code) == (f"last\nrank 2 of 3 on {HOST}: error (engine): no", 1)


def test_an_error_of_rank_0_or_of_all_is_printed_as_of_one_process():
    taken = RunFolderError("runs/a is in use", code="run_folder.locked")
    alone = cause((0, 2), (0, taken), (1, RankError("rank 0 failed")))
    alike = cause((2, 2), (2, ConfigError("no such task")), (0, ConfigError("no such task")))

    assert (alone.text, alone.code) == ("error (run_folder.locked): runs/a is in use", 2)
    assert (alike.text, alike.code) == ("error (config): no such task", 2)


def test_a_bug_has_its_traceback_and_a_last_line():
    try:
        raise MemoryError("12 GB")
    except MemoryError as error:
        bug = cause((1, 1), (1, error))

    assert bug.text.endswith(f"\nrank 1 of 3 on {HOST}: MemoryError: 12 GB")
    assert bug.code == 1
    assert "in test_a_bug_has_its_traceback" in bug.text


def test_a_rank_without_a_note_while_the_others_waited_is_the_cause():
    hanging = cause((2, 1), (0, RuntimeError(GLOO)), (2, RuntimeError(GLOO)))

    assert hanging.text.startswith(f"rank 1 of 3 on {HOST} ")
    assert "ranks.timeout_seconds = 60" in hanging.text


@pytest.mark.parametrize(("code", "number"), [(-signal.SIGTERM, signal.SIGTERM), (130, signal.SIGINT)])
def test_a_rank_that_the_user_s_signal_ends_is_not_a_failure(code, number):
    ended = cause((0, code), (1, RuntimeError(GLOO)), signals={number})

    assert ended.code == 128 + number
    assert number.name in ended.text
    assert "rank" not in ended.text


def test_without_notes_the_cause_has_the_exit_code_else_the_broken_link():
    silent = cause((1, 3)).text
    assert silent.startswith(f"rank 1 of 3 on {HOST} ")
    assert "exit code 3" in silent
    lost = [(rank, RuntimeError(GLOO)) for rank in range(3)]
    assert cause((1, 1), *lost).text == f"rank 1 of 3 on {HOST}: RuntimeError: {GLOO}"


def test_errors_that_only_another_rank_causes_are_recognised():
    of_rank = RunFailed("rank 1 failed")
    of_rank.__cause__ = RankError("rank 1 failed")

    assert suffered(RankError(""))
    assert suffered(of_rank)
    assert suffered(RuntimeError(GLOO))
    assert not suffered(RunFailed("the rewards cannot be trusted"))
    assert not suffered(RuntimeError("CUDA error"))
    assert not suffered(ValueError("/gloo/"))


def test_a_note_can_be_read_back_and_has_the_form_of_torchs_launchers(tmp_path, monkeypatch):
    monkeypatch.setenv(NOTE, str(tmp_path / "error.json"))
    error = RankError("rank 1 failed")
    error.add_note("saved in runs/a")
    end = RankEnd.of(error, 2)
    end.leave()

    assert RankEnd.read(tmp_path / "error.json") == end
    assert end.text == "error (rank): rank 1 failed\nsaved in runs/a"
    assert (end.code, end.begun, end.suffered) == (1, True, True)
    message = json.loads((tmp_path / "error.json").read_text())["message"]
    assert message["message"] == message["extraInfo"]["py_callstack"] == end.text
    assert int(message["extraInfo"]["timestamp"]) > 0
    (tmp_path / "error.json").write_text('{"message": "of another"}')
    assert RankEnd.read(tmp_path / "error.json") is None
