from __future__ import annotations

import io
import json
import math
from pathlib import Path

import pytest

from winnow.alarms import Alarm
from winnow.records import StepReport
from winnow.run_view.progress import progress
from winnow.training.events import AlarmRaised, Ended, Evaluated, Notice, PhaseBegan, RolloutsFinished, Started

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
