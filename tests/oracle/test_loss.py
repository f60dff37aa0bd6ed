"""Losses by hand, values and gradients."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from winnow import testing
from winnow.algos.loss import cispo, clip, continued_exp, gspo, raft_plus_plus, reinforce
from winnow.algos.objective import Objective
from winnow.records import MicroBatch, PolicyOutput

(SEQUENCE,) = testing.micro_batch([0.0]).sequences  # losses read only how many there are


def micro_batch(advantages, *, old=None, mask=None, weights=None) -> MicroBatch:
    t = len(advantages)

    def tensor(values, default):
        return torch.tensor([default] * t if values is None else values, dtype=torch.float64)

    return MicroBatch(
        sequences=(SEQUENCE,) * t,
        sequence_index=torch.arange(t),
        trained=None if mask is None else torch.tensor([place for place, trained in enumerate(mask) if trained]),
        advantages=tensor(advantages, 0.0),
        weights=tensor(weights, 1.0),
        behaviour_logprobs=tensor(None, 0.0),
        old_logprobs=None if old is None else tensor(old, 0.0),
    )


def output(logprobs) -> PolicyOutput:
    return PolicyOutput(logprobs=torch.tensor(logprobs, dtype=torch.float64, requires_grad=True))


def gradient(loss, out, mb):
    Objective(loss)(out, mb).total.backward()
    return out.logprobs.grad.tolist()


def test_reinforce():
    out, mb = output([-1.0, -2.0]), micro_batch([3.0, -0.5])
    assert reinforce(out, mb)[0].tolist() == [3.0, -1.0]
    assert gradient(reinforce, out, mb) == [-3.0, 0.5]


# ratio, advantage, loss, gradient w.r.t. the log-prob, clipped: with clip_low = clip_high = 0.2
CLIPPED = [
    (1.0, 2.0, -2.0, -2.0, 0),
    (1.5, 2.0, -2.4, 0.0, 1),  # already 1.2 times likelier: no further push up
    (1.5, -2.0, 3.0, 3.0, 0),  # likelier though bad: pushed down
    (0.5, 2.0, -1.0, -1.0, 0),  # less likely though good: pushed up
    (0.5, -2.0, 1.6, 0.0, 1),
]


@pytest.mark.parametrize(("ratio", "advantage", "loss", "slope", "clipped"), CLIPPED)
def test_clip(ratio, advantage, loss, slope, clipped):
    out, mb = output([math.log(ratio)]), micro_batch([advantage], old=[0.0])
    values, seen = clip(out, mb)
    assert values.tolist() == pytest.approx([loss])
    assert seen["clip_fraction"].tolist() == [bool(clipped)]
    assert seen["ratio"].tolist() == pytest.approx([ratio])
    assert gradient(clip, out, mb) == pytest.approx([slope])


def test_clip_higher_reaches_the_loss():
    """A ratio of 1.25 is clipped at high = 0.2 and free at 0.28."""
    out, mb = output([math.log(1.25)]), micro_batch([1.0], old=[0.0])
    assert clip(out, mb, clip_high=0.2)[0].item() == pytest.approx(-1.2)
    assert clip(out, mb, clip_high=0.28)[0].item() == pytest.approx(-1.25)


def test_clip_without_old_logprobs_has_ratio_one():
    out, mb = output([-0.7]), micro_batch([2.0])
    values, seen = clip(out, mb)
    assert values.tolist() == [-2.0]
    assert seen["ratio"].tolist() == [1.0]
    assert gradient(clip, out, mb) == [-2.0]


def test_dual_clip_bounds_the_loss_of_a_bad_token():
    """Ratio 5, advantage -2: the loss 10 stops at 3 * 2."""
    out, mb = output([math.log(5.0)]), micro_batch([-2.0], old=[0.0])
    assert clip(out, mb)[0].item() == pytest.approx(10.0)
    assert clip(out, mb, dual=3.0)[0].item() == pytest.approx(6.0)
    assert gradient(lambda o, m: clip(o, m, dual=3.0), out, mb) == [0.0]


# ratio, advantage, loss, gradient: only good tokens count, up to 1.28
RAFT_PLUS_PLUS = [
    (1.0, 1.0, -1.0, -1.0),
    (1.25, 1.0, -1.25, -1.25),
    (1.5, 1.0, -1.28, 0.0),
    (0.5, 1.0, -0.5, -0.5),
    (0.5, -1.0, 0, 0),
]


@pytest.mark.parametrize(("ratio", "advantage", "loss", "slope"), RAFT_PLUS_PLUS)
def test_raft_plus_plus(ratio, advantage, loss, slope):
    out, mb = output([math.log(ratio)]), micro_batch([advantage], old=[0.0])
    assert raft_plus_plus(out, mb)[0].tolist() == pytest.approx([loss])
    assert gradient(raft_plus_plus, out, mb) == pytest.approx([slope])


# ratio, advantage, gradient: the weight stops at 5, the gradient does not
CISPO = [(1.0, 2.0, -2.0), (0.5, 2.0, -1.0), (8.0, 2.0, -10.0), (8.0, -2.0, 10.0)]


@pytest.mark.parametrize(("ratio", "advantage", "slope"), CISPO)
def test_cispo(ratio, advantage, slope):
    out, mb = output([math.log(ratio)]), micro_batch([advantage], old=[0.0])
    values, seen = cispo(out, mb)
    assert values.item() == pytest.approx(slope * math.log(ratio))
    assert seen["clip_fraction"].item() == (ratio > 5)
    assert gradient(cispo, out, mb) == pytest.approx([slope])


def test_gspo_has_one_ratio_per_rollout():
    """Two rollouts of 2 tokens: ratios 2 and 1/2 make 1, ratios 2 and 2 make 2; the second is clipped at 1.5."""
    out = output([math.log(2), math.log(0.5), math.log(2), math.log(2)])
    mb = dataclasses.replace(
        micro_batch([1.0, 1.0, 3.0, 3.0], old=[0.0] * 4), sequence_index=torch.tensor([0, 0, 1, 1])
    )
    values, seen = gspo(out, mb, clip_low=0.5, clip_high=0.5)
    assert seen["ratio"].tolist() == pytest.approx([1.0, 1.0, 2.0, 2.0])
    assert values.tolist() == pytest.approx([-1.0, -1.0, -4.5, -4.5])
    assert seen["clip_fraction"].tolist() == [False, False, True, True]
    assert gradient(lambda o, m: gspo(o, m, clip_low=0.5, clip_high=0.5), out, mb) == pytest.approx(
        [-1.0, -1.0, 0.0, 0.0]
    )


def test_gspo_follows_the_gradient_of_its_sequence_form():
    """-s A per rollout, s = exp(mean log ratio), against the token form averaged over the rollout's 3 tokens."""
    logprobs = torch.tensor([-0.1, -0.9, -0.4], dtype=torch.float64, requires_grad=True)
    old = torch.tensor([-0.3, -0.5, -0.6], dtype=torch.float64)
    (expected,) = torch.autograd.grad(-2.0 * (logprobs - old).mean().exp(), logprobs)
    mb = dataclasses.replace(micro_batch([2.0] * 3, old=old.tolist()), sequence_index=torch.zeros(3, dtype=torch.int64))
    found = gradient(lambda o, m: gspo(o, m, clip_low=1.0, clip_high=9.0), PolicyOutput(logprobs=logprobs), mb)
    assert [g / 3 for g in found] == pytest.approx(expected.tolist())


