"""Training with vLLM as the engine: it samples from the trained policy, and stale weights are reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from winnow.state.logbook import read_rows

TOLERANCE = 1e-3


def metric(reports: list[Any], name: str) -> np.ndarray:
    return np.array([report.metrics[name] for report in reports])


@pytest.mark.parametrize("temperature", [1.0, 0.9])
def test_after_every_update_it_samples_from_the_trained_policy(train, temperature):
    reports = train(steps=4, rollout={"temperature": temperature})
    assert metric(reports, "budget/updates").all()
    assert (metric(reports, "policy/logprob_gap_max") < TOLERANCE).all(), metric(reports, "policy/logprob_gap_max")
    assert np.ptp(metric(reports, "policy/entropy")) > 0.01  # the updates changed what is sampled


@pytest.mark.parametrize("lora", ["auto", "merged", "adapter"])
def test_with_an_adapter_it_samples_from_the_trained_policy(train, lora):
    reports = train(steps=3, engine={"lora": lora}, model={"lora": {"rank": 4}}, optimizer={"learning_rate": 1e-2})
    assert (metric(reports, "policy/logprob_gap_max") < TOLERANCE).all()
    assert np.ptp(metric(reports, "policy/entropy")) > 0.01


def test_weights_that_are_not_copied_are_reported_within_a_step(train, monkeypatch):
    """A planted bug: the worker records the version, and copies nothing."""
    from winnow.engines.vllm.worker import OneByOne

    honest = OneByOne.receive_weights

    def forgetful(self: OneByOne, info: Any) -> None:
        honest(self, info) if info.version == 0 else setattr(self, "_arriving", info.version)

    monkeypatch.setattr(OneByOne, "receive_weights", forgetful)
    reports = train(steps=3)
    gaps, alarms = metric(reports, "policy/logprob_gap_max"), metric(reports, "policy/parity_alarm")
    assert gaps[0] < TOLERANCE
    assert gaps[1] > 10 * TOLERANCE
    assert alarms.tolist() == [0, 1, 1]


def test_it_learns_the_default_task(train):
    rewards = metric(train(steps=20, rollout={"prompts_per_step": 32, "rollouts_per_prompt": 16}), "reward/mean")
    assert rewards[-5:].mean() > rewards[0] + 0.3, rewards


def test_a_resumed_run_ends_as_one_that_was_not_interrupted(train, tmp_path):
    checkpoints = {"checkpoint": {"every": 2}}
    whole = train(steps=4, output=str(tmp_path / "whole"), **checkpoints)
    train(steps=2, **checkpoints)
    resumed = train(steps=4, resume=True, **checkpoints)
    assert [report.step for report in resumed] == [2, 3]
    for a, b in zip(whole[2:], resumed, strict=True):
        assert a.metrics["policy/logprob_gap_max"] < TOLERANCE
        assert a.metrics["reward/mean"] == b.metrics["reward/mean"]
    one, other = (rollouts(tmp_path / name) for name in ("whole", "run"))
    assert len(one) == 4 * 16 * 8
    assert one == other


def rollouts(run: Path) -> list[Any]:
    """The sampled texts, in order."""
    return [row["text"] for row in read_rows(run, columns=["text"])]
