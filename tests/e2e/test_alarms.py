"""Alarms of real runs of a tiny policy: each is raised on a run that is built for it, told once, and written down."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

import winnow
from refusals import refused
from winnow.alarms.rules import ALARMS
from winnow.alarms.watch import PREFIX, alarms_of_run
from winnow.config import dump
from winnow.config_file import validate
from winnow.core import loop
from winnow.engines.hf_generate import HuggingFace
from winnow.state.logbook import read_metrics


def train(config, **options):
    """(the rows of the log, the alarms that were told)"""
    events = []
    result = winnow.train(**config, **options, watch=events.append, progress=False)
    return read_metrics(result.folder), [event.alarm for event in events if isinstance(event, winnow.AlarmRaised)]


def told(config, **options):
    """{name: the step at which it was told}, each once."""
    _, alarms = train(config, **options)
    assert len({alarm.name for alarm in alarms}) == len(alarms)
    return {alarm.name: alarm.step for alarm in alarms}


def always_one(prompt, rollout):
    return 1.0


def one_of_the_prompts(prompt, rollout):
    """Groups differ, rollouts of a group do not."""
    return float(prompt.id[-1] in "02468")


def half_of_them_fail(prompt, rollout):
    if rollout.index == 1:
        raise RuntimeError("no verdict")
    return float(rollout.index)


def lowest(prompt, rollout):
    return -float(rollout.tokens.mean())


def longest(prompt, rollout):
    return float(len(rollout.tokens))


def loud(context):
    """Samples at another temperature than it says."""
    engine = HuggingFace(context)
    sample = engine.generate

    def hotter(prompts, counts, sampling, **more):
        return sample(prompts, counts, dataclasses.replace(sampling, temperature=3.0), **more)

    engine.generate = hotter
    return engine


def still(context):
    """Says that it loads the policy's weights, and keeps those that it began with."""
    engine = HuggingFace(context)
    engine.load = lambda weights, version: setattr(engine, "version", version)
    return engine


def never_finite(out, mb):
    return out.logprobs * float("nan"), {}


CUT = ["all_truncated"]  # a policy of random weights never ends by itself
STRONG = {"learning_rate": 0.3, "max_grad_norm": 100.0}
AT_RANDOM = {"terms": [{"use": "entropy", "coefficient": 1.0}], "optimizer": {"learning_rate": 5e-3}}
BUILT = {  # what it raises: the changes to the smallest healthy configuration
    ("constant_reward", "nothing_trained"): {"steps": 5, "reward": always_one},
    "all_flat": {"steps": 5, "reward": one_of_the_prompts},
    "all_truncated": {"steps": 5, "rollout": {"max_new_tokens": 1}},
    "unparsable": {"steps": 5, "reward": {"use": "r1_zero"}},
    "verifier_failures": {"steps": 1, "reward": half_of_them_fail, "verify": {"max_failure_share": 0.9}},
    "parity": {"steps": 1, "rollout": {"engine": loud}},
    "engine_lags": {
        "steps": 10, "reward": lowest, "select": "all", "rollout": {"engine": still},
        "optimizer": {"learning_rate": 1e-2},
    },
    "not_finite": {"steps": 1, "loss": never_finite},
    "kl_drift": {"steps": 8, "reward": longest, "optimizer": STRONG, "terms": [{"use": "kl", "coefficient": 1e-6}]},
    ("ratio_drift", "clip_fraction"): {
        "steps": 5, "reward": longest, "optimizer": STRONG, "update": {"epochs": 4},
    },
    "entropy_collapse": {
        "steps": 14, "reward": lowest, "optimizer": {"learning_rate": 1e-1}, "alarms": {"entropy_floor": 0.5},
    },
    "entropy_explosion": {"steps": 14, "model": {"path": "bundled"}, "select": "all", **AT_RANDOM},
    "values_untrained": {
        "steps": 1, "advantage": "gae", "critic": {"optimizer": {"learning_rate": 1e-2}}, "select": "none_of_them",
    },
}  # fmt: skip


