from __future__ import annotations

import io
import math
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from synthetic_run import evaluation, metrics
from winnow.alarms import Alarm
from winnow.records import StepReport
from winnow.report.progress import progress
from winnow.report.screen import console_on, is_screen
from winnow.report.standing import Standing
from winnow.training.events import AlarmRaised, Ended, Evaluated, Notice, PhaseBegan, RolloutsFinished, Started

NASTY = Notice("the reward said \x1b[31m[bold]boo[/bold] " + "and went on " * 12)


def told(*events, terminal=False, how="auto"):
    """What is shown of these events; a number among them is so many seconds that pass."""
    out, now = io.StringIO(), 100.0
    console = Console(file=out, force_terminal=terminal, width=80, color_system=None)
    with progress(how, console, clock=lambda: now) as watch:
        for event in events:
            if isinstance(event, float):
                now += event
            else:
                watch(event)
    return out.getvalue()


def step(number, **changes):
    return StepReport(step=number, metrics=metrics(number, **changes))


def test_without_a_terminal_every_event_is_plain_text():
    text = told(Started(Path("runs/toy"), 0, 10), Evaluated(0, evaluation(0.05, 0.04)), step(0), 10.0, step(1))
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


def test_each_prompt_counts_alike_in_the_reward_that_is_shown():
    numbers = metrics(0, **{"reward/mean_of_prompts": 0.625, "reward/accuracy_of_prompts": 0.5})
    line = told(Started(Path("run"), 0, 2), StepReport(step=0, metrics=numbers)).splitlines()[-1]
    assert "reward 0.625  accuracy 50%" in line


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
    text = told(Started(Path("run"), 8, 10), step(8))
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
    with progress(console=Console(file=io.StringIO())) as watch:
        watch(Notice("reading"))
        assert not watch.standing.begun
        watch(Started(Path("run"), 0, 1))
        assert watch.standing.begun


def screen(*events, width=80, **environment):
    """What stands at the end on a terminal of this width."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=width, color_system=None, _environ=environment)
    with progress(console=console) as watch:
        for event in events:
            out.truncate(0)  # what the last event drew
            out.seek(0)
            watch(event)
        drawn = out.getvalue()
    lines = re.sub(r"\x1b\[\d[KA]|\r", "", drawn).split("\n")
    return [line.rstrip() for line in lines if line.strip()]


LONG = step(0, **{"seconds/step": 60.0})


def test_a_screen_shows_the_phase_and_how_far_it_is():
    assert screen(Started(Path("run"), 0, 9), PhaseBegan(0, "generate"))[-1] == "step 0: generate"
    far = screen(Started(Path("run"), 0, 9), LONG, PhaseBegan(1, "generate"), RolloutsFinished(1, 96, 1024))
    assert far[-1] == "step 1: generate, 96 of 1,024 rollouts"
    assert screen(LONG, PhaseBegan(1, "generate"), RolloutsFinished(1, 96, 100), PhaseBegan(1, "verify"))[-1] == (
        "step 1: verify"
    )
    assert screen(Started(Path("run"), 0, 9), PhaseBegan(0, "evaluate"))[-1] == "evaluate"
    assert screen(Started(Path("run"), 0, 9), PhaseBegan(0, "update"), LONG)[-1].startswith("1/9  reward")  # over
    assert screen(PhaseBegan(0, "load")) == ["load"]  # nothing is known of its steps


def test_the_newest_alarm_stays_and_each_is_said_once():
    first, second = (
        AlarmRaised(Alarm(step=number, name=name, text=f"step {number}: {name} \x1b[31m"))
        for number, name in ((0, "all_flat"), (1, "all_truncated"))
    )
    events = Started(Path("run"), 0, 9), LONG, first, second, PhaseBegan(2, "generate")
    assert screen(*events)[-2:] == ["step 2: generate", "newest alarm: all_truncated (step 1)"]
    plain = told(*events).splitlines()
    assert plain[2:] == ["alarm: step 0: all_flat \\x1b[31m", "alarm: step 1: all_truncated \\x1b[31m"]


def test_phases_of_steps_that_nobody_can_follow_are_not_drawn():
    quick = step(0, **{"seconds/step": 0.9})
    assert screen(Started(Path("run"), 0, 9), quick, PhaseBegan(1, "generate")) == []
    assert screen(Started(Path("run"), 0, 9), quick, PhaseBegan(1, "evaluate"))[-1] == "evaluate"
    assert screen(Started(Path("run"), 0, 9), LONG, PhaseBegan(1, "generate"))[-1] == "step 1: generate"


def test_quick_phases_are_no_lines():
    events = [Started(Path("run"), 0, 9), PhaseBegan(0, "generate"), 59.0, RolloutsFinished(0, 5, 9), step(0)]
    assert len(told(*events, PhaseBegan(1, "evaluate"), Ended(1, None, True)).splitlines()) == 2


def test_long_phases_are_lines_now_and_then():
    between = [PhaseBegan(0, "evaluate"), *[1.0, RolloutsFinished(0, 5, 9)] * 27]
    within = [PhaseBegan(0, "generate"), *[1.0, RolloutsFinished(0, 5, 9)] * 125]
    for phase, often in ((between, 2), (within, 2)):
        shown = told(Started(Path("run"), 0, 9), *phase).splitlines()[1:]
        assert len(shown) == often
        assert all("5 of 9" in line for line in shown)
    assert len(told(PhaseBegan(0, "load")).splitlines()) == 1


def test_a_run_without_a_step_left_has_no_range_of_steps():
    assert "3 to 2" not in told(Started(Path("run"), 3, 3))


def test_a_narrow_window_leaves_out_what_matters_least_and_never_breaks_lines():
    begun = Started(Path("run"), 0, 9), Evaluated(0, evaluation(0.05, 0.04)), LONG
    events = *begun, PhaseBegan(1, "generate"), RolloutsFinished(1, 9, 99)
    (bar, line, phase) = screen(*events, width=20)[-3:]
    assert (bar, phase) == ("━━", "step 1: generate, 9…")
    assert re.fullmatch(r"1/9  \d+:\d\d left", line)
    assert screen(*events, width=40)[-2].startswith("1/9  reward 0.100  eval 5%  ")
    assert screen(*events, width=80)[-2].startswith("1/9  reward 0.100  accuracy 10%  eval 5%  17 tok/s  ")


def test_what_follows_the_last_step_has_no_time_that_is_left():
    standing = Standing(clock=lambda: 100.0)
    standing.follow(Started(Path("run"), 0, 2))
    standing.follow(step(0))
    assert standing.line().endswith("tok/s  0:04 left")
    standing.follow(step(1))
    standing.follow(PhaseBegan(2, "evaluate"))
    assert standing.line() == "2/2  reward 0.200  accuracy 20%  250 tok/s"


def test_plain_lines_also_in_a_terminal_and_nothing_where_nothing_is_wanted():
    events = Started(Path("run"), 0, 9), step(0)
    assert "\x1b" not in told(*events, terminal=True, how="plain")
    assert told(*events, terminal=True, how="plain") == told(*events)
    assert told(*events, how="none") == told(*events, how=False) == ""
    assert told(*events, how=True) == told(*events)


@pytest.mark.parametrize("variable", ["FORCE_COLOR", "TTY_COMPATIBLE"])
def test_what_is_no_terminal_gets_no_escape_sequence(variable, monkeypatch):
    monkeypatch.setenv(variable, "1")
    out = io.StringIO()
    with progress(file=out) as watch:
        for event in (Started(Path("run"), 0, 9), PhaseBegan(0, "generate"), step(0)):
            watch(event)
    assert [line[:3] for line in out.getvalue().splitlines()] == ["ste", "1/9"]


def test_a_stream_need_not_know_whether_it_is_a_terminal():
    said = []
    with progress(file=SimpleNamespace(write=said.append, flush=lambda: None)) as watch:
        watch(Started(Path("run"), 0, 9))
    assert "".join(said) == "steps 0 to 8, written to run\n"


def test_a_dumb_terminal_gets_lines():
    (line,) = screen(Started(Path("run"), 0, 9), step(0), TERM="dumb")
    assert line.startswith("1/9  reward 0.100  accuracy 10%  250 tok/s")


@pytest.mark.parametrize("how", ["auto", "json"])
def test_a_reader_that_leaves_ends_the_display_and_not_the_run(how):
    """A pipe whose reader has left, as `head` does: no error, and nothing is written any more."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as out:
        with progress(how, file=out) as watch:
            watch(Started(Path("run"), 0, 9))
            os.close(reading)
            for number in range(3):
                watch(step(number))
        assert watch.standing.done == 3


