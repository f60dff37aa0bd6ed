from __future__ import annotations

from winnow import ranks
from winnow.training.events import PhaseBegan, RolloutsFinished
from winnow.training.phases import Phases


def sampled(times, asked):
    """What is told of rollouts that finish at these times; the counting begins at 0."""
    told, ticks = [], iter([0.0, *times])
    now = [0.0]
    phases = Phases(told.append, 7, now=lambda: now[0])
    each = phases.told(asked)
    next(ticks)
    for now[0] in ticks:
        each(None)
    return told


def test_a_phase_is_told_with_the_step_under_way():
    told = []
    phases = Phases(told.append)
    phases.begin("load")
    phases.step = 3
    phases.begin("generate")
    assert told == [PhaseBegan(0, "load"), PhaseBegan(3, "generate")]


def test_sampling_is_told_once_a_second():
    assert sampled([0.2, 0.9, 1.0, 1.9, 2.5, 2.6], 9) == [RolloutsFinished(7, 3, 9), RolloutsFinished(7, 5, 9)]


def test_several_ranks_are_taken_to_be_as_far_as_this_one(monkeypatch):
    monkeypatch.setattr(ranks, "count", lambda: 4)
    assert sampled([1.0, 2.0, 3.0], 9) == [
        RolloutsFinished(7, 4, 9),
        RolloutsFinished(7, 8, 9),
        RolloutsFinished(7, 9, 9),
    ]
