"""The loop of a sweep, with small Python processes in the place of `winnow train`."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from io import StringIO
from types import SimpleNamespace

import pytest
from rich.console import Console

from refusals import refused
from winnow.core.stop_signals import Stop
from winnow.errors import RunFolderError
from winnow.state.folder import Lock
from winnow_lab.sweep.display import RunProgress, SweepDisplay, last_lines, sweep_display
from winnow_lab.sweep.loop import Sweep
from winnow_lab.sweep.process import Child, Launcher, OnThisMachine, ProcessEnd, train_command
from winnow_lab.sweep_folder import Contents, SweepFolder, read_ledger, read_sweep

# Behaves like winnow train: a manifest, a row per step, exit code 75 on SIGTERM. The seed selects what it does.
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
    """A sweep in a new folder, whose printed lines are collected."""

    def __init__(self, path, seeds, launcher=None, command=fake_command, resume=False, clock=time.monotonic):
        self.path, self.printed = path, StringIO()
        self.folder = SweepFolder.open(path, resume=resume)
        self.folder.describe(Contents({"a": {}}, tuple(seeds), None, {}))
        (path / "a").mkdir(exist_ok=True)
        display = SweepDisplay(Console(file=self.printed, width=200), None)
        runs = read_sweep(path)
        self.sweep = Sweep(self.folder, runs, {"a": 2}, launcher or OnThisMachine(1), display, command, clock)

    def run(self, stop=None):
        try:
            self.sweep.run(stop or Stop(now=False))
        finally:
            self.folder.close()
        return self.sweep.ends

    @property
    def lines(self):
        return self.printed.getvalue().splitlines()

    @property
    def ledger(self):
        return [(line.seed, line.status, line.exit_code) for line in read_ledger(self.path)]


def test_a_failed_run_ends_no_other_and_a_resume_repeats_it(tmp_path):
    made = Made(tmp_path / "s", [0, 2, 1])
    ends = made.run()

    assert ends == {"a/seed-0": "finished", "a/seed-2": "failed", "a/seed-1": "finished"}
    (number,) = (i for i, line in enumerate(made.lines) if line.startswith("failed"))
    failed = made.lines[number]
    assert {"a/seed-2", "1", str(made.path / "a" / "seed-2.log")} <= set(re.split(r"[\s:;]+", failed))
    assert made.lines[number + 1].endswith("| something broke\\x1b[2J")  # the end of its log, escaped
    assert [run.finished for run in read_sweep(made.path)] == [True, False, True]
    again = Made(tmp_path / "s", [0, 2, 1], resume=True)
    assert again.run() == {"a/seed-2": "failed"}
    assert again.ledger == [
        *[(0, "began", None), (0, "finished", 0), (2, "began", None), (2, "failed", 1)],
        *[(1, "began", None), (1, "finished", 0), (2, "began", None), (2, "failed", 1)],
    ]


def ten_seconds_per_end(path):
    """A clock: every end of a run takes 10 s."""

    def clock():
        ended = [line for line in read_ledger(path) if line.status != "began"] if path.exists() else []
        return 10.0 * len(ended)

    return clock


def test_a_line_of_each_finished_run_has_the_rest_of_the_sweep(tmp_path):
    """After the first end, 4 of 6 steps are left, and 2 fail."""
    path = tmp_path / "s"
    made = Made(path, [0, 2, 1], clock=ten_seconds_per_end(path))
    made.run()
    ends = [line for line in made.lines if line.startswith("finished")]
    assert [re.findall(r"(\d+/\d+) runs(?:  about (\S+) left)?", line) for line in ends] == [
        [("1/3", "0:20")],
        [("3/3", "")],
    ]
    again = Made(path, [0, 2, 1], resume=True, clock=ten_seconds_per_end(path))
    again.run()
    assert not [line for line in again.lines if "left" in line]  # no run of this launch is finished


def test_the_steps_that_a_failed_run_did_not_take_speed_nothing_up(tmp_path):
    """The first of three runs fails without a step. After 20 s, 2 steps are taken and 2 are left: 20 s."""
    made = Made(tmp_path / "s", [2, 0, 1], clock=ten_seconds_per_end(tmp_path / "s"))
    made.run()
    ends = [line for line in made.lines if line.startswith("finished")]
    assert [re.findall(r"(\d+/\d+) runs(?:  about (\S+) left)?", line) for line in ends] == [
        [("2/3", "0:20")],
        [("3/3", "")],
    ]


def test_runs_that_end_by_their_hours_count_by_them(tmp_path):
    path = tmp_path / "s"
    made = Made(path, [0, 1, 4], clock=ten_seconds_per_end(path))
    made.sweep.steps, made.sweep.max_hours = {"a": 1000}, {"a": 0.5}
    made.run()
    ends = [line for line in made.lines if line.startswith("finished")]
    assert [re.findall(r"about (\S+) left", line) for line in ends] == [["0:20"], ["0:10"], []]

    made = Made(tmp_path / "t", [0])
    made.folder.close()
    made.sweep.steps, made.sweep.max_hours, (run,) = {"a": 1000}, {"a": 0.5}, made.sweep.runs
    run.path.mkdir(parents=True)
    (run.path / "metrics.jsonl").write_text('{"step": 3, "budget/rollouts": 8, "time/training_hours": 0.125}\n')
    made.sweep._progress[run.name].update()
    assert made.sweep._done(run) == 250  # a quarter of its hours
    made.sweep.max_hours = {"a": 0.0}
    assert made.sweep._done(run) == 4


class Asked(Stop):
    """A signal that arrives once a file exists."""

    def __init__(self, path):
        self._path = path

    @property
    def requested(self):
        return self._path.exists()


def test_a_signal_stops_the_running_run_and_a_resume_continues_it(tmp_path):
    made = Made(tmp_path / "s", [3, 0])
    log = made.path / "a" / "seed-3" / "metrics.jsonl"

    assert made.run(Asked(log)) == {"a/seed-3": "stopped"}
    assert not (made.path / "a" / "seed-0").exists()
    (made.path / "a" / "seed-3" / "go").touch()
    assert Made(tmp_path / "s", [3, 0], resume=True).run() == {"a/seed-3": "finished", "a/seed-0": "finished"}


class Recorded(Launcher):
    """Starts no process: a run ends with `code` at the second poll. Counts concurrent runs."""

    def __init__(self, at_once, code=0):
        self.at_once, self.alone, self.verb, self.code = at_once, at_once == 1, "began", code
        self.running, self.most = 0, 0

    def start(self, run, arguments):
        self.running += 1
        self.most = max(self.most, self.running)
        run.path.mkdir()
        (run.path / "manifest.json").touch()
        return _Ending(self)

    def __exit__(self, *_):
        """Nothing is held."""


class _Ending:
    def __init__(self, launcher):
        self.launcher, self.polls = launcher, 0

    def poll(self):
        self.polls += 1
        if self.polls < 2:
            return None
        self.launcher.running -= 1
        return ProcessEnd(self.launcher.code)

    def stop(self):
        """It ends anyway."""


@pytest.mark.parametrize(("at_once", "most"), [(1, 1), (2, 2), (None, 5)])
def test_at_once_limits_concurrent_runs_and_seconds_count_only_at_1(tmp_path, at_once, most):
    launcher = Recorded(at_once)
    made = Made(tmp_path / "s", range(5), launcher)
    made.run()

    assert launcher.most == most
    assert all(run.finished and run.alone == (at_once == 1) for run in read_sweep(made.path))


def test_an_error_in_the_sweep_stops_all_runs(tmp_path):
    made = Made(tmp_path / "s", [3])

    def fail(line):
        if line.startswith("0/1"):
            raise ZeroDivisionError

    made.sweep.display.show_status = fail
    with pytest.raises(ZeroDivisionError):
        made.run()
    assert [status for _, status, _ in made.ledger] in (["began", "stopped"], ["began", "failed"])


def test_a_run_that_is_stopped_while_it_starts_has_not_failed(tmp_path):
    starting = "import pathlib, sys, time; pathlib.Path(sys.argv[1]).mkdir(); time.sleep(30)"  # with no handler yet
    made = Made(tmp_path / "s", [0, 1], command=lambda run: ["-c", starting, str(run.path)])

    assert made.run(Asked(made.path / "a" / "seed-0")) == {"a/seed-0": "stopped"}
    assert made.ledger == [(0, "began", None), (0, "stopped", -signal.SIGTERM)]
    assert [line.split()[:2] for line in made.lines if line.startswith("stopped")] == [["stopped", "a/seed-0"]]


class Saving(Launcher):
    """The first run ends by itself. Each other one ends three polls after a stop request, with exit code 75."""

    def __init__(self):
        self.at_once, self.alone, self.verb, self.started = 3, False, "began", []

    def start(self, run, arguments):
        self.started.append(_Saves(left=0 if not self.started else 3))
        return self.started[-1]

    def __exit__(self, *_):
        """Nothing is held."""


class _Saves:
    def __init__(self, left):
        self.left, self.stops = left, 0

    def poll(self):
        self.left -= bool(self.left and self.stops)
        return None if self.left else ProcessEnd(75 if self.stops else 0)

    def stop(self):
        self.stops += 1


def test_an_unwritable_ledger_stops_every_run_once_and_waits_for_it(tmp_path):
    made = Made(tmp_path / "s", range(3), launcher := Saving())
    note = made.folder.note

    def full(entry):
        if entry.status != "began":
            raise RunFolderError(f"ledger:{entry.seed}")
        note(entry)

    made.sweep.folder = SimpleNamespace(note=full)
    with refused(RunFolderError, "ledger:0") as raised:
        made.run()
    assert [(run.stops, run.left) for run in launcher.started] == [(0, 0), (1, 0), (1, 0)]
    assert raised.value.__notes__ == ["ledger:1", "ledger:2"]


@pytest.mark.parametrize(("error", "stops"), [(KeyboardInterrupt, 2), (ZeroDivisionError, 1)])
def test_only_a_second_signal_stops_a_saving_run_again(tmp_path, error, stops):
    made = Made(tmp_path / "s", range(3), launcher := Saving())
    print_line = made.sweep.display.print_line
    stop = Stop(now=False)

    def interrupt(line):
        print_line(line)
        if line.split() == ["began", "a/seed-2"]:
            stop.requested = True

    def fails(line):
        if stop.requested:
            raise error

    made.sweep.display.print_line, made.sweep.display.show_status = interrupt, fails
    with pytest.raises(error):
        made.run(stop)
    assert [run.stops for run in launcher.started[1:]] == [stops, stops]


def test_seconds_of_a_run_that_was_started_manually_do_not_count(tmp_path):
    made = Made(tmp_path / "s", [0, 1])
    manual = made.path / "a" / "seed-0"
    manual.mkdir()
    (manual / "metrics.jsonl").write_text('{"step":0,"budget/rollouts":1}\n')
    made.run()

    assert [(run.finished, run.alone) for run in read_sweep(made.path)] == [(True, False), (True, True)]


def test_a_lock_that_is_a_folder_is_refused(tmp_path):
    made = Made(tmp_path / "s", [0])
    lock = made.path / "a" / "seed-0" / ".lock"
    lock.mkdir(parents=True)
    with refused(RunFolderError, lock, code="run_folder.unreadable"):
        made.run()


PARENT = """
import os, pathlib, signal, sys, time
from winnow_lab.sweep.process import Child
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
def test_a_run_saves_and_exits_when_the_sweep_is_killed(tmp_path):
    killed = subprocess.run([sys.executable, "-c", PARENT, str(tmp_path), CHILD], check=False)

    assert killed.returncode == -signal.SIGKILL
    while not (tmp_path / "saved").exists():
        assert not (tmp_path / "never asked").exists()
        time.sleep(0.01)


