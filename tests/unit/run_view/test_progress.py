"""The line that progress prints for each step, and what a live display and its errors contain."""

from __future__ import annotations

import io
import json
import math
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from golden_files import assert_golden
from synthetic_run import evaluation, metrics
from winnow.core.events import AlarmRaised, Ended, Evaluated, Notice, PhaseBegan, RolloutsFinished, Started
from winnow.records import Alarm, StepReport
from winnow.run_view.forecast import forecast_of
from winnow.run_view.progress import Standing, progress
from winnow.view.screen import console_on, is_screen

NASTY = Notice("the reward raised \x1b[31m[bold]boo[/bold] " + "again and again " * 12)


def shown(*events, terminal=False, how="auto"):
    """The output for these events; a number among them lets so many seconds pass."""
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
    text = shown(Started(Path("runs/toy"), 0, 10), Evaluated(0, evaluation(0.05, 0.04)), step(0), 10.0, step(1))
    assert_golden("progress_lines", text)


def test_a_run_in_progress_keeps_only_what_its_forecast_reads():
    standing, whole = Standing(clock=lambda: 0.0), []
    standing.follow(Started(Path("run"), 0, 99))
    for number in range(6):
        whole.append({"step": number, **evaluation(0.1 * number, 0.0)})
        standing.follow(Evaluated(number, evaluation(0.1 * number, 0.0)))
        assert standing.forecast is None or standing.forecast.lines() == forecast_of(whole).lines()
        whole.append({"step": number, **metrics(number)})
        standing.follow(step(number))
    assert standing.forecast is not None
    assert max(map(len, standing._rows)) <= 4  # of about twenty metrics in a step


def test_a_margin_is_explained_once():
    without = {"eval/accuracy_sampled": 0.5, "eval/accuracy_sampled_sem": math.nan, "eval/seconds": 1.0}
    events = Started(Path("run"), 0, 9), Evaluated(0, without), *(Evaluated(n, evaluation(0.05, 0.04)) for n in (3, 6))
    first, *others = [line for line in shown(*events).splitlines() if "±" in line]
    assert (first.count("standard error"), len(others)) == (1, 1)
    assert "standard error" not in others[0]


def test_foreign_text_is_escaped_and_wrapped():
    text = shown(Started(Path("run"), 0, 2), NASTY)
    assert "\x1b" not in text
    assert r"\x1b[31m[bold]boo[/bold]" in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_a_line_omits_the_least_important_fields_beyond_80_columns():
    standing = Standing(clock=lambda: 5e4)
    standing.follow(Started(Path("run"), 0, 20_000))
    standing.follow(Evaluated(0, evaluation(1.0, 1.0)))
    hardest = {"reward/mean": -0.55555, "reward/accuracy": 1.0, "budget/tokens_generated": 2.5e6, "seconds/step": 20.0}
    standing.follow(StepReport(step=9_999, metrics=metrics(0, **hardest)))
    assert len(standing.line()) <= 80
    assert ("tok/s" in standing.line(), "EV" in standing.line()) == (True, False)
    standing.follow(StepReport(step=9_999, metrics=metrics(0, **hardest, **{"critic/explained_variance": -0.555})))
    assert len(standing.line()) <= 80
    assert ("tok/s" in standing.line(), "EV -0.56" in standing.line()) == (False, True)


def test_the_line_shows_means_over_prompts():
    numbers = metrics(0, **{"reward/mean_of_prompts": 0.625, "reward/accuracy_of_prompts": 0.5})
    line = shown(Started(Path("run"), 0, 2), StepReport(step=0, metrics=numbers)).splitlines()[-1]
    assert ("0.625" in line, "50%" in line) == (True, True)


@pytest.mark.parametrize(("explained", "text"), [(0.625, "0.62"), (-4.5e7, "-4.5e+07"), (math.nan, "nan")])
def test_the_line_shows_the_explained_variance_of_a_value_model(explained, text):
    numbers = metrics(0, **{"critic/explained_variance": explained})
    line = shown(Started(Path("run"), 0, 2), StepReport(step=0, metrics=numbers)).splitlines()[-1]
    assert f"EV {text} " in line