@pytest.mark.parametrize("names", BUILT, ids=lambda names: names if isinstance(names, str) else " and ".join(names))
def test_a_run_that_is_built_to_raise_an_alarm_raises_it(names, smallest):
    changes = dict(BUILT[names])
    if changes.get("select") == "none_of_them":
        changes["select"] = lambda group, rng: [False] * len(group.rollouts)
    config = smallest(rollout={"prompts_per_step": 8, "rollouts_per_prompt": 4} | changes.pop("rollout", {}), **changes)
    rows, alarms = train(config)
    for name in [names] if isinstance(names, str) else names:
        (alarm,) = (alarm for alarm in alarms if alarm.name == name)
        first = next(row for row in rows if row.get(f"{PREFIX}{name}"))
        assert first["step"] == alarm.step
        assert alarm.text.startswith(f"step {alarm.step}: {name}: ")
        assert alarm.evidence
        for key in alarm.keys:
            assert f"{key} (" in alarm.text


def test_a_run_that_is_well_raises_none(smallest):
    rows, alarms = train(smallest(steps=8, evaluate={"every": 2}, alarms={"off": CUT}))
    assert alarms == []
    assert not any(name.startswith(PREFIX) for row in rows for name in row)


def clean(folder):
    """The log without what the clock and the memory said."""
    of_the_machine = ("seconds/", "memory/", "eval/seconds")
    lines = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(of_the_machine)} for row in lines]


def test_a_resumed_run_raises_the_alarms_of_an_uninterrupted_one(smallest, tmp_path):
    """Stopped in the middle of symptoms that take several steps, an evaluation at the boundary included."""

    def config(name, steps):
        changes = {"evaluate": {"every": 3}, "alarms": {"untrained_steps": 5, "clear_steps": 2, "off": CUT}}
        return smallest(steps=steps, output=str(tmp_path / name), reward=always_one, **changes)

    rows, whole = train(config("whole", 9))
    assert {alarm.name for alarm in whole} == {"constant_reward", "nothing_trained"}
    _, before = train(config("parts", 3))
    _, then = train(config("parts", 6), resume=True)
    _, after = train(config("parts", 9), resume=True)
    assert [*before, *then, *after] == whole
    assert clean(tmp_path / "parts") == clean(tmp_path / "whole")
    assert alarms_of_run(rows, dump(validate(config("whole", 9))))[0].step == whole[0].step


def test_the_log_of_a_finished_run_tells_what_was_told_as_it_went_on(smallest):
    config = smallest(steps=9, reward=always_one)
    rows, alarms = train(config)
    again = alarms_of_run(rows, dump(validate(config)))
    assert [(a.step, a.name, a.text, a.keys) for a in again] == [(a.step, a.name, a.text, a.keys) for a in alarms]
    assert {a.last for a in again} == {8}


def test_alarms_may_change_at_a_resume_and_a_name_that_is_none_is_refused(smallest):
    train(smallest(steps=2, reward=always_one))
    assert told(smallest(steps=6, reward=always_one, alarms={"off": ["constant_reward", *CUT]}), resume=True) == {
        "nothing_trained": 2,
        "all_flat": 4,
    }
    with refused(winnow.ConfigError, "alarms.off", "al_flat", "all_flat"):
        winnow.train(**smallest(alarms={"off": ["al_flat"]}))
    assert len(ALARMS) == len({kind.name for kind in ALARMS})


def test_the_evaluation_after_the_last_step_can_raise_an_alarm(smallest, monkeypatch):
    """No step follows it. What is measured is put in its place: 90%, then 10% of 1,000 problems."""
    measured = iter((0.9, 0.1))

    def evaluation(run, phases):
        chance = next(measured)
        error = (chance * (1 - chance) / 1000) ** 0.5
        return {"eval/accuracy_sampled": chance, "eval/accuracy_sampled_sem": error, "eval/seconds": 0.0}

    monkeypatch.setattr(loop, "_evaluation_metrics", evaluation)
    rows, alarms = train(smallest(steps=1))
    assert [(alarm.name, alarm.step) for alarm in alarms] == [("sudden_drop", 1)]
    assert [(alarm.name, alarm.step) for alarm in alarms_of_run(rows)] == [("sudden_drop", 1)]
