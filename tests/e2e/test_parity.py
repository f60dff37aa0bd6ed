"""The engine samples the policy that is trained, or an alarm goes off; and what a run starts, it ends."""

from __future__ import annotations

import pytest

import winnow
from winnow.config import validate
from winnow.engines.hf import HuggingFace
from winnow.fit import Notice, Started
from winnow.report.evaluation import evaluate_model
from winnow.state.logbook import read_metrics


class Stale(HuggingFace):
    """Takes the version of new weights, and not the weights."""

    def load(self, weights, version):
        self.version = version


def stale(context):
    return Stale(context)


class Closing(HuggingFace):
    """Knows whether it was closed."""

    closed = 0

    def close(self):
        Closing.closed += 1


def closing(context):
    return Closing(context)


def broken(context):
    engine = Closing(context)
    engine.load = None  # cannot be called
    return engine


def trained(config):
    events = []
    result = winnow.train(**config, watch=events.append)
    rows = [row for row in read_metrics(result.folder) if "policy/parity_alarm" in row]
    return rows, events


def alarms(events):
    return [e.text for e in events if isinstance(e, Notice) and "did not sample what is trained" in e.text]


def test_stale_weights_trip_the_alarm_within_a_step_of_the_first_update(smallest):
    rows, events = trained(smallest(steps=3, rollout={"engine": stale}))
    assert [row["policy/parity_alarm"] for row in rows] == [0.0, 1.0, 1.0]
    (text,) = alarms(events)  # said once, while it lasts
    assert text.startswith("step 1: the engine 'stale' did not sample what is trained")
    assert f"{rows[1]['policy/logprob_gap_max']:.2g} at most (it declares 0.001)" in text
    assert "with the weights of version 1" in text
    assert "weights that it did not take over, another temperature, or reduced precision" in text


@pytest.mark.parametrize("engine", ["native", "hf"])
def test_an_intact_engine_trips_no_alarm(smallest, engine):
    rows, events = trained(smallest(steps=5, rollout={"engine": engine}))
    assert [row["policy/parity_alarm"] for row in rows] == [0.0] * 5
    assert {row["policy/ratio_outside"] for row in rows} == {0.0}
    assert alarms(events) == []


def test_another_temperature_trips_the_alarm_in_the_first_step(smallest):
    def cold(context):
        engine = HuggingFace(context)
        sample = engine.generate

        def colder(prompts, counts, sampling, **more):
            return sample(prompts, counts, winnow.Sampling(max_new_tokens=8, temperature=0.5), **more)

        engine.generate = colder
        return engine

    _, events = trained(smallest(steps=1, rollout={"engine": cold}))
    assert alarms(events)[0].startswith("step 0: the engine 'cold'")


def test_text_that_no_model_wrote_is_no_alarm(smallest):
    """`scripted` declares no tolerance: its log-probs are nobody's."""
    script = {"use": "scripted", "script": ["a", "bb", "c c", "dd d"]}
    rows, events = trained(smallest(steps=2, rollout={"engine": script}))
    assert [row["policy/parity_alarm"] for row in rows] == [0.0, 0.0]
    assert rows[0]["policy/logprob_gap_max"] > 1
    assert alarms(events) == []


def test_a_run_says_which_device_does_what_and_logs_the_memory_of_every_phase(smallest):
    rows, events = trained(smallest(steps=1))
    (started,) = [e for e in events if isinstance(e, Started)]
    assert started.devices[0].startswith("devices      policy on cpu; native samples on cpu")
    assert any("activations" in line for line in started.devices)
    for phase in ("generate", "verify", "select", "annotate", "update", "sync"):
        assert rows[0][f"memory/{phase}/cpu/peak_resident"] > 10


def test_a_run_closes_its_engine_however_it_ends(smallest):
    before = Closing.closed
    winnow.train(**smallest(steps=1, rollout={"engine": closing}), watch=lambda event: None)
    assert Closing.closed == before + 1


def test_an_evaluation_closes_its_engine(smallest, tmp_path):
    before = Closing.closed
    evaluate_model(validate(smallest(rollout={"engine": closing})), tmp_path)
    assert Closing.closed == before + 1


def test_a_run_that_fails_closes_its_engine_too(smallest):
    before = Closing.closed
    with pytest.raises(TypeError):
        winnow.train(**smallest(steps=1, rollout={"engine": broken}), watch=lambda event: None)
    assert Closing.closed == before + 1
