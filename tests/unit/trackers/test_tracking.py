"""Trackers receive what a run logs, in separate threads, and none of them affects the training thread."""

from __future__ import annotations

import io
import json
import math
import re
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

import winnow
from synthetic_run import write_run
from winnow.config_file import validate
from winnow.core.events import AlarmRaised, Ended, Evaluated, Notice, PhaseBegan, RolloutsFinished, Started
from winnow.records import Alarm, StepReport
from winnow.run_view.configuration import Evaluations
from winnow.state.logbook import read_metrics
from winnow.trackers.feed import FAILURES, MOST_METRICS, MOST_SAMPLES, SETTLED_SECONDS, TrackerMark
from winnow.trackers.interface import TrackedRun, Tracker, without_secrets
from winnow.trackers.items import SharedData, chosen_of
from winnow.trackers.watch import digest, track_run
from winnow.training.resolve import resolve_members


class Kept(Tracker):
    """Keeps all that it receives."""

    def __init__(self, run: TrackedRun, received: list[Any], id: str | None = None) -> None:
        self.run, self.received, self.id = run, received, id

    def log(self, step, metrics):
        self.received.append(("log", step, dict(metrics)))

    def rollouts(self, step, rows):
        self.received.append(("rollouts", step, [row["index"] for row in rows]))

    def notice(self, step, text):
        self.received.append(("notice", step, text))

    def picture(self, step, name, png):
        self.received.append(("picture", step, png[:4]))

    def close(self, status):
        self.received.append(("close", status))


@pytest.fixture(autouse=True)
def _however_slow_the_disk_is(monkeypatch):
    """A tracker of a run that ends without `Ended` has the time that it needs."""
    monkeypatch.setattr("winnow.trackers.watch.UNFINISHED", 300.0)


def tracking(make, notify=lambda event: None, **section):
    section = {"use": make, "rollouts": 0, **section}
    return track_run(resolve_members(validate({"track": section}), base=Path()), notify=notify)


def report(step: int, value: float = 0.5) -> StepReport:
    return StepReport(step=step, metrics={"reward/mean": value})


def log_of(folder: Path, *rows: dict[str, Any]) -> None:
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_tracker_receives_everything_in_order_in_a_separate_thread(tmp_path):
    received, threads = [], set()

    def kept(run):
        threads.add(threading.current_thread())
        return Kept(run, received)

    with tracking(kept) as watch:
        watch(Started(tmp_path, 0, 2))
        watch(Evaluated(0, {"eval/seconds": 1.0}))
        watch(report(0, math.inf))
        watch(Notice("half a surrogate: \ud800"))
        watch(AlarmRaised(Alarm(0, "all_flat", "no group can teach")))
        watch(PhaseBegan(1, "rollout"))
        watch(RolloutsFinished(1, 2, 4))
        watch(Ended(1, None, interrupted=False))
    assert received[0] == ("log", 0, {"eval/seconds": 1.0})
    assert received[1][:2] == ("log", 0)
    assert math.isnan(received[1][2]["reward/mean"])  # as metrics.jsonl has it
    notices = [("notice", 0, "half a surrogate: \\ud800"), ("notice", 0, "no group can teach")]
    assert received[2:] == [*notices, ("close", "finished")]
    assert threading.main_thread() not in threads


def test_the_training_thread_never_waits_for_a_tracker_that_hangs(tmp_path):
    """It hangs until the run is over; dropped rows and samples are counted, and the run ends in time."""
    release, notices, made = threading.Event(), [], threading.Event()

    class Hangs(Tracker):
        def log(self, step, metrics):
            made.set()
            release.wait()

    steps = MOST_METRICS + 100
    with tracking(lambda run: Hangs(), notices.append, wait_seconds=0, rollouts=16) as watch:
        watch(Started(tmp_path, 0, steps))
        watch(report(0))
        made.wait()  # the tracker hangs in its first row, which has left the queue
        for step in range(1, steps):
            watch(report(step))
        watch(Ended(steps, None, interrupted=False))
    release.set()
    texts = [event.text for event in notices]
    assert len(texts) == 2
    assert all("'_lambda_'" in text for text in texts)
    for dropped in (f"{steps} rows of metrics", f"{steps} samples of rollouts", "1 pictures"):
        assert dropped in texts[1]