@pytest.mark.parametrize("how", ["auto", "plain", "json"])
@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_what_an_encoding_lacks_is_written_as_an_escape(how, encoding):
    """PYTHONIOENCODING=ascii, or the locale C of an old Python: an evaluation has a plus-minus sign."""
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    with progress(how, file=out) as watch:
        for event in (Started(Path("run"), 0, 9), Evaluated(0, evaluation(0.05, 0.04)), Notice("\u03b1"), step(0)):
            watch(event)
    out.flush()
    said = out.buffer.getvalue().decode(encoding)
    assert ("5.0% \\xb1 2.0%" if encoding == "ascii" else "5.0% \xb1 2.0%") in said or how == "json"
    assert "\\u03b1" in said
    assert len(said.splitlines()) == 4


@pytest.mark.parametrize("how", ["auto", "json"])
def test_a_program_that_has_closed_its_output_trains_all_the_same(how, monkeypatch):
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr("sys.stdout", closed)
    with progress(how) as watch:
        watch(Started(Path("run"), 0, 9))
        watch(step(0))
    assert watch.standing.done == 1


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("how", ["auto", "json"])
def test_a_stream_that_was_closed_ends_the_display_and_not_the_run(how, terminal):
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=80)
    with progress(how, console) as watch:
        watch(Started(Path("run"), 0, 9))
        out.close()
        watch(step(0))
        watch(step(1))
    assert watch.standing.done == 2


def test_a_terminal_that_is_closed_ends_the_display_and_not_the_run():
    """As after SIGHUP, at which a run saves: every write fails."""
    parent, child = os.openpty()
    with os.fdopen(child, "w") as out:
        with progress(file=out) as watch:
            watch(Started(Path("run"), 0, 9))
            assert is_screen(console_on(out))
            os.close(parent)
            watch(step(0))
            watch(step(1))
        assert watch.standing.done == 2


def test_an_error_leaves_the_screen_usable():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80)

    def breaks():
        with progress(console=console) as watch:
            watch(Started(Path("run"), 0, 1))
            watch(1 / 0)

    with pytest.raises(ZeroDivisionError):
        breaks()
    assert out.getvalue().endswith("\x1b[?25h")  # the cursor is back
