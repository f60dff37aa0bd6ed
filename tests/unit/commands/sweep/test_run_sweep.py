"""The loop of a sweep, with processes of Python in the place of `winnow train`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from io import StringIO
from types import SimpleNamespace

import pytest
from rich.console import Console

from winnow.commands.sweep.run_process import Child, Launcher, OnThisMachine, ProcessEnd, train_command
from winnow.commands.sweep.run_progress import RunProgress, TimeLeft, last_lines
from winnow.commands.sweep.run_sweep import Sweep
from winnow.commands.sweep.sweep_display import SweepDisplay, standing, sweep_display
from winnow.errors import RunFolderError
from winnow.state.run_folder import Lock
from winnow.state.sweep_folder import Contents, SweepFolder, read_ledger, read_sweep
from winnow.training.signals import Stop

# As winnow train behaves: a manifest, a row a step, 75 where it was asked to end. The seed says what it does.
FAKE = """
import json, pathlib, signal, sys, time
run, seed = pathlib.Path(sys.argv[1]), int(sys.argv[2])
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
run.mkdir(exist_ok=True)
(run / "manifest.json").write_text("{}")
if seed == 2:
    sys.exit("something broke\\x1b[2J")
with (run / "metrics.jsonl").open("a") as log:
    for step in range(2):
        print(json.dumps({"step": step, "budget/rollouts": 1}), file=log, flush=True)
while seed == 3 and not (run / "go").exists():
    time.sleep(0.01)