def test_samples_are_dropped_before_metrics(tmp_path):
    release, made, received = threading.Event(), threading.Event(), []

    class Slow(Kept):
        def log(self, step, metrics):
            made.set()
            release.wait()
            super().log(step, metrics)

    notices: list[Notice] = []
    with tracking(lambda run: Slow(run, received), notices.append, rollouts=16) as watch:
        watch(Started(tmp_path, 0, 200))
        watch(report(0))
        made.wait()
        for step in range(1, 200):
            watch(report(step))
        release.set()
    assert [step for what, step, *_ in received if what == "log"] == list(range(200))
    dropped = 200 - MOST_SAMPLES // 2  # before the sample of step s, 2 s items wait: s rows, and the samples before it
    assert re.findall(r"\d+", notices[0].text) == [str(dropped)]


def test_a_tracker_whose_mark_cannot_be_written_is_closed_once(tmp_path, monkeypatch):
    monkeypatch.setattr("winnow.trackers.feed.SETTLED_SECONDS", 0.0)
    received: list[Any] = []

    class Removes(Kept):
        def log(self, step, metrics):
            super().log(step, metrics)
            shutil.rmtree(tmp_path / "trackers", ignore_errors=True)

    with tracking(lambda run: Removes(run, received)) as watch:
        watch(Started(tmp_path, 0, 2))
        watch(report(0))
        watch(report(1))
        watch(Ended(2, None, interrupted=False))
    assert [what for what, *_ in received] == ["log", "close"]
    assert received[-1] == ("close", "failed")


def fails(run):
    class Fails(Tracker):
        def log(self, step, metrics):
            raise ValueError(f"no room for {step}")

    return Fails()


def test_a_tracker_that_raises_has_one_notice_and_is_off_after_five(tmp_path):
    notices, mine = [], threading.get_ident()
    with tracking(fails, lambda event: notices.append((event.text, threading.get_ident()))) as watch:
        watch(Started(tmp_path, 0, 20))
        for step in range(20):
            watch(report(step))
        watch(Ended(20, None, interrupted=False))
    texts = [text for text, _ in notices]
    assert len(texts) == 3
    for name in ("'fails'", "ValueError: no room for 0 ", "test_tracking.py, line"):
        assert name in texts[0]
    assert f"ValueError: no room for {FAILURES - 1} " in texts[1]
    assert "20" in re.findall(r"\d+", texts[2])
    assert {thread for _, thread in notices} == {mine}  # a display is not thread-safe


@pytest.mark.parametrize("error", [RuntimeError("no server"), SystemExit(1)])
def test_a_tracker_that_cannot_be_created_does_not_affect_others(tmp_path, error):
    def broken(run):
        raise error

    notices, received = [], []
    members = resolve_members(validate({"track": [broken, lambda run: Kept(run, received)]}), base=Path())
    with track_run(members, notify=notices.append) as watch:
        watch(Started(tmp_path, 0, 1))
        watch(report(0))
        watch(Ended(1, None, interrupted=True))
    assert [entry[:2] for entry in received if entry[0] != "picture"] == [("log", 0), ("close", "interrupted")]
    assert ("'broken'" in notices[0].text, type(error).__name__ in notices[0].text) == (True, True)


def test_the_status_of_a_run_that_raises_is_failed(tmp_path):
    received: list[Any] = []
    with pytest.raises(ZeroDivisionError), tracking(lambda run: Kept(run, received)) as watch:  # noqa: PT012
        watch(Started(tmp_path, 0, 1))
        raise ZeroDivisionError
    assert received == [("close", "failed")]


def test_a_tracker_that_is_added_at_a_resume_receives_earlier_metrics(tmp_path):
    evaluated = {"step": 0, "eval/seconds": None}
    log_of(tmp_path, evaluated, {"step": 0, "reward/mean": 0.25}, {"step": 1, "reward/mean": 0.5})
    received: list[Any] = []
    with tracking(lambda run: Kept(run, received)) as watch:
        watch(Started(tmp_path, 2, 4))
        watch(report(2))
    assert [(what, step) for what, step, _ in received[:-1]] == [("log", 0), ("log", 0), ("log", 1), ("log", 2)]
    assert received[1][2] == {"reward/mean": 0.25}


