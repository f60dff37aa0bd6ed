"""Terms by hand, and what the objective does with them."""

from __future__ import annotations

import math

import pytest
import torch

from winnow.algos.kl import entropy, kl
from winnow.algos.loss import reinforce
from winnow.algos.objective import Objective, Term
from winnow.records import PolicyOutput
from winnow.testing import micro_batch


def output(logprobs, entropies=None):
    return PolicyOutput(
        logprobs=torch.tensor(logprobs, dtype=torch.float64, requires_grad=True),
        entropy=None if entropies is None else torch.tensor(entropies, dtype=torch.float64),
    )


# p = 0.5, p_ref = 0.25: d = -log 2
@pytest.mark.parametrize(
    ("estimator", "value", "slope"),
    [
        ("k1", math.log(2), 1.0),
        ("k2", math.log(2) ** 2 / 2, math.log(2)),
        ("k3", 0.5 + math.log(2) - 1, 1 - 0.5),
    ],
)
def test_kl_estimators(estimator, value, slope):
    out = output([math.log(0.5)])
    mb = micro_batch([0.0], ref_logprobs=torch.tensor([math.log(0.25)], dtype=torch.float64))
    term = kl(out, mb, estimator=estimator)
    assert term.item() == pytest.approx(value)
    assert torch.autograd.grad(term.sum(), out.logprobs)[0].item() == pytest.approx(slope)


# d = log p_ref - log p: value and slope by the log-prob; k3 beyond d = 20 has the tangent of e^d
EXTREME = [
    ("k1", 95.0, -95.0, 1.0),
    ("k2", 95.0, 95.0**2 / 2, -95.0),
    ("k3", 95.0, 76 * math.exp(20) - 96, 1 - math.exp(20)),
    ("k3", -95.0, 94.0, 1.0),
    ("k3", 18.0, math.exp(18) - 19, 1 - math.exp(18)),
]


@pytest.mark.parametrize(("estimator", "d", "value", "slope"), EXTREME)
def test_kl_estimators_are_finite_in_float32_at_extreme_ratios(estimator, d, value, slope):
    logprobs = torch.tensor([-100.0], requires_grad=True)
    term = kl(
        PolicyOutput(logprobs=logprobs), micro_batch([0.0], ref_logprobs=logprobs.detach() + d), estimator=estimator
    )
    assert term.item() == pytest.approx(value, rel=1e-6)
    assert torch.autograd.grad(term.sum(), logprobs)[0].item() == pytest.approx(slope, rel=1e-6)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_k1_and_k3_estimate_the_divergence_without_bias(estimator):
    """Over p = (0.5, 0.3, 0.2) and p_ref = (0.2, 0.2, 0.6), the mean under p is sum p log(p / p_ref)."""
    p, ref = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64)
    mb = micro_batch([0.0] * 3, ref_logprobs=ref.log())
    expected = (p * kl(PolicyOutput(logprobs=p.log()), mb, estimator=estimator)).sum()
    assert expected.item() == pytest.approx((p * (p / ref).log()).sum().item(), rel=1e-12)


def test_entropy_is_minimised_negatively():
    assert entropy(output([-1.0], [0.7]), micro_batch([0.0])).tolist() == [-0.7]


def test_terms_are_weighed_and_never_corrected_by_the_importance():
    """Token 1: 0.5 * (2 * 3 + 0.1 * 0.7); an importance that reached the term would give 0.1 * 1.4."""

    def twice(out, mb):
        return torch.full_like(out.logprobs, 2.0), torch.tensor([True])

    out = output([-1.0], [-0.7])
    mb = micro_batch([3.0], weights=torch.tensor([0.5], dtype=torch.float64))
    value = Objective(reinforce, (Term("entropy", 0.1, entropy),), correction=twice)(out, mb)
    assert value.total.item() == pytest.approx(0.5 * (2 * 3.0 + 0.1 * 0.7))
    assert value.diagnostics["entropy"].tolist() == [0.7]
