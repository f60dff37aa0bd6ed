"""The engine samples the policy that is trained, or an alarm goes off; and what a run starts, it ends."""

from __future__ import annotations

import dataclasses
import re

import pytest

import winnow
from winnow.core.events import AlarmRaised, Started
from winnow.engines.hf_generate import HuggingFace
from winnow.state.logbook import read_metrics


class Stale(HuggingFace):
    """Takes the version of new weights, and not the weights."""

    def load(self, weights, version):
        self.version = version


def stale(context):
    return Stale(context)


def cold(context):
    engine = HuggingFace(context)
    sample = engine.generate

    def colder(prompts, counts, sampling, **more):
        return sample(prompts, counts, dataclasses.replace(sampling, temperature=0.5), **more)

    engine.generate = colder
    return engine


class Closing(HuggingFace):
    """Knows whether it was closed."""

    closed = 0

    def close(self):
        Closing.closed += 1


def closing(context):
    return Closing(context)


def broken(context):
    engine = Closing(context)
    engine.load = lambda: None  # takes no weights
    return engine


def trained(config):
    events = []
    result = winnow.train(**config, watch=events.append)
    rows = [row for row in read_metrics(result.folder) if "policy/parity_alarm" in row]
    return rows, events


def alarms(events):
    return [(e.alarm.step, e.alarm.text) for e in events if isinstance(e, AlarmRaised) and e.alarm.name == "parity"]


def test_stale_weights_trip_the_alarm_within_a_step_of_the_first_update(smallest):
    rows, events = trained(smallest(steps=3, rollout={"engine": stale}))
    assert [row["policy/parity_alarm"] for row in rows] == [0.0, 1.0, 1.0]
    ((step, text),) = alarms(events)  # once, while it lasts
    assert step == 1
    for measured in ("mean", "p999", "max"):
        assert f"{rows[1][f'policy/logprob_gap_{measured}']:.2g}" in text
    assert "rollout.engine (stale" in text
    assert [row.get("alarm/parity") for row in rows] == [None, 1.0, 1.0]


@pytest.mark.parametrize("engine", ["native", "hf"])
def test_an_intact_engine_trips_no_alarm(smallest, engine):
    rows, events = trained(smallest(steps=3, rollout={"engine": engine}))
    assert [row["policy/parity_alarm"] for row in rows] == [0.0] * 3
    assert {row["policy/ratio_outside"] for row in rows} == {0.0}
    assert alarms(events) == []


def test_another_temperature_trips_the_alarm_in_the_first_step(smallest):
    _, events = trained(smallest(steps=1, rollout={"engine": cold}))
    assert [step for step, _ in alarms(events)] == [0]


@pytest.fixture
def rounded(smallest):
    """The bundled policy in bfloat16, every token trained: its rarest ones are off by much where all is well."""

    def configuration(engine, *, prompts, steps=1):
        return smallest(
            steps=steps,
            model={"path": "bundled", "dtype": "bfloat16"},
            prompt={"template": "chat"},
            task={"levels": [2, 3, 4], "size": 1024},
            rollout={"engine": engine, "prompts_per_step": prompts, "rollouts_per_prompt": 16, "max_new_tokens": 48},
            reward={"use": one},
            evaluate={"problems": 1, "rollouts_per_prompt": 1},
            verify={"workers": 0},
            select={"keep_per_prompt": 16},
            advantage={"use": "raw"},
            optimizer={"eps": 1e-3},
        )

    return configuration


def one(prompt, rollout):
    return 1.0


def test_the_rarest_tokens_of_reduced_precision_trip_no_alarm(rounded):
    rows, events = trained(rounded("native", prompts=8))
    (row,) = rows
    assert row["policy/parity_alarm"] == 0.0
    assert row["budget/tokens_trained"] > 1000
    assert alarms(events) == []


@pytest.mark.parametrize(("engine", "steps"), [(stale, 2), (cold, 1)])
def test_reduced_precision_hides_no_stale_weights_and_no_temperature(rounded, engine, steps):
    rows, _ = trained(rounded(engine, prompts=2, steps=steps))
    assert [row["policy/parity_alarm"] for row in rows] == [0.0, 1.0][-steps:]


def test_text_that_no_model_wrote_is_no_alarm(smallest):
    """`scripted` declares no tolerance: its log-probs are nobody's."""
    script = {"use": "scripted", "script": ["a", "bb", "c c", "dd d"]}
    rows, events = trained(smallest(steps=2, rollout={"engine": script}))
    assert [row["policy/parity_alarm"] for row in rows] == [0.0, 0.0]
    assert rows[0]["policy/logprob_gap_max"] > 1
    assert alarms(events) == []


def test_a_run_reports_its_devices_and_logs_the_memory_of_each_phase(smallest):
    rows, events = trained(smallest(steps=1))
    (started,) = [e for e in events if isinstance(e, Started)]
    assert {"cpu", "float32", "native"} <= set(re.findall(r"\w+", started.devices[0]))
    assert any("activations" in line for line in started.devices)
    for phase in ("generate", "verify", "select", "logprobs", "update", "sync"):
        assert rows[0][f"memory/{phase}/cpu/peak_resident"] > 10


def test_a_run_closes_its_engine_however_it_ends(smallest):
    before = Closing.closed
    winnow.train(**smallest(steps=1, rollout={"engine": closing}), watch=lambda event: None)
    assert Closing.closed == before + 1


def test_an_evaluation_closes_its_engine(smallest):
    before = Closing.closed
    config = smallest(rollout={"engine": closing})
    winnow.evaluate(config.pop("model")["path"], split="train", **config)
    assert Closing.closed == before + 1


def test_a_run_that_fails_closes_its_engine_too(smallest):
    before = Closing.closed
    with pytest.raises(TypeError):
        winnow.train(**smallest(steps=1, rollout={"engine": broken}), watch=lambda event: None)
    assert Closing.closed == before + 1