def mark(folder: Path, id: str | None, step: int) -> None:
    """Write the mark of a tracker called `kept` without options."""
    members = resolve_members(validate({"track": {"use": kept_of(), "rollouts": 0}}), base=Path())
    (section,) = members.config.track
    TrackerMark(folder, "kept", options=digest(section)).begin(id, step)


def kept_of(received: list[Any] | None = None, runs: list[TrackedRun] | None = None):
    """A tracker's function called `kept`, which keeps its id."""

    def kept(run):
        (runs if runs is not None else []).append(run)
        return Kept(run, received if received is not None else [], run.id or "new")

    return kept


def launched(folder: Path, runs: list[TrackedRun], notices: list[Any], **options: Any) -> None:
    """A launch that does step 2 of a run with two logged steps."""
    log_of(folder, *({"step": step, "reward/mean": 0.5} for step in range(2)))

    def kept(run, *, project: str = "a"):
        runs.append(run)
        return Kept(run, [], run.id or f"{project}-{len(runs)}")

    with tracking(kept, notices.append, **options) as watch:
        watch(Started(folder, 2, 3))
        watch(report(2))
        watch(Ended(3, None, interrupted=False))


def test_a_tracker_with_other_options_starts_a_new_run_with_all_rows(tmp_path):
    runs, notices = [], []
    launched(tmp_path, runs, notices)
    launched(tmp_path, runs, notices, wait_seconds=60.0)  # an option of winnow, not of the tracker
    launched(tmp_path, runs, notices, project="b")
    assert [(run.id, run.first_step) for run in runs] == [(None, 0), ("a-1", 2), (None, 0)]
    (notice,) = notices
    assert ("'kept'" in notice.text, "options" in notice.text) == (True, True)


def test_a_copied_run_starts_a_new_tracker_run_and_a_moved_run_does_not(tmp_path):
    (tmp_path / "one").mkdir()
    runs, notices = [], []
    launched(tmp_path / "one", runs, notices)
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    launched(tmp_path / "copy", runs, notices)
    (tmp_path / "one").rename(tmp_path / "moved")
    launched(tmp_path / "moved", runs, notices)
    assert [run.id for run in runs] == [None, None, "a-1"]
    (notice,) = notices
    assert ("'kept'" in notice.text, f"{tmp_path}/one" in notice.text) == (True, True)


@pytest.mark.parametrize(
    ("address", "without"),
    [
        ("postgresql://me:p@ss@host:5432/runs", "postgresql://host:5432/runs"),
        ("http://host/a@b", "http://host/a@b"),
        ("http://host?user=a@b", "http://host?user=a@b"),
    ],
)
def test_a_login_is_all_before_the_host(address, without):
    assert without_secrets({"uri": address})["uri"] == without


def test_no_password_reaches_a_tracker(tmp_path):
    config = {"task": {"use": "jsonl", "train": "https://me:secret@host/x"}, "track": [{"use": "a", "key": "secret"}]}
    assert without_secrets(config) == {"task": {"use": "jsonl", "train": "https://host/x"}, "track": ["a"]}
    runs: list[TrackedRun] = []

    def kept(run, *, uri: str):
        runs.append(run)
        return Kept(run, [])

    with tracking(kept, uri="http://me:secret@host") as watch:
        watch(Started(tmp_path, 0, 1))
    assert "secret" not in json.dumps(runs[0].config)
    assert "secret" not in (tmp_path / "trackers" / "kept.json").read_text()


def test_a_function_that_returns_no_tracker_is_named_with_the_methods(tmp_path):
    notices: list[Notice] = []
    with tracking(lambda run: None, notices.append) as watch:
        watch(Started(tmp_path, 0, 1))
    for name in ("NoneType", "log", "rollouts", "notice", "picture", "close"):
        assert name in notices[0].text


def test_the_item_at_which_a_tracker_exits_is_counted_and_it_is_closed(tmp_path):
    received: list[Any] = []

    class Exits(Kept):
        def log(self, step, metrics):
            raise SystemExit(1)

    notices: list[Notice] = []
    with tracking(lambda run: Exits(run, received), notices.append) as watch:
        watch(Started(tmp_path, 0, 4))
        for step in range(4):
            watch(report(step))
    assert "4" in re.findall(r"\d+", notices[-1].text)
    assert received == [("close", "failed")]