def test_ctrl_c_signals_the_sweep_and_not_its_runs(tmp_path):
    child = Child(["-c", "import os; print(os.getsid(0) == os.getpid())"], tmp_path / "log")

    assert (child._process.wait(60), child.poll()) == (0, ProcessEnd(0))
    assert last_lines(tmp_path / "log") == ["True"]


def test_a_run_whose_sweep_has_exited_does_not_start(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: 1)  # another process than the child's parent
    child = Child(["-c", "print('began')"], tmp_path / "log")

    assert (child._process.wait(60), child.poll()) == (1, ProcessEnd(1))
    assert "began" not in last_lines(tmp_path / "log")


def test_a_new_run_waits_for_one_that_is_still_saving(tmp_path):
    made = Made(tmp_path / "s", [0])
    run = made.path / "a" / "seed-0"
    run.mkdir()
    lock = Lock.take(run / ".lock")
    print_line = made.sweep.display.print_line

    def release(line):
        print_line(line)
        if line.startswith("waiting"):
            lock.release()

    made.sweep.display.print_line = release
    assert made.run() == {"a/seed-0": "finished"}
    (waiting,) = (line for line in made.lines if line.startswith("waiting"))
    assert re.search(rf"{re.escape(str(run))}\b.*\b{os.getpid()}\b", waiting)