# The token log-ratios of a rollout, whose product of ratios would overflow in float32 or be 0
SPREAD = [(-95.0, 88.0), (88.0, -95.0), (-200.0, 199.5), (90.0, 90.0, -180.5), (-120.0, -120.0)]


@pytest.mark.parametrize("log_ratios", SPREAD)
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_gspo_is_the_exponential_of_the_mean_in_float32(log_ratios, advantage):
    """exp(mean) A at every token and as its slope, as in float64; clip bounds that never act."""
    mean = math.exp(sum(log_ratios) / len(log_ratios))
    for dtype in (torch.float32, torch.float64):
        logprobs = torch.tensor(log_ratios, dtype=dtype, requires_grad=True)
        one = testing.micro_batch([advantage] * len(log_ratios))
        mb = dataclasses.replace(
            one, old_logprobs=torch.zeros(len(log_ratios), dtype=dtype), advantages=one.advantages.to(dtype)
        )
        values, seen = gspo(PolicyOutput(logprobs=logprobs), mb, clip_low=1.0, clip_high=9.0)
        (slope,) = torch.autograd.grad(values.sum(), logprobs)
        assert values.tolist() == pytest.approx([-mean * advantage] * len(log_ratios), rel=1e-5)
        assert slope.tolist() == pytest.approx([-mean * advantage] * len(log_ratios), rel=1e-5)
        assert seen["ratio"].tolist() == pytest.approx([mean] * len(log_ratios), rel=1e-5)