def test_rows_that_always_fail_turn_a_tracker_off_despite_other_items(tmp_path):
    class NoRows(Kept):
        def log(self, step, metrics):
            raise OSError("full")

    notices = []
    with tracking(lambda run: NoRows(run, []), notices.append) as watch:
        watch(Started(tmp_path, 0, FAILURES))
        for step in range(FAILURES):
            watch(report(step))
            watch(Notice("well"))
    assert len(notices) == 3  # the first failure, that it is off, and the counts
    assert ["OSError: full" in event.text for event in notices] == [True, True, False]
    assert str(FAILURES) in re.findall(r"\d+", notices[2].text)


def test_a_failure_at_the_end_has_one_notice_that_the_tracker_is_off(tmp_path):
    class NoEnd(Kept):
        def close(self, status):
            raise OSError("full")

    notices: list[Notice] = []
    with tracking(lambda run: NoEnd(run, []), notices.append) as watch:
        watch(Started(tmp_path, 0, 1))
    (notice,) = notices
    assert ("'_lambda_'" in notice.text, "OSError: full" in notice.text) == (True, True)
    assert "continues" not in notice.text  # training is over


def test_a_resume_sends_again_the_rows_that_may_not_have_arrived(tmp_path):
    """By the mark, the tracker may lack data from step 1 on, and the run resumes at step 3."""
    mark(tmp_path, "known", 1)
    log_of(tmp_path, *({"step": step, "reward/mean": step / 4} for step in range(3)), {"step": 3, "eval/seconds": 1.0})
    received, runs = [], []

    def kept(run):
        runs.append(run)
        return Kept(run, received, run.id)

    with tracking(kept) as watch:
        watch(Started(tmp_path, 3, 4))
        watch(report(3))
        watch(Ended(4, None, interrupted=False))
    assert (runs[0].id, runs[0].first_step) == ("known", 1)
    logged = [(step, *metrics) for what, step, metrics in (entry for entry in received if entry[0] == "log")]
    assert logged == [(1, "reward/mean"), (2, "reward/mean"), (3, "eval/seconds"), (3, "reward/mean")]
    stored = json.loads((tmp_path / "trackers" / "kept.json").read_text())
    assert (stored["id"], stored["next"], stored["run"]) == ("known", 4, str(tmp_path))


def test_a_resume_before_the_mark_starts_at_the_first_step_of_the_run(tmp_path):
    mark(tmp_path, None, 7)
    log_of(tmp_path, *({"step": step, "reward/mean": 0.0} for step in range(4)))
    runs = []

    def kept(run):
        runs.append(run)
        return Kept(run, [])

    with tracking(kept) as watch:
        watch(Started(tmp_path, 4, 8))
    assert runs[0].first_step == 4


def test_a_mark_is_written_some_seconds_after_the_rows(tmp_path):
    now = [0.0]
    mark = TrackerMark(tmp_path, "it", clock=lambda: now[0])
    mark.begin("a", 0)
    for second in range(12):
        now[0] = float(second)
        mark.reach(second + 1)
        assert json.loads(mark.path.read_text())["next"] <= max(0, second - SETTLED_SECONDS) + 1  # sent so long ago
    assert json.loads(mark.path.read_text())["next"] == 5  # written in second 10: the steps sent by second 5
    mark.settle()
    assert json.loads(mark.path.read_text())["next"] == 12


@pytest.mark.parametrize("damage", ["[]", '{"id": 3, "next": 1}', '{"id": "a", "next": "b"}', "{"])
def test_a_damaged_mark_turns_the_tracker_off_and_training_continues(tmp_path, damage):
    (tmp_path / "trackers").mkdir()
    (tmp_path / "trackers" / "kept.json").write_text(damage)
    notices: list[Notice] = []

    def kept(run):
        return Kept(run, [])

    with tracking(kept, notices.append) as watch:
        watch(Started(tmp_path, 0, 1))
    assert "'kept'" in notices[0].text
    assert (tmp_path / "trackers" / "kept.json").read_text() == damage


def test_whole_groups_of_the_widest_spread_are_chosen_first():
    flat, wide, narrow = [("a", 0.0)] * 3, [("b", 0.0), ("b", 1.0), ("b", 0.5)], [("c", 0.5), ("c", 0.0)]
    rewards = [*flat, *wide, *narrow]
    assert chosen_of(rewards, 3) == [3, 4, 5]
    assert chosen_of(rewards, 5) == [3, 4, 5, 6, 7]
    assert chosen_of(rewards, 2) == [3, 4]  # the best and the worst
    assert chosen_of(rewards, 99) == list(range(8))
    assert chosen_of([("a", math.nan), ("a", 1.0), ("b", 0.0), ("b", 0.5)], 1) == [3]


