"""Corrections by hand, and the gradient that the objective passes on."""

from __future__ import annotations

import functools
import math

import pytest
import torch

from winnow.algos.correction import (
    dppo,
    geometric_mask,
    icepop,
    log_ratio,
    sequence_mask,
    sequence_truncate,
    token_truncate,
    uncorrected,
)
from winnow.algos.loss import clip, reinforce
from winnow.algos.objective import Objective
from winnow.errors import ConfigError
from winnow.records import PolicyOutput
from winnow.testing import micro_batch

# Two rollouts: the policy gives the tokens 4, 1/2 and 1/4, 3 times the probability that the engine sampled them with.
RATIOS = [4.0, 0.5, 0.25, 3.0]
ROLLOUT = torch.tensor([0, 0, 1, 1])
ENGINE = [0.1, 0.6, 0.8, 0.3]


def tensor(numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def output(ratios=RATIOS, engine=ENGINE):
    return PolicyOutput(
        logprobs=tensor([math.log(r * p) for r, p in zip(ratios, engine, strict=True)]).requires_grad_()
    )


def rollouts(advantages=(1.0,) * 4, engine=ENGINE, index=ROLLOUT, old=None):
    return micro_batch(advantages, behaviour_logprobs=tensor(engine).log(), sequence_index=index, old=old)


def corrected(correction, **options):
    importance, acted = correction(output(), rollouts(), **options)
    return importance.tolist(), acted.tolist()


def test_without_a_correction_the_importance_is_1():
    assert corrected(uncorrected) == ([1, 1, 1, 1], [False] * 4)


def test_a_token_s_ratio_is_truncated_above_only():
    importance, acted = corrected(token_truncate, most=2.0)
    assert importance == pytest.approx([2.0, 0.5, 0.25, 2.0])
    assert acted == [True, False, False, True]


def test_a_rollout_s_product_is_truncated_at_all_its_tokens():
    """4 x 1/2 = 2 and 1/4 x 3 = 3/4."""
    importance, acted = corrected(sequence_truncate, most=1.5)
    assert importance == pytest.approx([1.5, 1.5, 0.75, 0.75])
    assert acted == [True, True, False, False]


def test_a_rollout_above_the_bound_is_masked_and_others_keep_their_product():
    importance, acted = corrected(sequence_mask, most=1.5)
    assert importance == pytest.approx([0, 0, 0.75, 0.75])
    assert acted == [True, True, False, False]


@pytest.mark.parametrize(("bounds", "kept"), [((0.8, 1.2), [0, 1]), ((0.8, 1.5), [1, 1]), ((0.9, 1.5), [1, 0])])
def test_the_geometric_mask_reads_the_mean_and_weighs_nothing(bounds, kept):
    """sqrt(2) = 1.41 and sqrt(3/4) = 0.87."""
    importance, acted = corrected(geometric_mask, least=bounds[0], most=bounds[1])
    assert importance == [kept[0], kept[0], kept[1], kept[1]]
    assert acted == [weight == 0 for weight in importance]


def test_the_geometric_mean_does_not_depend_on_the_length():
    """Ratios of 1.02: 1.02^60 = 3.3 in a rollout of 60 tokens, and the mean is 1.02 in that and in one of 2."""
    index = torch.tensor([0] * 60 + [1] * 2)
    mb = micro_batch([1.0] * 62, behaviour_logprobs=tensor([math.log(0.5)] * 62), sequence_index=index)
    out = PolicyOutput(logprobs=tensor([math.log(0.51)] * 62))
    assert geometric_mask(out, mb, least=0.97, most=1.03)[0].tolist() == [1] * 62
    assert sequence_mask(out, mb, most=3.0)[0][[0, 61]].tolist() == pytest.approx([0, 1.02**2])


def test_icepop_masks_on_both_sides_and_weighs_within():
    importance, acted = corrected(icepop, least=0.3, most=3.5)
    assert importance == pytest.approx([0, 0.5, 0, 3.0])
    assert acted == [True, False, True, False]


# p_now, p_engine, advantage, whether DPPO masks it at a total variation of 0.2
DPPO = [
    (0.4, 0.1, 1.0, True),
    (0.4, 0.1, -1.0, False),  # too likely and bad: the update moves it back
    (0.3, 0.6, -1.0, True),
    (0.3, 0.6, 1.0, False),
    (0.2, 0.04, 1.0, False),  # a ratio of 5, and a difference of 0.16
    (0.9, 0.69, 1.0, True),  # a ratio of 1.3, and a difference of 0.21
    (0.4, 0.1, 0.0, False),
]


@pytest.mark.parametrize(("now", "engine", "advantage", "masked"), DPPO)
def test_dppo_masks_updates_away_from_the_engine(now, engine, advantage, masked):
    out, mb = PolicyOutput(logprobs=tensor([now]).log()), rollouts([advantage], [engine], torch.tensor([0]))
    importance, acted = dppo(out, mb, most=0.2)
    assert importance.item() == pytest.approx(0 if masked else now / engine)
    assert acted.item() == masked


def test_dppo_masks_by_the_present_policy_and_weighs_by_the_old_one():
    """The policy was at 0.12 before the updates and is at 0.4 now: rho is 1.2, and the mask reads 0.4 - 0.1."""
    mb = rollouts([-1.0, 1.0], [0.1, 0.1], torch.tensor([0, 1]), old=[math.log(0.12)] * 2)
    importance, acted = dppo(PolicyOutput(logprobs=tensor([0.4, 0.4]).log()), mb)
    assert importance.tolist() == pytest.approx([1.2, 0])
    assert acted.tolist() == [False, True]


def test_dppo_bounds_the_importance_of_a_token_that_its_mask_lets_pass():
    """The engine sampled at 1e-6 what has 0.15 now: a ratio of 150,000, and a difference of 0.15, below 0.2."""
    out, mb = PolicyOutput(logprobs=tensor([0.15]).log()), rollouts([1.0], [1e-6], torch.tensor([0]))
    for options, bound in (({}, 10.0), ({"truncate": 20.0}, 20.0), ({"truncate": 2e5}, 150_000.0)):
        importance, acted = dppo(out, mb, **options)
        assert importance.item() == pytest.approx(bound, rel=1e-5)
        assert acted.item() == (bound < 150_000)
    assert dppo(out, mb, most=0.1)[0].item() == 0


# p_old, p_now, and the importance at a bound of 10 where the engine had 0.001
LATER = [
    (0.001, 0.15, 10 / 150),  # the policy moved in this step: the loss's ratio of 150 would be the weight
    (0.004, 0.1, 10 / 25),  # rho 4 times a ratio of 25
    (0.004, 0.008, 4.0),  # rho 4 times a ratio of 2 is below the bound
    (0.1, 0.05, 10.0),  # rho 100; the policy has moved back
]


@pytest.mark.parametrize(("old", "now", "expected"), LATER)
def test_dppo_bounds_the_importance_times_the_ratio_of_the_loss(old, now, expected):
    """With a clip that never acts the slope is -rho p_now / p_old, at most the bound."""
    mb = rollouts([1.0], [0.001], torch.tensor([0]), old=[math.log(old)])
    out = PolicyOutput(logprobs=tensor([now]).log().requires_grad_())
    wide = functools.partial(clip, clip_low=1.0, clip_high=1e9)
    value = Objective(wide, correction=dppo)(out, mb)
    value.total.backward()
    assert value.importance.item() == pytest.approx(expected)
    assert -out.logprobs.grad.item() == pytest.approx(expected * now / old)
    assert -out.logprobs.grad.item() <= 10 + 1e-9


def test_the_ratio_is_of_the_policy_before_the_updates():
    """In a step of one update there are no old log-probs, and that policy is the present one."""
    old = tensor(ENGINE).log() + 0.3
    assert log_ratio(output(), rollouts(old=old.tolist())).tolist() == pytest.approx([0.3] * 4)
    assert log_ratio(output(), rollouts()).tolist() == pytest.approx([math.log(r) for r in RATIOS])


@pytest.mark.parametrize(
    ("correction", "importance"),
    [
        (token_truncate, [2.0, 0.5, 0.25, 2.0]),
        (sequence_truncate, [2.0, 2.0, 0.75, 0.75]),
        (sequence_mask, [2.0, 2.0, 0.75, 0.75]),
        (geometric_mask, [0.0, 0.0, 0.0, 0.0]),
        (functools.partial(icepop, least=0.3), [4.0, 0.5, 0.0, 3.0]),
        (dppo, [0.0, 0.5, 0.25, 0.0]),  # 0.4 - 0.1 and 0.9 - 0.3 are above 0.2
    ],
)
def test_the_gradient_is_the_importance_times_that_of_the_loss(correction, importance):
    """d(-A log p) / d log p = -A, with A = 1: autograd finds no other path to the log-probs."""
    out = output()
    Objective(reinforce, correction=correction)(out, rollouts()).total.backward()
    assert out.logprobs.grad.tolist() == pytest.approx([-x for x in importance])


def test_the_engine_as_old_policy_puts_the_mismatch_into_the_loss_s_ratio():
    """clip with bounds 0.2 at A = 1: the ratios 4 and 3 are clipped, 1/2 and 1/4 are not; else all are 1."""
    out = output()
    Objective(clip, old="engine")(out, rollouts()).total.backward()
    assert out.logprobs.grad.tolist() == pytest.approx([0, -0.5, -0.25, 0])
    plain = output()
    Objective(clip)(plain, rollouts()).total.backward()
    assert plain.logprobs.grad.tolist() == pytest.approx([-1] * 4)


def test_the_objective_returns_what_the_correction_did():
    value = Objective(reinforce, correction=functools.partial(icepop, least=0.3))(output(), rollouts())
    assert value.importance.tolist() == pytest.approx([4.0, 0.5, 0, 3.0])
    assert value.acted.tolist() == [False, False, True, False]
    assert Objective(reinforce)(output(), rollouts()).importance is None


@pytest.mark.parametrize("answer", [torch.ones(4), (torch.ones(4),), (torch.ones(3), torch.ones(4)), None])
def test_a_correction_with_another_result_is_refused(answer):
    with pytest.raises(ConfigError) as raised:
        Objective(reinforce, correction=lambda out, mb: answer)(output(), rollouts())
    assert (raised.value.key, raised.value.code) == ("correction", "config.member_result")