def test_the_command_of_a_run_resumes_once_a_step_is_done(tmp_path):
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


def test_progress_counts_complete_rows_and_restarts_after_truncation(tmp_path):
    progress, log = RunProgress(tmp_path), tmp_path / "metrics.jsonl"
    assert progress.update() == 0
    rows = [json.dumps({"step": step, "budget/rollouts": 8}) + "\n" for step in range(3)]
    log.write_text(rows[0] + rows[1] + '{"step":2,"eval/seconds":1.0,"eval/accuracy_sampled":null}\n' + rows[2][:9])
    assert progress.update() == 2
    assert progress.evaluation["eval/seconds"] == 1.0
    log.write_text(rows[0])
    assert progress.update() == 1


def test_only_a_terminal_shows_the_status_line():
    screen, file = StringIO(), StringIO()
    for console in (Console(file=screen, force_terminal=True, width=60), Console(file=file, width=60)):
        with sweep_display(console) as display:
            display.print_line("began      [red]a\x1b[2J/seed-0")
            display.show_status("0/6 runs")

    assert file.getvalue() == "began      [red]a\\x1b[2J/seed-0\n"
    assert "[red]a\\x1b[2J/seed-0" in screen.getvalue()
    assert "0/6 runs" in screen.getvalue()


def test_the_time_left_uses_the_pace_since_the_resume(tmp_path):
    now = iter([100.0, 130.0])
    made = Made(tmp_path / "s", [0], clock=lambda: next(now))
    made.folder.close()
    made.sweep.steps, made.sweep._before, (run,) = {"a": 20}, 4, made.sweep.runs  # 4 steps were done before
    run.path.mkdir(parents=True)
    for step, line in ((3, "0/1 runs"), (9, "0/1 runs  about 0:50 left")):  # 6 steps in 30 seconds, and 10 are left
        with (run.path / "metrics.jsonl").open("a") as log:
            log.write(json.dumps({"step": step, "budget/rollouts": 8}) + "\n")
        made.sweep._progress[run.name].update()
        assert made.sweep._status([]) == line


def test_the_first_margin_of_a_sweep_is_explained(tmp_path):
    made = Made(tmp_path / "s", [0])
    evaluation = {"eval/accuracy_sampled": 0.5, "eval/accuracy_sampled_sem": 0.02}
    shown = [made.sweep._accuracies(each) for each in ({"eval/accuracy_sampled": 0.5}, evaluation, evaluation)]
    assert ["standard error" in line for line in shown] == [False, True, False]
    made.folder.close()
