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
from winnow.algos.planning import Noise, Rule, group_signal, kept_counts, second_moment
from winnow.algos.reward_mixture import RewardAtoms, RewardMixture, atoms_of, pass_rates
from winnow.algos.selectors import max_variance
from winnow.budget import selection as budget
from winnow.records import Group, Outcome, Prompt, Rollout
from winnow.seeds import Rng

FIRST = 0.7
RULES = [Rule(credit, of, eps=0.1) for credit in ("grpo", "dr_grpo", "rloo") for of in ("kept", "group")]


def one_rate(p):
    """All prompts are solved with one probability."""
    return pass_rates([p], [1.0])


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
    found = group_signal(one_rate(p), n, m, rule)
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


@pytest.mark.parametrize("levels", [(0.0, 1.0), (0.0, 0.3, 1.0), (-1.0, 0.0, 0.5, 2.0), (1e6, 1e6 + 1.0)])
def test_as_many_rollouts_of_each_level_are_kept_as_the_selector_keeps(levels):
    """Every group of up to 7 rollouts. Two subsets of equal variance are equally good."""
    values = np.array(levels)
    for n in range(2, 8):
        counts = np.array([c for c in itertools.product(range(n + 1), repeat=len(values)) if sum(c) == n])
        for m in range(2, n + 1):
            for row, kept in zip(counts, kept_counts(counts, values, m), strict=True):
                rewards = np.repeat(values, row)
                _, keep = credited(tuple(rewards.tolist()), m, RULES[0])
                assert kept.sum() == m
                assert (kept <= row).all()
                assert np.repeat(values, kept).var() == pytest.approx(rewards[keep].var(), abs=1e-12)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.credit}-{rule.statistics}")
def test_a_mixture_averages_the_law_over_prompts(rule):
    rates, weights = (np.arange(20) + 0.5) / 20, np.arange(1.0, 21.0)
    found = group_signal(pass_rates(rates, weights), 5, 2, rule)
    each = [group_signal(one_rate(p), 5, 2, rule) for p in rates]
    for name in ("signal", "square", "credit", "learning"):
        assert getattr(found, name) == pytest.approx(np.average([getattr(one, name) for one in each], weights=weights))


LEVELS = np.array([0.0, 0.25, 1.0])


@functools.cache
def of_levels(n, m, theta, rule):
    """Mean update by enumeration, and the gradient of theta, for a policy whose logits are theta times the rewards.

    The score of an answer is the gradient by (theta, and a logit that no reward depends on).
    """
    q = np.exp(theta * LEVELS) / np.exp(theta * LEVELS).sum()
    mean, square = 0.0, 0.0
    for drawn in itertools.product(range(len(LEVELS)), repeat=n):
        rewards = LEVELS[list(drawn)]
        credit, _ = credited(tuple(rewards.tolist()), m, rule)
        gradient = float(credit @ (rewards - q @ LEVELS)) / min(n, m)
        mean += q[list(drawn)].prod() * gradient
        square += q[list(drawn)].prod() * gradient**2
    return q, mean, square


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.credit}-{rule.statistics}")
@pytest.mark.parametrize(("n", "m"), [(2, 2), (3, 2), (4, 4), (5, 2), (5, 3)])
def test_with_levels_the_mean_update_is_phi_times_the_gradient_of_the_tilt(n, m, rule):
    for theta in (-1.0, 2.0):
        q, mean, square = of_levels(n, m, theta, rule)
        atoms = RewardAtoms(LEVELS, q[None], np.ones((1, 1)))
        found = group_signal(RewardMixture(atoms, np.ones(1)), n, m, rule)
        assert (found.signal, found.square) == pytest.approx((mean, square), abs=1e-12)


@pytest.mark.parametrize(("n", "m"), [(32, 8), (64, 64)])
def test_many_rollouts_of_several_levels_agree_with_a_simulation(n, m):
    """More outcomes than are enumerated: 8 prompts with 4 rewards, 400 groups each, with the selector itself."""
    rng, values, rule = np.random.default_rng(0), np.array([0.0, 0.2, 0.7, 1.0]), Rule("grpo")
    atoms = atoms_of(values)
    prompts = np.arange(4, 61, 8)
    weights = np.zeros(len(atoms.probabilities))
    weights[prompts] = 1 / len(prompts)
    found = group_signal(RewardMixture(atoms, weights), n, m, rule)
    signals, credits = [], []
    for q in atoms.probabilities[prompts]:
        for _ in range(400):
            rewards = rng.choice(values, size=n, p=q)
            keep = budget.max_variance(rewards, rng.permutation(n) / n, keep_per_prompt=m)
            kept = rewards[keep]
            spread = kept.std(ddof=1)
            credit = (kept - kept.mean()) / (spread + rule.eps) if spread else np.zeros(len(kept))
            signals.append(float(credit @ (kept - q @ values)) / len(kept))
            credits.append(float((credit**2).mean()))
    assert found.signal == pytest.approx(np.mean(signals), rel=0.03)
    assert found.square == pytest.approx(np.mean(np.square(signals)), rel=0.06)
    assert found.credit == pytest.approx(np.mean(credits), rel=0.03)


def test_many_rollouts_of_two_levels_agree_with_a_simulation():
    """256 of which 16 are kept, under a mixture with prompts that are never solved."""
    rng, rates = np.random.default_rng(1), np.array([0.0, 0.004, 0.05, 0.6])
    found = group_signal(pass_rates(rates, np.ones(4)), 256, 16, Rule("grpo"))
    right = rng.binomial(256, rates, size=(20000, 4))
    kept = np.minimum(np.maximum(8, 16 - (256 - right)), right)
    share = kept / 16
    signal = np.sqrt(share * (1 - share) * 15 / 16)
    assert found.signal == pytest.approx(signal.mean(), rel=0.01)
    assert found.square == pytest.approx((signal**2).mean(), rel=0.01)
    assert found.learning == pytest.approx((kept > 0).mean(), rel=0.01)
