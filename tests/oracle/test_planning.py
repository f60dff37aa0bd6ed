"""The planner's law against every outcome of a toy policy, with winnow's own selector and advantages.

The policy chooses among two right and two wrong answers. Within either kind the first has the same share, so that the
gradients of both kinds scatter alike.
"""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest

from winnow.algos import advantage
from winnow.algos.planning import Noise, PassRates, Rule, group_signal, kept_right, second_moment
from winnow.algos.selectors import max_variance
from winnow.records import Group, Outcome, Prompt, Rollout
from winnow.seeds import Rng

FIRST = 0.7
RULES = [Rule(credit, of, eps=0.1) for credit in ("grpo", "dr_grpo", "rloo") for of in ("kept", "group")]


class OneRate:
    """All prompts are solved with one probability."""

    def __init__(self, p):
        self.p = p

    def of_counts(self, n):
        tosses = np.array(list(itertools.product([0, 1], repeat=n)))
        chance = (self.p**tosses * (1 - self.p) ** (1 - tosses)).prod(axis=1)
        return np.bincount(tosses.sum(axis=1), weights=chance, minlength=n + 1)

    def given(self, n):
        return np.full(n + 1, self.p), np.full(n + 1, self.p**2)


@functools.cache
def credited(rewards, m, rule):
    """[n] the advantages of the kept rollouts, 0 elsewhere, by the members themselves."""
    prompt = Prompt(id="p", tokens=np.array([1]), text="", answer="", task="test")
    rollouts = tuple(
        Rollout(index=i, tokens=np.array([2]), logprobs=np.zeros(1), text="", finish="stop", version=0)
        for i in range(len(rewards))
    )
    outcomes = tuple(Outcome(reward=r, correct=r == 1, kind="correct") for r in rewards)
    group = Group(prompt=prompt, rollouts=rollouts, outcomes=outcomes)
    keep = max_variance(group, Rng(("test",)), keep_per_prompt=m)
    options = {"statistics": rule.statistics} | ({"eps": rule.eps} if rule.credit == "grpo" else {})
    return getattr(advantage, rule.credit)([group.fill(keep=keep)], **options)[0], keep


@functools.cache
def enumerated(n, m, p, rule):
    """Mean and second moment of the gradient of a group, and what the policy's scores are."""
    answers = np.array([p * FIRST, p * (1 - FIRST), (1 - p) * FIRST, (1 - p) * (1 - FIRST)])
    scores = np.eye(4) - answers  # gradients of log-probabilities by the logits
    mean, square = np.zeros(4), 0.0
    for drawn in itertools.product(range(4), repeat=n):
        credit, _ = credited(tuple(float(y < 2) for y in drawn), m, rule)
        gradient = credit @ scores[list(drawn)] / min(n, m)
        chance = answers[list(drawn)].prod()
        mean += chance * gradient
        square += chance * float(gradient @ gradient)
    kinds = [scores[:2].T @ [FIRST, 1 - FIRST], scores[2:].T @ [FIRST, 1 - FIRST]]
    delta = kinds[0] - kinds[1]
    within = sum(share * float(((scores[y] - kinds[0]) ** 2).sum()) for y, share in ((0, FIRST), (1, 1 - FIRST)))
    return mean, square, delta, within


CASES = [(n, m, p) for n, m in ((2, 2), (3, 2), (4, 4), (5, 2), (5, 3), (5, 4)) for p in (0.2, 0.6)]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.credit}-{rule.statistics}")
@pytest.mark.parametrize(("n", "m", "p"), CASES)
def test_the_mean_update_is_phi_times_the_gradient_of_the_log_odds(n, m, p, rule):
    mean, square, delta, within = enumerated(n, m, p, rule)
    found = group_signal(OneRate(p), n, m, rule)
    assert mean == pytest.approx(found.signal * delta, abs=1e-12)
    size = float(delta @ delta)
    assert square == pytest.approx(second_moment(found, 1, Noise(within / size, 0.0)) * size)


def test_delta_is_the_gradient_of_the_log_odds():
    """By differences in the logits of the toy policy."""
    p, step = 0.3, 1e-6
    answers = np.array([p * FIRST, p * (1 - FIRST), (1 - p) * FIRST, (1 - p) * (1 - FIRST)])
    logits = np.log(answers)

    def log_odds(by):
        weights = np.exp(logits + by)
        return np.log(weights[:2].sum() / weights[2:].sum())

    slopes = [(log_odds(step * axis) - log_odds(-step * axis)) / (2 * step) for axis in np.eye(4)]
    assert enumerated(2, 2, p, RULES[0])[2] == pytest.approx(slopes)


@pytest.mark.parametrize("n", range(2, 8))
def test_as_many_right_rollouts_are_kept_as_the_selector_keeps(n):
    for m in range(2, n + 1):
        for k in range(n + 1):
            rewards = (1.0,) * k + (0.0,) * (n - k)
            _, keep = credited(rewards, m, RULES[0])
            kept = int(np.array(rewards)[keep].sum())
            assert m * kept - kept**2 == m * kept_right(n, m)[k] - kept_right(n, m)[k] ** 2  # one variance
            assert 0 < kept < m or k in (0, n)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.credit}-{rule.statistics}")
def test_beta_rates_average_the_law_over_prompts(rule):
    """Beta(1, 1) by the midpoints of 100 equal parts; the mean of phi^2 included."""
    found = group_signal(PassRates(1.0, 1.0), 5, 2, rule)
    each = [group_signal(OneRate(p), 5, 2, rule) for p in (np.arange(100) + 0.5) / 100]
    for name in ("signal", "square", "credit", "learning"):
        assert getattr(found, name) == pytest.approx(np.mean([getattr(one, name) for one in each]), rel=1e-3), name
