"""A convex problem with hidden answers: with rollouts enough per prompt GVM solves it, with one it does not.

Twelve prompts, two features each, four possible answers of which one is right: log P(right) of a linear softmax is
multinomial logistic regression. The features cannot separate the answers, so the loss has one minimum, above 0, and
the pass rates stay far from 1. What the descent gets of it is what a run gets: rollouts counted by `gvm`, credited by
`raft`, weighed by `unbiased` (Yao et al. 2025, arXiv 2505.02391, Theorems 1 and 2: progress less a term in the
variance).
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

from winnow.algos.advantage import raft
from winnow.algos.weighting import unbiased
from winnow.budget.allocators import gvm, uniform
from winnow.records import KeptRollouts, PromptStats
from winnow.testing import group_of

PROMPTS, FEATURES, ANSWERS = 12, 2, 4
DRAW = np.random.default_rng(3)
X = DRAW.normal(size=(PROMPTS, FEATURES))
RIGHT = DRAW.integers(ANSWERS, size=PROMPTS)
EACH = np.arange(PROMPTS)
RATE, STEPS, SEEDS = 1.0, 100, range(2)


def log_policy(theta):
    """[G, ANSWERS] log P of each answer to each prompt."""
    logits = X @ theta
    return logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)


def loss(theta):
    """The mean of -log P(right)."""
    return float(-log_policy(theta)[EACH, RIGHT].mean())


def scores(theta):
    """[G, ANSWERS, FEATURES, ANSWERS] the gradient of each answer's log P."""
    return np.einsum("gf,gab->gafb", X, np.eye(ANSWERS) - np.exp(log_policy(theta))[:, None, :])


def exact_gradient(theta):
    """Of the loss."""
    return -scores(theta)[EACH, RIGHT].mean(axis=0)


def stats(theta):
    """What an exact probe would find."""
    p = np.exp(log_policy(theta)[EACH, RIGHT])
    norms = np.linalg.norm(scores(theta)[EACH, RIGHT].reshape(PROMPTS, -1), axis=1)
    return PromptStats(ids=("",) * PROMPTS, pass_rate=p, gradient_norm=norms, trials=np.ones(PROMPTS), correct=p)


def estimate(theta, counts, rng):
    """The gradient of the loss from `counts` rollouts, as a step makes it."""
    chances, slopes, known = np.exp(log_policy(theta)), scores(theta), stats(theta)
    answers = [rng.choice(ANSWERS, size=n, p=p) for n, p in zip(counts, chances, strict=True)]
    credits = np.concatenate(raft([_group(a, RIGHT[g]) for g, a in enumerate(answers)]))
    group = np.repeat(np.arange(PROMPTS), counts)
    chosen = np.concatenate(answers)
    weights = unbiased(
        KeptRollouts(
            planned=PROMPTS,
            lengths=np.ones(len(chosen), dtype=np.int64),
            group=group,
            correct=chosen == RIGHT[group],
            generated=counts,
            valid=counts,
            accepted=np.bincount(group, weights=chosen == RIGHT[group], minlength=PROMPTS).astype(np.int64),
            pass_rate=known.pass_rate,
            max_new_tokens=1,
        )
    )
    return -np.einsum("b,bfa->fa", weights * credits, slopes[group, chosen])


def _group(answers, right):
    return group_of((answers == right).astype(float), keep=range(len(answers)))


def descend(allocator, rollouts_per_prompt, seed):
    """The mean loss over the last 30 of 100 steps at a constant rate."""
    rng, theta, found = np.random.default_rng(seed), np.zeros((FEATURES, ANSWERS)), []
    for _ in range(STEPS):
        counts = allocator(stats(theta), rollouts_per_prompt * PROMPTS)
        theta = theta - RATE * estimate(theta, counts, rng)
        found.append(loss(theta))
    return float(np.mean(found[-30:]))


@functools.cache
def minimum():
    theta = np.zeros((FEATURES, ANSWERS))
    for _ in range(1000):
        theta = theta - RATE * exact_gradient(theta)
    return loss(theta)


START = np.log(ANSWERS)  # 1.386; the minimum is 1.126


def test_the_estimate_is_the_gradient_on_average():
    theta = 0.3 * np.random.default_rng(5).normal(size=(FEATURES, ANSWERS))
    rng, counts = np.random.default_rng(6), gvm(stats(theta), 8 * PROMPTS)
    draws = np.array([estimate(theta, counts, rng) for _ in range(300)])
    error = draws.std(axis=0) / np.sqrt(len(draws))
    assert np.all(np.abs(draws.mean(axis=0) - exact_gradient(theta)) < 4 * error)


@pytest.mark.parametrize("seed", SEEDS)
def test_with_16_rollouts_per_prompt_the_loss_falls_to_its_minimum(seed):
    assert descend(gvm, 16, seed) < minimum() + 0.05 * (START - minimum())


@pytest.mark.parametrize("seed", SEEDS)
def test_with_one_rollout_per_prompt_it_does_not_fall(seed):
    """A prompt with little chance is accepted seldom and weighed 1 / p then: the steps throw the policy about."""
    assert descend(gvm, 1, seed) > START + 0.05


@pytest.mark.parametrize("seed", SEEDS)
def test_at_4_rollouts_the_allocation_decides(seed):
    """At the same rollouts and rate, uniform counts fail where GVM's still succeed."""
    assert descend(gvm, 4, seed) < minimum() + 0.1 * (START - minimum())
    assert descend(uniform, 4, seed) > START + 0.05
