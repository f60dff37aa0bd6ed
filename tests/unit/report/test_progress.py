from __future__ import annotations

import io
import itertools
import math
from pathlib import Path

import pytest
from rich.console import Console

from synthetic_run import evaluation, metrics
from winnow.records import StepReport
from winnow.report.progress import Standing, progress
from winnow.training.events import Evaluated, Notice, Started

NASTY = Notice("the reward said \x1b[31m[bold]boo[/bold] " + "and went on " * 12)


def told(*events, terminal=False, clock=lambda: 0.0):
    out = io.StringIO()
    with progress(Console(file=out, force_terminal=terminal, width=80, color_system=None), clock=clock) as watch:
        for event in events:
            watch(event)
    return out.getvalue()


def step(number, **changes):
    return StepReport(step=number, metrics=metrics(number, **changes))


def test_without_a_terminal_every_event_is_plain_text():
    ticks = itertools.count(100.0, 10.0)  # ten seconds between steps; the first took 4
    text = told(
        Started(Path("runs/toy"), 0, 10),
        Evaluated(0, evaluation(0.05, 0.04)),
        step(0),
        step(1),
        clock=lambda: next(ticks),
    )
    assert text.splitlines() == [
        "steps 0 to 9, written to runs/toy",
        "held-out, after 0 steps: sampled 5.0% ± 2.0%, greedy 4.0%",
        "1/10  reward 0.100  accuracy 10%  eval 5%  250 tok/s  0:36 left",
        "2/10  reward 0.200  accuracy 20%  eval 5%  250 tok/s  0:56 left",
    ]


def test_foreign_text_is_escaped_and_wrapped():
    text = told(Started(Path("run"), 0, 2), NASTY)
    assert "\x1b" not in text
    assert r"\x1b[31m[bold]boo[/bold]" in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_the_longest_line_fits_80_columns():
    standing = Standing(clock=lambda: 5e4)
    standing.follow(Started(Path("run"), 0, 20_000))
    standing.follow(Evaluated(0, evaluation(1.0, 1.0)))
    hardest = {"reward/mean": -0.55555, "reward/accuracy": 1.0, "budget/tokens_generated": 2.5e6, "seconds/step": 20.0}
    standing.follow(StepReport(step=9_999, metrics=metrics(0, **hardest)))
    assert standing.line() == "10000/20000  reward -0.556  accuracy 100%  eval 100%  125k tok/s  0:20 left"
    assert len(standing.line()) <= 80
    standing.follow(StepReport(step=9_999, metrics=metrics(0, **hardest, **{"critic/explained_variance": -0.555})))
    assert standing.line() == "10000/20000  reward -0.556  accuracy 100%  EV -0.56  eval 100%  0:20 left"


@pytest.mark.parametrize(("explained", "shown"), [(0.625, "0.62"), (-4.5e7, "-4.5e+07"), (math.nan, "nan")])
def test_what_the_values_explain_is_said_where_there_are_any(explained, shown):
    told_of = metrics(0, **{"critic/explained_variance": explained})
    line = told(Started(Path("run"), 0, 2), StepReport(step=0, metrics=told_of)).splitlines()[-1]
    assert f"accuracy 10%  EV {shown}  250 tok/s" in line


def test_a_step_in_which_every_verifier_failed_has_no_reward():
    numbers = {name: value for name, value in metrics(0).items() if not name.startswith("reward/")}
    assert "reward" not in told(Started(Path("run"), 0, 2), StepReport(step=0, metrics=numbers)).splitlines()[-1]


@pytest.mark.parametrize(("hours", "left"), [(0.0, "1:30"), (0.5, "0:36"), (0.05, "0:00")])
def test_what_is_left_is_no_more_than_the_hours_of_training_leave(hours, left):
    """Ten steps of ten seconds, of which the clock says 0.49 hours: 36 seconds are left of half an hour."""
    ticks = iter([100.0])
    standing = Standing(clock=lambda: next(ticks))
    standing.follow(Started(Path("run"), 0, 10, max_hours=hours))
    standing.follow(step(0, **{"seconds/step": 10.0, "time/training_hours": 0.49}))
    assert standing.line().endswith(f"{left} left")


def test_a_resumed_run_counts_the_steps_before_it_but_not_their_time():
    ticks = iter([100.0])
    text = told(Started(Path("run"), 8, 10), step(8), clock=lambda: next(ticks))
    assert text.splitlines()[-1].startswith("9/10")
    assert text.splitlines()[-1].endswith("0:04 left")


def test_a_screen_shows_one_picture_and_keeps_what_was_said():
    text = told(Started(Path("run"), 0, 3), step(0), step(1), NASTY, step(2), terminal=True)
    before, _, line = text.rpartition("━" * 60)
    assert "2/3" in before
    assert "\n3/3  reward 0.300  accuracy 30%  250 tok/s" in line
    assert r"\x1b[31m[bold]boo[/bold]" in text
    assert "\x1b[31m" not in text


def test_whether_the_run_has_begun_is_known():
    with progress(Console(file=io.StringIO())) as watch:
        watch(Notice("reading"))
        assert not watch.standing.begun
        watch(Started(Path("run"), 0, 1))
        assert watch.standing.begun


def test_an_error_leaves_the_screen_usable():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80)

    def breaks():
        with progress(console) as watch:
            watch(Started(Path("run"), 0, 1))
            watch(1 / 0)

    with pytest.raises(ZeroDivisionError):
        breaks()
    assert out.getvalue().endswith("\x1b[?25h")  # the cursor is back