def test_a_step_in_which_every_verifier_failed_has_no_reward():
    numbers = {name: value for name, value in metrics(0).items() if not name.startswith("reward/")}
    assert "reward" not in shown(Started(Path("run"), 0, 2), StepReport(step=0, metrics=numbers)).splitlines()[-1]


@pytest.mark.parametrize(("hours", "left"), [(0.0, "1:30"), (0.5, "0:36"), (0.05, "0:00")])
def test_the_time_left_is_limited_by_the_hours_of_training(hours, left):
    """Ten steps of ten seconds after 0.49 hours of training: 36 seconds are left of half an hour."""
    ticks = iter([100.0])
    standing = Standing(clock=lambda: next(ticks))
    standing.follow(Started(Path("run"), 0, 10, max_hours=hours))
    standing.follow(step(0, **{"seconds/step": 10.0, "time/training_hours": 0.49}))
    assert standing.line().endswith(f"{left} left")


def test_a_resumed_run_counts_the_steps_before_it_but_not_their_time():
    text = shown(Started(Path("run"), 8, 10), step(8))
    assert ("9/10" in text.splitlines()[-1], "0:04" in text.splitlines()[-1]) == (True, True)


def test_a_screen_shows_one_picture_and_keeps_messages():
    text = shown(Started(Path("run"), 0, 3), step(0), step(1), NASTY, step(2), terminal=True)
    before, _, line = text.rpartition("━" * 60)
    assert "2/3" in before
    assert "\n3/3 " in line
    assert r"\x1b[31m[bold]boo[/bold]" in text
    assert "\x1b[31m" not in text


def test_the_state_shows_whether_the_run_has_begun():
    with progress(console=Console(file=io.StringIO())) as watch:
        watch(Notice("reading"))
        assert not watch.standing.begun
        watch(Started(Path("run"), 0, 1))
        assert watch.standing.begun