"""


def fake_command(run):
    return ["-c", FAKE, str(run.path), str(run.seed)]


class Made:
    """A sweep in a folder of its own."""

    def __init__(self, path, seeds, launcher=None, command=fake_command, resume=False):
        self.path, self.said = path, StringIO()
        self.folder = SweepFolder.open(path, resume=resume)
        self.folder.describe(Contents({"a": {}}, tuple(seeds), None))
        (path / "a").mkdir(exist_ok=True)
        display = SweepDisplay(Console(file=self.said, width=200), None)
        runs = read_sweep(path)
        self.sweep = Sweep(self.folder, runs, {"a": 2}, launcher or OnThisMachine(1), display, command)

    def run(self, stop=None):
        try:
            self.sweep.run(stop or Stop(now=False))
        finally:
            self.folder.close()
        return self.sweep.ends

    @property
    def ledger(self):
        return [(line.seed, line.status, line.exit_code) for line in read_ledger(self.path)]


def test_a_run_that_fails_is_told_with_its_last_line_and_ends_no_other_and_a_resume_tries_it_again(tmp_path):
    made = Made(tmp_path / "s", [0, 2, 1])
    ends = made.run()

    assert ends == {"a/seed-0": "finished", "a/seed-2": "failed", "a/seed-1": "finished"}
    log = made.path / "a" / "seed-2.log"
    assert (
        f"failed     a/seed-2: exit code 1; {log} ends with\n           | something broke\\x1b[2J\n"
        in made.said.getvalue()
    )
    assert [run.finished for run in read_sweep(made.path)] == [True, False, True]
    again = Made(tmp_path / "s", [0, 2, 1], resume=True)
    assert again.run() == {"a/seed-2": "failed"}
    assert again.ledger == [
        *[(0, "began", None), (0, "finished", 0), (2, "began", None), (2, "failed", 1)],
        *[(1, "began", None), (1, "finished", 0), (2, "began", None), (2, "failed", 1)],
    ]


class Asked(Stop):
    """A signal that comes when a file is there."""

    def __init__(self, path):
        self._path = path

    @property
    def asked(self):
        return self._path.exists()


def test_a_signal_is_passed_on_and_what_was_stopped_goes_on_at_the_next_launch(tmp_path):
    made = Made(tmp_path / "s", [3, 0])
    log = made.path / "a" / "seed-3" / "metrics.jsonl"

    assert made.run(Asked(log)) == {"a/seed-3": "stopped"}
    assert not (made.path / "a" / "seed-0").exists()
    (made.path / "a" / "seed-3" / "go").touch()
    assert Made(tmp_path / "s", [3, 0], resume=True).run() == {"a/seed-3": "finished", "a/seed-0": "finished"}


class Recorded(Launcher):
    """Launches nothing: a run ends at the second look with what `ends` says; who was under way is written down."""

    def __init__(self, at_once, code=0):
        self.at_once, self.alone, self.begins, self.code = at_once, at_once == 1, "began", code
        self.under_way, self.most = 0, 0

    def start(self, run, arguments):
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        run.path.mkdir()
        (run.path / "manifest.json").touch()
        return _Ending(self)

    def __exit__(self, *_):
        """Nothing is held."""


class _Ending:
    def __init__(self, launcher):
        self.launcher, self.looks = launcher, 0

    def poll(self):
        self.looks += 1
        if self.looks < 2:
            return None
        self.launcher.under_way -= 1
        return ProcessEnd(self.launcher.code)

    def stop(self):
        """It ends anyway."""


@pytest.mark.parametrize(("at_once", "most"), [(1, 1), (2, 2), (None, 5)])
def test_as_many_runs_as_asked_are_side_by_side_and_seconds_count_only_of_one_at_a_time(tmp_path, at_once, most):
    launcher = Recorded(at_once)
    made = Made(tmp_path / "s", range(5), launcher)
    made.run()

    assert launcher.most == most
    assert all(run.finished and run.alone == (at_once == 1) for run in read_sweep(made.path))


def test_an_error_of_the_sweep_itself_leaves_nothing_running(tmp_path):
    made = Made(tmp_path / "s", [3])

    def fail(line):
        if line.startswith("0/1"):
            raise ZeroDivisionError

    made.sweep.display.stand = fail
    with pytest.raises(ZeroDivisionError):
        made.run()
    assert [status for _, status, _ in made.ledger] in (["began", "stopped"], ["began", "failed"])


def test_a_run_that_a_signal_ends_while_it_is_starting_is_stopped_and_not_failed(tmp_path):
    starting = "import pathlib, sys, time; pathlib.Path(sys.argv[1]).mkdir(); time.sleep(30)"  # with no handler yet
    made = Made(tmp_path / "s", [0, 1], command=lambda run: ["-c", starting, str(run.path)])

    assert made.run(Asked(made.path / "a" / "seed-0")) == {"a/seed-0": "stopped"}
    assert made.ledger == [(0, "began", None), (0, "stopped", -signal.SIGTERM)]
    assert "stopped    a/seed-0 while it was starting\n" in made.said.getvalue()


class Saving(Launcher):
    """The first run ends by itself; each other one only when it is asked, some looks later, with all its steps saved
    if it was asked once.
    """

    def __init__(self):
        self.at_once, self.alone, self.begins, self.begun = 3, False, "began", []

    def start(self, run, arguments):
        self.begun.append(_Saves(left=0 if not self.begun else 3))
        return self.begun[-1]

    def __exit__(self, *_):
        """Nothing is held."""


class _Saves:
    def __init__(self, left):
        self.left, self.asked = left, 0

    def poll(self):
        self.left -= bool(self.left and self.asked)
        return None if self.left else ProcessEnd(75 if self.asked else 0)

    def stop(self):
        self.asked += 1


def test_every_run_is_asked_once_and_awaited_where_the_ledger_cannot_be_written(tmp_path):
    made = Made(tmp_path / "s", range(3), launcher := Saving())
    note = made.folder.note

    def full(entry):
        if entry.status != "began":
            raise RunFolderError(f"no room for the end of {entry.seed}")
        note(entry)

    made.sweep.folder = SimpleNamespace(note=full)
    with pytest.raises(RunFolderError, match="no room for the end of 0") as raised:
        made.run()
    assert [(run.asked, run.left) for run in launcher.begun] == [(0, 0), (1, 0), (1, 0)]
    assert raised.value.__notes__ == ["no room for the end of 1", "no room for the end of 2"]


@pytest.mark.parametrize(("error", "asked"), [(KeyboardInterrupt, 2), (ZeroDivisionError, 1)])
def test_only_a_second_signal_asks_again_a_run_that_saves(tmp_path, error, asked):
    made = Made(tmp_path / "s", range(3), launcher := Saving())
    say = made.sweep.display.say
    stop = Stop(now=False)

    def asks(line):
        say(line)
        if line.startswith("began      a/seed-2"):
            stop.asked = True

    def fails(line):
        if stop.asked:
            raise error

    made.sweep.display.say, made.sweep.display.stand = asks, fails
    with pytest.raises(error):
        made.run(stop)
    assert [run.asked for run in launcher.begun[1:]] == [asked, asked]


def test_seconds_of_a_run_that_was_begun_by_hand_do_not_count(tmp_path):
    made = Made(tmp_path / "s", [0, 1])
    by_hand = made.path / "a" / "seed-0"
    by_hand.mkdir()
    (by_hand / "metrics.jsonl").write_text('{"step":0,"budget/rollouts":1}\n')
    made.run()

    assert [(run.finished, run.alone) for run in read_sweep(made.path)] == [(True, False), (True, True)]


def test_a_lock_that_is_no_file_is_named(tmp_path):
    made = Made(tmp_path / "s", [0])
    lock = made.path / "a" / "seed-0" / ".lock"
    lock.mkdir(parents=True)
    with pytest.raises(RunFolderError, match=f"cannot use {lock}: .lock is a folder"):
        made.run()


PARENT = """
import os, pathlib, signal, sys, time
from winnow.commands.sweep.run_process import Child
folder = pathlib.Path(sys.argv[1])
Child(["-c", sys.argv[2], str(folder)], folder / "log")
while not (folder / "began").exists():
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""
CHILD = """
import pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
signal.signal(signal.SIGTERM, lambda *_: ((folder / "saved").touch(), sys.exit(75)))
(folder / "began").touch()
time.sleep(30)
(folder / "never asked").touch()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel has no signal for a parent's end")
def test_a_run_saves_and_ends_when_the_sweep_is_killed(tmp_path):
    killed = subprocess.run([sys.executable, "-c", PARENT, str(tmp_path), CHILD], check=False)

    assert killed.returncode == -signal.SIGKILL
    while not (tmp_path / "saved").exists():
        assert not (tmp_path / "never asked").exists()
        time.sleep(0.01)


def test_ctrl_c_in_a_terminal_reaches_the_sweep_alone(tmp_path):
    child = Child(["-c", "import os; print(os.getsid(0) == os.getpid())"], tmp_path / "log")

    assert child.wait(60) == ProcessEnd(0)
    assert last_lines(tmp_path / "log") == ["True"]


def test_a_run_whose_sweep_has_ended_already_does_not_begin(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: 1)  # of a process that is not the child's parent
    child = Child(["-c", "print('began')"], tmp_path / "log")

    assert child.wait(60) == ProcessEnd(1)
    assert last_lines(tmp_path / "log") == ["the sweep ended before the run began"]


def test_a_run_that_still_saves_is_waited_for(tmp_path):
    made = Made(tmp_path / "s", [0])
    run = made.path / "a" / "seed-0"
    run.mkdir()
    lock = Lock.take(run / ".lock")
    say = made.sweep.display.say

    def release(line):
        say(line)
        if line.startswith("waiting"):
            lock.release()

    made.sweep.display.say = release
    assert made.run() == {"a/seed-0": "finished"}
    assert f"waiting    {run} is in use by process {os.getpid()}" in made.said.getvalue()


def test_a_run_is_made_from_its_label_s_settings_and_resumed_where_it_was_begun(tmp_path):
    made = Made(tmp_path / "s", [7])
    (run,) = read_sweep(made.path)
    made.folder.close()
    here = str(made.path / "a")
    new = ["-m", "winnow", "train", f"{here}/config.toml", "--set", "seed=7", "--output", f"{here}/seed-7"]

    assert train_command(run) == new
    run.path.mkdir()
    (run.path / "manifest.json").touch()
    assert train_command(run) == new  # no step is done
    (run.path / "metrics.jsonl").write_text('{"step":0,"budget/rollouts":8}\n')
    assert train_command(run) == [*new, "--resume"]


def test_progress_is_what_whole_rows_say_and_begins_anew_where_a_resume_cut_them(tmp_path):
    progress, log = RunProgress(tmp_path), tmp_path / "metrics.jsonl"
    assert progress.look() == 0
    rows = [json.dumps({"step": step, "budget/rollouts": 8}) + "\n" for step in range(3)]
    log.write_text(rows[0] + rows[1] + '{"step":2,"eval/seconds":1.0,"eval/accuracy_sampled":null}\n' + rows[2][:9])
    assert progress.look() == 2
    assert progress.evaluation["eval/seconds"] == 1.0
    log.write_text(rows[0])
    assert progress.look() == 1


def test_a_terminal_shows_where_the_sweep_stands_and_a_file_what_changed():
    screen, file = StringIO(), StringIO()
    for console in (Console(file=screen, force_terminal=True, width=60), Console(file=file, width=60)):
        with sweep_display(console) as display:
            display.say("began      [red]a\x1b[2J/seed-0")
            display.stand("0/6 runs")

    assert file.getvalue() == "began      [red]a\\x1b[2J/seed-0\n"
    assert "[red]a\\x1b[2J/seed-0" in screen.getvalue()
    assert "0/6 runs" in screen.getvalue()


def test_the_time_left_goes_by_what_was_done_since_the_sweep_was_resumed(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step":3,"budget/rollouts":8}\n')
    now = iter([100.0, 130.0])
    left = TimeLeft([RunProgress(tmp_path)], lambda: next(now))  # 4 steps were done before

    assert left.seconds(left=10, done=4) is None
    assert left.seconds(left=10, done=10) == 50.0  # 6 steps in 30 seconds
    assert standing(1, 6, ["a/seed-1 4/10"], 50.0) == "1/6 runs  a/seed-1 4/10  about 0:50 left"
