from __future__ import annotations

from winnow import ranks
from winnow.core.events import PhaseBegan, RolloutsFinished
from winnow.core.progress import Phases


def sampled(times, total):
    """The events while rollouts finish at these times. Counting starts at 0."""
    events, ticks = [], iter([0.0, *times])
    now = [0.0]
    phases = Phases(events.append, 7, now=lambda: now[0])
    count = phases.rollout_counter(total)
    next(ticks)
    for now[0] in ticks:
        count(None)
    return events


def test_a_phase_is_passed_on_with_the_current_step():
    events = []
    phases = Phases(events.append)
    phases.begin("load")
    phases.step = 3
    phases.begin("generate")
    assert events == [PhaseBegan(0, "load"), PhaseBegan(3, "generate")]


def test_progress_of_sampling_is_passed_on_once_a_second():
    assert sampled([0.2, 0.9, 1.0, 1.9, 2.5, 2.6], 9) == [RolloutsFinished(7, 3, 9), RolloutsFinished(7, 5, 9)]


def test_other_ranks_are_assumed_to_be_as_far_as_this_one(monkeypatch):
    monkeypatch.setattr(ranks, "count", lambda: 4)
    assert sampled([1.0, 2.0, 3.0], 9) == [
        RolloutsFinished(7, 4, 9),
        RolloutsFinished(7, 8, 9),
        RolloutsFinished(7, 9, 9),
    ]