def test_a_ratio_is_exact_up_to_e_20_and_its_tangent_above():
    """At 25 the tangent of e^x at 20 is e^20 (1 + 5), and its slope e^20; in float32 e^95 would be infinite."""
    x = torch.tensor([-95.0, 0.0, 19.0, 25.0, 95.0], requires_grad=True)
    values = continued_exp(x)
    (slope,) = torch.autograd.grad(values.sum(), x)
    top = math.exp(20)
    assert values.tolist() == pytest.approx([0, 1, math.exp(19), 6 * top, 76 * top], rel=1e-6)
    assert slope.tolist() == pytest.approx([0, 1, math.exp(19), top, top], rel=1e-6)


@pytest.mark.parametrize(("advantage", "slope"), [(1.0, 0.0), (-1.0, math.exp(20))])
def test_clip_has_a_gradient_of_the_right_sign_at_a_ratio_beyond_float32(advantage, slope):
    """A good token is clipped. A bad one is pushed down, by the slope of the tangent."""
    logprobs = torch.tensor([-1.0], requires_grad=True)
    mb = dataclasses.replace(
        testing.micro_batch([advantage], old=[-96.0]),
        advantages=torch.tensor([advantage]),
        old_logprobs=torch.tensor([-96.0]),
    )
    values, seen = clip(PolicyOutput(logprobs=logprobs), mb)
    (found,) = torch.autograd.grad(values.sum(), logprobs)
    assert found.item() == pytest.approx(slope, rel=1e-6)
    assert math.isfinite(values.item())
    assert seen["clip_fraction"].tolist() == [advantage > 0]


def test_the_objective_weighs_and_corrects():
    """0.5 * 2 * (-3) + 0.25 * 1 * 4 for losses -3 and 4."""

    def first_twice(out, mb):
        return torch.tensor([2.0, 1.0]), torch.tensor([True, False])

    out, mb = output([-1.0, -1.0]), micro_batch([-3.0, 4.0], weights=[0.5, 0.25])
    value = Objective(reinforce, correction=first_twice)(out, mb)
    assert value.total.item() == pytest.approx(0.5 * 2 * -3.0 + 0.25 * 4.0)


@pytest.mark.parametrize("loss", [reinforce, clip])
def test_a_masked_nan_reaches_neither_value_nor_gradient(loss):
    out = output([-1.0, math.nan, -2.0])
    mb = micro_batch([1.0, math.nan, 1.0], old=[-1.0, math.nan, -2.0], mask=[True, False, True])
    value = Objective(loss)(out, mb)
    value.total.backward()
    assert math.isfinite(value.total.item())
    assert out.logprobs.grad.tolist() == [-1.0, 0.0, -1.0]
    assert all(len(seen) == 2 for seen in value.diagnostics.values())
