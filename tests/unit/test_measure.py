from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from winnow.algos.objective import Value
from winnow.learner.optim import UpdateResult
from winnow.measure import Clock, Parity, Tally
from winnow.metrics import check

TAKEN = UpdateResult(grad_norm=2.0, learning_rate=0.1, skipped=False)
SKIPPED = UpdateResult(grad_norm=math.nan, learning_rate=0.1, skipped=True)


def add(tally, loss, *, gap):
    """A micro-batch of two tokens, both trained, whose log-probs are off by `gap`."""
    mb = SimpleNamespace(behaviour_logprobs=torch.zeros(2), mask=torch.tensor([True, True]))
    out = SimpleNamespace(logprobs=torch.full((2,), gap, dtype=torch.float64))
    tally.add(Value(torch.tensor(loss), {}), out, mb)


def test_the_gap_is_that_of_the_weights_that_sampled_also_after_an_empty_batch():
    tally = Tally(Parity(tolerance=0.3, max_outside=0.1))
    tally.close(SKIPPED)
    add(tally, 1.0, gap=0.25)
    tally.close(TAKEN)
    add(tally, 1.0, gap=8.0)
    tally.close(TAKEN)

    assert tally.metrics()["policy/logprob_gap_mean"] == 0.25
    assert tally.metrics()["policy/logprob_gap_max"] == 0.25


def test_the_loss_is_the_mean_over_the_updates_taken():
    tally = Tally(Parity(tolerance=0.3, max_outside=0.1))
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
    tally = Tally(Parity(tolerance=0.3, max_outside=0.1))
    add(tally, math.inf, gap=0.5)
    tally.close(SKIPPED)
    assert "policy/loss" not in tally.metrics()


def parity(policy, engine, *, tolerance=0.1, max_outside=0.5):
    found = Parity(tolerance, max_outside)
    found.add(torch.tensor(policy, dtype=torch.float64), torch.tensor(engine, dtype=torch.float64))
    return found


def test_parity_counts_the_ratios_outside_the_band():
    """p_policy / p_engine of 1, 0.79, 1.26 and 0.81: two of four are outside [0.8, 1.25]."""
    logs = [math.log(ratio) for ratio in (1.0, 0.79, 1.26, 0.81)]
    metrics = parity(logs, [0.0] * 4, tolerance=1.0, max_outside=0.5).metrics()
    assert metrics["policy/ratio_outside"] == 0.5
    assert metrics["policy/logprob_gap_max"] == pytest.approx(-math.log(0.79))
    assert metrics["policy/logprob_gap_mean"] == pytest.approx(sum(map(abs, logs)) / 4)
    assert metrics["policy/parity_alarm"] == 0.0


@pytest.mark.parametrize(
    ("policy", "limits", "alarm"),
    [
        ([0.09, 0.0], {}, False),
        ([0.11, 0.0], {}, True),  # one gap above the tolerance
        ([0.3, 0.0], {"tolerance": 1.0}, False),
        ([0.3, 0.0], {"tolerance": 1.0, "max_outside": 0.4}, True),  # half of the ratios outside
        ([math.nan, 0.0], {}, True),
        ([0.0, math.nan], {}, True),
        ([9.0, 9.0], {"tolerance": math.inf, "max_outside": 0.0}, False),  # declares that it samples something else
    ],
)
def test_an_alarm_is_a_gap_or_a_share_above_its_limit(policy, limits, alarm):
    assert parity(policy, [0.0, 0.0], **limits).alarm is alarm


def test_parity_is_over_all_micro_batches():
    found = parity([0.0, 0.0], [0.0, 0.0])
    found.add(torch.tensor([1.0, 1.0]), torch.zeros(2))
    assert found.metrics()["policy/ratio_outside"] == 0.5
    assert found.alarm


def test_without_a_trained_token_nothing_is_said_of_parity():
    assert Parity(0.1, 0.5).metrics() == {}


def test_a_clock_says_seconds_and_memory_of_every_phase():
    clock = Clock()
    with clock("generate"):
        held = bytearray(64 * 2**20)
    with clock("update"):
        pass
    metrics = clock.metrics()
    check(metrics)
    assert metrics["seconds/generate"] + metrics["seconds/update"] <= metrics["seconds/step"]
    assert (
        len(held) / 2**20 < metrics["memory/generate/cpu/peak_resident"] <= metrics["memory/update/cpu/peak_resident"]
    )
