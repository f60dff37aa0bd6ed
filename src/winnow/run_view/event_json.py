"""An event of a run as a line of JSON, for programs that follow a run (docs/runs.md)."""

from __future__ import annotations

import json
from typing import Any

from winnow.records import StepReport
from winnow.run_view.standing import Standing
from winnow.state.log_rows import plain
from winnow.training.events import AlarmRaised, Ended, Evaluated, Event, Notice, PhaseBegan, RolloutsFinished, Started
from winnow.view.text import encodable


def event_json(event: Event, standing: Standing) -> str:
    """One object in ASCII, without a line break; its field "event" is the kind of the event. NaN and infinity become
    null. A lone surrogate, which strict JSON cannot represent, becomes an escape."""
    return json.dumps(plain(_fields(event, standing), encodable), allow_nan=False).replace("\x7f", "\\u007f")


def _fields(event: Event, standing: Standing) -> dict[str, Any]:
    match event:
        case Started():
            run = {"folder": str(event.folder), "first_step": event.first_step, "last_step": event.last_step}
            return {"event": "started", **run, "devices": event.devices, "max_hours": event.max_hours}
        case PhaseBegan():
            return {"event": "phase", "step": event.step, "phase": event.phase}
        case RolloutsFinished():
            return {"event": "rollouts", "step": event.step, "finished": event.finished, "asked": event.asked}
        case StepReport():
            left = standing.seconds_left
            return {"event": "step", "step": event.step, "metrics": event.metrics, "seconds_left": left}
        case Evaluated():
            return {"event": "evaluated", "step": event.step, "metrics": event.metrics}
        case AlarmRaised():
            alarm = event.alarm
            return {"event": "alarm", "step": alarm.step, "name": alarm.name, "text": alarm.text}
        case Notice():
            return {"event": "notice", "text": event.text}
        case Ended():
            model = None if event.model is None else str(event.model)
            return {"event": "ended", "steps": event.steps, "model": model, "interrupted": event.interrupted}