def test_a_picture_is_of_the_evaluations_that_winnow_plot_draws(tmp_path):
    pytest.importorskip("matplotlib")
    from winnow.run_view.plot import draw

    write_run(tmp_path)
    change = {"step": 5, "key": "evaluate.problems", "was": "8", "now": "16"}
    manifest = {"winnow_run": 1, "config": {"evaluate": {"split": "train"}}, "changes": [change]}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    drawn = io.BytesIO()
    comparable = Evaluations(since=5, held_out=False)
    draw(read_metrics(tmp_path), title=tmp_path.name, evaluated=comparable).savefig(drawn, format="png", dpi=100)
    assert SharedData(tmp_path).picture(10) == drawn.getvalue()


def test_two_trackers_of_one_name_have_separate_files(tmp_path):
    def kept(run):
        return Kept(run, [])

    members = resolve_members(validate({"track": [kept, {"use": kept, "rollouts": 0}]}), base=Path())
    with track_run(members, notify=lambda event: None) as watch:
        watch(Started(tmp_path, 0, 1))
    assert sorted(path.name for path in (tmp_path / "trackers").iterdir()) == ["kept.json", "kept_2.json"]


def test_a_run_with_a_tracker_from_a_file_and_one_from_python(tmp_path, smallest):
    """A whole run and a resume with another tracker, which is allowed, as trackers do not affect the results."""
    (tmp_path / "mine.py").write_text(
        "from winnow.trackers.interface import Tracker\n\n\n"
        "class Lines(Tracker):\n"
        "    def __init__(self, path):\n        self.path = path\n\n"
        "    def log(self, step, metrics):\n"
        "        with open(self.path, 'a') as file:\n            print(step, len(metrics), file=file)\n\n\n"
        "def lines(run, *, to: str = 'lines.txt'):\n    return Lines(run.folder / to)\n"
    )
    received: list[Any] = []

    def kept(run):
        return Kept(run, received)

    shared: dict[str, Any] = {
        "rollout": {"prompts_per_step": 2, "rollouts_per_prompt": 2, "max_new_tokens": 4},
        "select": "all",
        "evaluate": {"problems": 1, "rollouts_per_prompt": 1},
    }
    winnow.train(**smallest(steps=1, track=[{"use": kept, "rollouts": 3}], **shared), progress=False)
    logged = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [entry[1] for entry in received if entry[0] == "log"] == [row["step"] for row in logged] == [0, 0, 1]
    for row, (_, _, metrics) in zip(logged, (entry for entry in received if entry[0] == "log"), strict=True):
        del row["step"]
        assert {name: None if math.isnan(value) else value for name, value in metrics.items()} == row
    assert [len(rows) for what, _, rows in (entry for entry in received if entry[0] == "rollouts")] == [3]
    pictures = [(step, png) for what, step, png in (entry for entry in received if entry[0] == "picture")]
    assert pictures[-1] == (1, b"\x89PNG")  # an earlier one may be missing: before the first step there is no plot
    assert received[-1] == ("close", "finished")
    winnow.train(**smallest(steps=2, track=f"{tmp_path}/mine.py:lines", **shared), resume=True, progress=False)
    lines = (tmp_path / "run" / "lines.txt").read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["0", "0", "1", "1", "2"]


def test_a_mark_from_a_place_that_cannot_be_looked_at_is_of_a_moved_run(tmp_path):
    TrackerMark(tmp_path, "it").begin("a", 3)
    path = tmp_path / "trackers" / "it.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "run": "/" + 300 * "x"}))
    found = TrackerMark(tmp_path, "it")
    assert (found.id, found.changed) == ("a", None)


def test_a_new_launch_after_a_failed_first_step_starts_a_new_tracker_run(tmp_path):
    mark(tmp_path, "old", 0)
    log_of(tmp_path)  # the new launch has cut it
    runs: list[TrackedRun] = []
    with tracking(kept_of(runs=runs)) as watch:
        watch(Started(tmp_path, 0, 1))
        watch(Ended(0, None, interrupted=False))
    assert [(run.id, run.first_step) for run in runs] == [(None, 0)]
