"""The end of a process, and of a run, while a tracker's thread is running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from winnow.config_file import validate
from winnow.core.events import Ended, Started
from winnow.trackers.interface import Tracker
from winnow.trackers.watch import track_run
from winnow.training.resolve import resolve_members

AT_WORK = """
import atexit, threading
from winnow.trackers.feed import exit_if_running
threading.Thread(target=threading.Event().wait, name={name!r}).start()
atexit.register(print, "interpreter ends", flush=True)
exit_if_running(3)
print("continues", flush=True)
"""
HANG = """
import torch
from winnow.trackers.interface import Tracker

class Hangs(Tracker):
    def log(self, step, metrics):
        matrix = torch.rand(1500, 1500)
        while True:
            matrix = matrix @ matrix * 1e-3

def hang(run):
    return Hangs()
"""


def test_a_process_exits_with_its_code_while_a_tracker_is_at_work():
    ended = subprocess.run(
        [sys.executable, "-c", AT_WORK.format(name="tracker wandb")], capture_output=True, timeout=120, text=True
    )
    assert (ended.returncode, ended.stdout) == (3, "")


def test_a_process_waits_for_other_threads():
    process = subprocess.Popen([sys.executable, "-c", AT_WORK.format(name="mine")], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "continues\n"
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_wait_for_a_tracker_and_nothing_else(number, tmp_path):
    """A signal while a finished run waits for a tracker: the block ends without an error, with a notice."""
    release, waits, notices = threading.Event(), threading.Event(), []

    class Hangs(Tracker):
        def close(self, status):
            waits.set()
            release.wait()

    def send():
        waits.wait()
        while not release.wait(0.1):
            os.kill(os.getpid(), number)

    track = {"use": lambda run: Hangs(), "rollouts": 0, "wait_seconds": 1e6}
    members = resolve_members(validate({"track": track}), base=Path())
    before = signal.signal(number, lambda *_: None)  # for signals before and after the wait
    sender = threading.Thread(target=send, daemon=True)
    try:
        sender.start()
        with track_run(members, notify=notices.append) as watch:
            watch(Started(tmp_path, 0, 1))
            watch(Ended(1, None, interrupted=False))
    finally:
        waits.set()
        release.set()
        sender.join()
        signal.signal(number, before)
    assert any("'_lambda_'" in notice.text for notice in notices)


@pytest.mark.slow  # 20 seconds for two processes that import torch; its two parts have tests above and in launch
def test_a_tracker_that_hangs_in_c_changes_no_ranks_exit_code(tmp_path):
    (tmp_path / "mine.py").write_text(HANG)
    (tmp_path / "c.toml").write_text("""
        track = [{use = "mine.py:hang", wait_seconds = 0.5}]
        steps = 2
        threads = 1
        rollout = {prompts_per_step = 4, rollouts_per_prompt = 4, max_new_tokens = 8}
        evaluate = {problems = 2, rollouts_per_prompt = 1}
    """)
    command = [sys.executable, "-m", "winnow", "train", "c.toml", "--output", "run", "--ranks", "2"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=540)
    assert (ended.returncode, ended.stdout.splitlines()[-1]) == (0, "model: run/checkpoints/step-000002")
    assert "terminate called" not in ended.stderr