def screen(*events, width=80, **environment):
    """The lines that are visible at the end on a terminal of this width."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=width, color_system=None, _environ=environment)
    with progress(console=console) as watch:
        for event in events:
            out.truncate(0)  # removes the picture of the last event
            out.seek(0)
            watch(event)
        drawn = out.getvalue()
    lines = re.sub(r"\x1b\[\d[KA]|\r", "", drawn).split("\n")
    return [line.rstrip() for line in lines if line.strip()]


LONG = step(0, **{"seconds/step": 60.0})


def test_a_screen_shows_the_phase_and_how_far_it_is():
    begun = Started(Path("run"), 0, 9)
    states = [
        screen(begun, PhaseBegan(0, "generate")),
        screen(begun, LONG, PhaseBegan(1, "generate"), RolloutsFinished(1, 96, 1024)),
        screen(LONG, PhaseBegan(1, "generate"), RolloutsFinished(1, 96, 100), PhaseBegan(1, "verify")),
        screen(begun, PhaseBegan(0, "evaluate")),
    ]
    assert_golden("progress_phases", "\n".join(lines[-1] for lines in states))
    assert "update" not in screen(begun, PhaseBegan(0, "update"), LONG)[-1]  # the phase is over
    assert len(screen(PhaseBegan(0, "load"))) == 1  # no steps are known yet


def test_the_newest_alarm_stays_and_each_is_printed_once():
    first, second = (
        AlarmRaised(Alarm(step=number, name=name, text=f"step {number}: {name} \x1b[31m"))
        for number, name in ((0, "all_flat"), (1, "all_truncated"))
    )
    events = Started(Path("run"), 0, 9), LONG, first, second, PhaseBegan(2, "generate")
    newest = screen(*events)[-1]
    assert ["all_truncated" in newest, "all_flat" in newest, "step 1" in newest] == [True, False, True]
    plain = shown(*events).splitlines()[2:]
    assert [re.findall(r"step (\d): (\w+) (\\x1b)", line) for line in plain] == [
        [("0", "all_flat", "\\x1b")],
        [("1", "all_truncated", "\\x1b")],
    ]


def test_phases_of_very_short_steps_are_not_drawn():
    quick = step(0, **{"seconds/step": 0.9})
    assert screen(Started(Path("run"), 0, 9), quick, PhaseBegan(1, "generate")) == []
    assert "evaluate" in screen(Started(Path("run"), 0, 9), quick, PhaseBegan(1, "evaluate"))[-1]
    assert "generate" in screen(Started(Path("run"), 0, 9), LONG, PhaseBegan(1, "generate"))[-1]


def test_quick_phases_have_no_lines():
    events = [Started(Path("run"), 0, 9), PhaseBegan(0, "generate"), 59.0, RolloutsFinished(0, 5, 9), step(0)]
    assert len(shown(*events, PhaseBegan(1, "evaluate"), Ended(1, None, True)).splitlines()) == 2


def test_long_phases_have_a_line_now_and_then():
    between = [PhaseBegan(0, "evaluate"), *[1.0, RolloutsFinished(0, 5, 9)] * 27]
    within = [PhaseBegan(0, "generate"), *[1.0, RolloutsFinished(0, 5, 9)] * 125]
    for phase, often in ((between, 2), (within, 2)):
        lines = shown(Started(Path("run"), 0, 9), *phase).splitlines()[1:]
        assert len(lines) == often
        assert all({"5", "9"} <= set(re.findall(r"\d+", line)) for line in lines)
    assert len(shown(PhaseBegan(0, "load")).splitlines()) == 1


def test_a_run_without_a_step_left_has_no_range_of_steps():
    assert "3 to 2" not in shown(Started(Path("run"), 3, 3))


def test_a_narrow_window_omits_fields_and_never_breaks_lines():
    begun = Started(Path("run"), 0, 9), Evaluated(0, evaluation(0.05, 0.04)), LONG
    events = *begun, PhaseBegan(1, "generate"), RolloutsFinished(1, 9, 99)
    lines = [*screen(*events, width=20)[-3:], screen(*events, width=40)[-2], screen(*events, width=80)[-2]]
    # The time left follows the real clock here
    assert_golden("progress_widths", "\n".join(re.sub(r"\d+:\d\d", "M:SS", line) for line in lines))


def test_an_evaluation_after_the_last_step_has_no_time_left():
    standing = Standing(clock=lambda: 100.0)
    standing.follow(Started(Path("run"), 0, 2))
    standing.follow(step(0))
    assert "0:04" in standing.line()
    standing.follow(step(1))
    standing.follow(PhaseBegan(2, "evaluate"))
    assert ("2/2" in standing.line(), ":" in standing.line()) == (True, False)


def test_plain_prints_lines_in_a_terminal_and_none_prints_nothing():
    events = Started(Path("run"), 0, 9), step(0)
    assert "\x1b" not in shown(*events, terminal=True, how="plain")
    assert shown(*events, terminal=True, how="plain") == shown(*events)
    assert shown(*events, how="none") == shown(*events, how=False) == ""
    assert shown(*events, how=True) == shown(*events)


@pytest.mark.parametrize("variable", ["FORCE_COLOR", "TTY_COMPATIBLE"])
def test_only_a_terminal_gets_escape_sequences(variable, monkeypatch):
    monkeypatch.setenv(variable, "1")
    out = io.StringIO()
    with progress(file=out) as watch:
        for event in (Started(Path("run"), 0, 9), PhaseBegan(0, "generate"), step(0)):
            watch(event)
    assert "\x1b" not in out.getvalue()
    assert len(out.getvalue().splitlines()) == 2


def test_a_stream_need_not_have_isatty():
    written = []
    with progress(file=SimpleNamespace(write=written.append, flush=lambda: None)) as watch:
        watch(Started(Path("run"), 0, 9))
    assert re.findall(r"\d+", "".join(written)) == ["0", "8"]


def test_a_dumb_terminal_gets_lines():
    (line,) = screen(Started(Path("run"), 0, 9), step(0), TERM="dumb")
    assert line.startswith("1/9 ")


@pytest.mark.parametrize("how", ["auto", "json"])
def test_a_closed_pipe_ends_the_display_and_not_the_run(how):
    """The reader closes the pipe, as `head` does: there is no error, and no further output."""
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
def test_characters_that_an_encoding_lacks_become_escapes(how, encoding):
    """PYTHONIOENCODING=ascii, or the locale C of an old Python: an evaluation has a plus-minus sign."""
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    with progress(how, file=out) as watch:
        for event in (Started(Path("run"), 0, 9), Evaluated(0, evaluation(0.05, 0.04)), Notice("\u03b1"), step(0)):
            watch(event)
    out.flush()
    text = out.buffer.getvalue().decode(encoding)
    assert ("5.0% \\xb1 2.0%" if encoding == "ascii" else "5.0% \xb1 2.0%") in text or how == "json"
    assert "\\u03b1" in text
    assert len(text.splitlines()) == 4


@pytest.mark.parametrize("how", ["auto", "json"])
def test_a_program_with_a_closed_standard_output_still_trains(how, monkeypatch):
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr("sys.stdout", closed)
    with progress(how) as watch:
        watch(Started(Path("run"), 0, 9))
        watch(step(0))
    assert watch.standing.done == 1


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("how", ["auto", "json"])
def test_a_closed_stream_ends_the_display_and_not_the_run(how, terminal):
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=80)
    with progress(how, console) as watch:
        watch(Started(Path("run"), 0, 9))
        out.close()
        watch(step(0))
        watch(step(1))
    assert watch.standing.done == 2


def test_a_closed_terminal_ends_the_display_and_not_the_run():
    """Every write fails, as after SIGHUP."""
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


HOSTILE = "\x1b]52;c;AAAA\x07\x7f\x9b2J\u202e\u2028\r\b\ud800 end"


def lines(*events):
    """The objects that are written, with a constant clock."""
    out = io.StringIO()
    with progress("json", file=out, clock=lambda: 100.0) as watch:
        for event in events:
            watch(event)
    text = out.getvalue()
    assert all(" " <= character <= "~" for character in text.replace("\n", ""))  # a terminal would act on nothing
    return [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]


def test_each_event_is_an_object():
    assert lines(
        Started(Path("runs/x"), 2, 4, ("policy on cpu",), 1.5),
        PhaseBegan(2, "generate"),
        RolloutsFinished(2, 3, 8),
        StepReport(step=2, metrics={"seconds/step": 7.0, "time/training_hours": 0.5, "reward/mean": 0.25}),
        Evaluated(3, {"eval/accuracy_greedy": 0.5}),
        AlarmRaised(Alarm(step=3, name="all_flat", text="step 3: flat")),
        Notice("look here"),
        Ended(3, Path("runs/x/checkpoints/step-000003"), True),
        Ended(0, None, True),
    ) == [
        {
            "event": "started", "folder": "runs/x", "first_step": 2, "last_step": 4,
            "devices": ["policy on cpu"], "max_hours": 1.5,
        },
        {"event": "phase", "step": 2, "phase": "generate"},
        {"event": "rollouts", "step": 2, "finished": 3, "asked": 8},
        {
            "event": "step", "step": 2, "seconds_left": 7.0,
            "metrics": {"seconds/step": 7.0, "time/training_hours": 0.5, "reward/mean": 0.25},
        },
        {"event": "evaluated", "step": 3, "metrics": {"eval/accuracy_greedy": 0.5}},
        {"event": "alarm", "step": 3, "name": "all_flat", "text": "step 3: flat"},
        {"event": "notice", "text": "look here"},
        {"event": "ended", "steps": 3, "model": "runs/x/checkpoints/step-000003", "interrupted": True},
        {"event": "ended", "steps": 0, "model": None, "interrupted": True},
    ]  # fmt: skip


def test_numbers_that_are_not_finite_are_null():
    (event,) = lines(Evaluated(0, {"a": math.nan, "b": math.inf, "c": -math.inf, "d": 0.1}))
    assert event["metrics"] == {"a": None, "b": None, "c": None, "d": 0.1}


def test_any_text_is_one_line_of_ascii_that_every_parser_reads():
    (event,) = lines(Notice(f"two\nlines {HOSTILE}"))
    assert event["text"] == f"two\nlines {HOSTILE}".replace("\ud800", "\\ud800")  # UTF-8 has no lone surrogate
