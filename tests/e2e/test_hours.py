"""What happens by the hours of training: the end, evaluations, checkpoints; and that a resume changes none of it.

The clock is a number that the engine moves: a step takes a minute, an evaluation 1,000 seconds, which do not count.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_life import assert_same, checkpoints, evaluations

import winnow
from winnow.config_file import validate
from winnow.core.events import Notice
from winnow.engines.native.engine import native
from winnow.state.logbook import read_metrics
from winnow.training.fit import fit
from winnow.training.resolve import resolve_members

MINUTE = 1 / 60  # of an hour


class Ticking:
    """The machine's clock, and an engine that moves it; before step `breaks` it then raises, once, where asked."""

    def __init__(self, seconds=0.0, breaks=None, moment="rollout"):
        self.seconds, self.breaks, self.moment = seconds, breaks, moment

    def __call__(self):
        return self.seconds

    def engine(self, context):
        made = native(context)
        generate = made.generate

        def generated(*request, seed, **more):
            self.seconds += {"rollout": 60, "evaluate": 1000}[seed[1]]
            if (made.version, seed[1]) == (self.breaks, self.moment):
                raise RuntimeError("on purpose")
            return generate(*request, seed=seed, **more)

        made.generate = generated
        return made


@pytest.fixture
def run(smallest, tmp_path):
    """run("name", steps=6, max_hours=...) trains in a folder of that name."""

    def train(name, *, clock=None, resume=False, watch=lambda event: None, **keys):
        clock = clock or Ticking()
        base = {"evaluate": {"greedy": False}, "checkpoint": {"keep_last": 9}, "verify": {"workers": 0}}
        base["rollout"] = {"engine": clock.engine}
        changed = {k: {**base.get(k, {}), **v} if isinstance(v, dict) else v for k, v in keys.items()}
        config = smallest(**{**base, **changed, "output": str(tmp_path / name)})
        return fit(resolve_members(validate(config), tmp_path), resume=resume, watch=watch, now=clock)

    return train


def test_a_run_ends_after_its_hours_of_training(run):
    events = []
    result = run("run", steps=6, max_hours=2.5 * MINUTE, watch=events.append)
    assert (result.steps, result.interrupted, checkpoints(result.folder)) == (3, False, ["step-000003"])
    assert evaluations(result.folder)[0] == [0, 3]
    rows = read_metrics(result.folder)
    assert [row.get("time/training_hours") for row in rows] == pytest.approx([MINUTE, 2 * MINUTE, 3 * MINUTE, None])
    assert [rows[i]["eval/training_hours"] for i in (0, 3)] == pytest.approx([0, 3 * MINUTE])
    assert any("3 of 6" in e.text for e in events if isinstance(e, Notice))
    before = (result.folder / "metrics.jsonl").read_bytes()
    assert run("run", steps=6, max_hours=2.5 * MINUTE, resume=True).steps == 3
    assert (result.folder / "metrics.jsonl").read_bytes() == before, "a run that is over does nothing again"
    longer = run("run", steps=6, max_hours=4 * MINUTE, resume=True)
    assert (longer.steps, evaluations(result.folder)[0]) == (4, [0, 3, 4])
    assert run("run", steps=6, max_hours=0, resume=True).steps == 6


def test_evaluations_and_checkpoints_by_the_minute(run):
    every = {"evaluate": {"every_minutes": 2}, "checkpoint": {"every": 0, "every_minutes": 2.5}}
    result = run("run", steps=7, **every)
    assert evaluations(result.folder)[0] == [0, 2, 4, 6, 7]
    assert checkpoints(result.folder) == ["step-000003", "step-000005", "step-000007"]
    both = {"evaluate": {"every": 3, "every_minutes": 2}, "checkpoint": {"every": 0}}
    assert evaluations(run("both", steps=7, **both).folder)[0] == [0, 2, 3, 4, 6, 7]


def test_a_resume_goes_on_at_the_hour_at_which_the_run_broke_off(run):
    """Another process, whose clock begins elsewhere; half a step's minute that was lost is not counted."""
    keys = {"steps": 7, "max_hours": 5 * MINUTE, "evaluate": {"every_minutes": 2}}
    whole = run("whole", **keys)
    assert evaluations(whole.folder)[0] == [0, 2, 4, 5]
    for moment, before in (("rollout", 2), ("evaluate", 4)):
        name = f"{moment} {before}"
        with pytest.raises(RuntimeError, match="on purpose"):
            run(name, clock=Ticking(breaks=before, moment=moment), **keys)
        assert checkpoints(whole.folder.with_name(name)) == [f"step-00000{before}"]
        resumed = run(name, clock=Ticking(77.0), resume=True, **keys)
        assert resumed.steps == 5
        assert_same(whole, resumed)


def test_a_run_without_the_clock_knows_nothing_of_it_and_may_ask_later(run):
    result = run("run", steps=2)
    state = json.loads((Path(result.model) / "trainer.json").read_text())["state"]
    assert "clock" not in state
    assert not any("hours" in name for row in read_metrics(result.folder) for name in row)
    later = run("run", steps=9, max_hours=3 * MINUTE, resume=True)
    assert later.steps == 2 + 3, "it counts from the resume that asks for it"


def test_the_machines_own_clock_is_the_default(smallest):
    """So few hours that every step exceeds them."""
    result = winnow.train(**smallest(steps=4, max_hours=1e-9), watch=lambda event: None)
    assert (result.steps, result.interrupted) == (1, False)
