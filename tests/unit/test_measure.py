from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from winnow.algos.objective import Value
from winnow.learner.optim import UpdateResult
from winnow.measure import Tally

TAKEN = UpdateResult(grad_norm=2.0, learning_rate=0.1, skipped=False)
SKIPPED = UpdateResult(grad_norm=math.nan, learning_rate=0.1, skipped=True)


def add(tally, loss, *, gap):
    """A micro-batch of two tokens, both trained, whose log-probs are off by `gap`."""
    mb = SimpleNamespace(behaviour_logprobs=torch.zeros(2), mask=torch.tensor([True, True]))
    out = SimpleNamespace(logprobs=torch.full((2,), gap, dtype=torch.float64))
    tally.add(Value(torch.tensor(loss), {}), out, mb)


def test_the_gap_is_that_of_the_weights_that_sampled_also_after_an_empty_batch():
    tally = Tally()
    tally.close(SKIPPED)
    add(tally, 1.0, gap=0.25)
    tally.close(TAKEN)
    add(tally, 1.0, gap=8.0)
    tally.close(TAKEN)

    assert tally.metrics()["policy/logprob_gap_mean"] == 0.25
    assert tally.metrics()["policy/logprob_gap_max"] == 0.25


def test_the_loss_is_the_mean_over_the_updates_taken():
    tally = Tally()
    add(tally, math.inf, gap=0.0)
    tally.close(SKIPPED)
    add(tally, 1.0, gap=0.0)
    add(tally, 2.0, gap=0.0)
    tally.close(TAKEN)
    add(tally, 5.0, gap=0.0)
    tally.close(TAKEN)

    metrics = tally.metrics()
    assert metrics["policy/loss"] == pytest.approx((1 + 2 + 5) / 2)
    assert (metrics["policy/skipped_updates"], metrics["budget/updates"]) == (1, 2)


def test_without_an_update_there_is_no_loss():
    tally = Tally()
    add(tally, math.inf, gap=0.5)
    tally.close(SKIPPED)
    assert "policy/loss" not in tally.metrics()
