"""What a person is told of a run of several ranks that ended: the first cause, not what the others suffered."""

from __future__ import annotations

import json
import signal
import socket

import pytest

from winnow.commands.exit_codes import RunFailed
from winnow.commands.launch.first_cause import first_cause
from winnow.commands.launch.rank_end import NOTE, RankEnd, suffered
from winnow.errors import ConfigError, EngineError, RankError, RunFolderError

HOST = socket.gethostname()
GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:1"


def cause(seen, *errors, asked=()):
    """`errors`: (rank, what it raised)."""
    notes = [RankEnd.of(error, rank) for rank, error in errors]
    return first_cause(seen, notes, ranks=3, timeout_seconds=60, asked=asked)


def test_a_rank_that_was_killed_is_the_cause_of_what_the_others_say():
    found = cause((1, -9), (0, RuntimeError(GLOO)), (2, RankError("rank 0 failed")))

    assert found.code == 1
    assert found.text == (
        f"rank 1 of 3 on {HOST} was killed by SIGKILL, as the system does where memory runs out; "
        "resume the run to go on"
    )


def test_an_error_of_one_rank_is_told_with_its_rank_though_another_was_seen_first():
    found = cause((0, 1), (0, RankError("rank 2 failed (sampling): EngineError: no")), (2, EngineError("no\nlast")))

    # What was saved, which follows an error, is told before it: the cause is the last line.
    assert (found.text, found.code, found.trace) == (f"rank 2 of 3 on {HOST}: no", 1, "last")


def test_what_the_writer_or_all_raise_is_said_as_one_process_says_it():
    alone = cause((0, 2), (0, RunFolderError("runs/a is in use")), (1, RankError("rank 0 failed")))
    alike = cause((2, 2), (2, ConfigError("no such task")), (0, ConfigError("no such task")))

    assert (alone.text, alone.code) == ("runs/a is in use", 2)
    assert (alike.text, alike.code) == ("no such task", 2)


def test_a_bug_has_its_traceback_and_a_last_line():
    try:
        raise MemoryError("12 GB")
    except MemoryError as error:
        found = cause((1, 1), (1, error))

    assert found.text == f"rank 1 of 3 on {HOST}: MemoryError: 12 GB"
    assert found.code == 1
    assert "in test_a_bug_has_its_traceback" in found.trace


def test_a_rank_that_left_no_word_while_the_others_waited_hangs():
    found = cause((2, 1), (0, RuntimeError(GLOO)), (2, RuntimeError(GLOO)))

    assert found.text.startswith(f"rank 1 of 3 on {HOST} did not answer: it hangs or was stopped")
    assert "ranks.timeout_seconds = 60" in found.text


@pytest.mark.parametrize(("code", "number"), [(-signal.SIGTERM, signal.SIGTERM), (130, signal.SIGINT)])
def test_a_rank_that_a_signal_of_the_user_ends_is_no_failure_of_its_own(code, number):
    found = cause((0, code), (1, RuntimeError(GLOO)), asked={number})

    assert (found.text, found.code) == (
        f"ended at once by {number.name}: what was not saved before is lost",
        128 + number,
    )


def test_a_silent_end_has_its_code_and_all_that_suffered_say_what():
    assert cause((1, 3)).text == f"rank 1 of 3 on {HOST} ended with exit code 3 and said nothing"
    lost = [(rank, RuntimeError(GLOO)) for rank in range(3)]
    assert cause((1, 1), *lost).text == f"rank 1 of 3 on {HOST}: RuntimeError: {GLOO}"


def test_what_only_says_that_another_rank_failed():
    of_rank = RunFailed("rank 1 failed")
    of_rank.__cause__ = RankError("rank 1 failed")

    assert suffered(RankError(""))
    assert suffered(of_rank)
    assert suffered(RuntimeError(GLOO))
    assert not suffered(RunFailed("the rewards cannot be trusted"))
    assert not suffered(RuntimeError("CUDA error"))
    assert not suffered(ValueError("/gloo/"))


def test_a_note_is_read_back_and_is_one_for_torchs_launchers_too(tmp_path, monkeypatch):
    monkeypatch.setenv(NOTE, str(tmp_path / "error.json"))
    error = RankError("rank 1 failed")
    error.add_note("saved in runs/a")
    end = RankEnd.of(error, 2)
    end.leave()

    assert RankEnd.read(tmp_path / "error.json") == end
    assert (end.text, end.code, end.begun, end.suffered) == ("rank 1 failed\nsaved in runs/a", 1, True, True)
    message = json.loads((tmp_path / "error.json").read_text())["message"]
    assert message["message"] == message["extraInfo"]["py_callstack"] == end.text
    assert int(message["extraInfo"]["timestamp"]) > 0
    (tmp_path / "error.json").write_text('{"message": "of another"}')
    assert RankEnd.read(tmp_path / "error.json") is None
