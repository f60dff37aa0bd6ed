"""Law 9: on a policy small enough to enumerate, the expected gradient of the pipeline is the exact one, or its bias is
known.

A policy over 3 tokens writes 3 of them: 27 rollouts, each with a known probability. The logits (one row per prefix, 13
in all) are the parameters. A group of N is one of 27^N; the expectation over all of them is a sum, not an estimate.
"""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest

from winnow.algos.advantage import dr_grpo, grpo, raft, raw, rloo
from winnow.algos.gae import gae
from winnow.algos.selectors import max_variance, threshold
from winnow.algos.weighting import accepted, constant, token, unbiased
from winnow.core.batches import make_batches
from winnow.records import KeptRollouts
from winnow.seeds import Rng
from winnow.testing import group_of

ROLLOUTS = list(itertools.product(range(3), repeat=3))
PREFIXES = [p for n in range(3) for p in itertools.product(range(3), repeat=n)]
LOGITS = np.random.default_rng(7).normal(size=(len(PREFIXES), 3))
CORRECT = np.array([sum(r) == 3 for r in ROLLOUTS])  # 7 of 27
REWARDS = CORRECT.astype(float)


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def score(rollout):
    """d log p(token) / d logits of each token, flat [3, 39], and P(rollout)."""
    gradients, probability = np.zeros((3, *LOGITS.shape)), 1.0
    for t, tok in enumerate(rollout):
        row = PREFIXES.index(rollout[:t])
        p = softmax(LOGITS[row])
        probability *= p[tok]
        gradients[t, row] -= p
        gradients[t, row, tok] += 1
    return gradients.reshape(3, -1), probability


TOKEN_SCORES, P = map(np.array, zip(*map(score, ROLLOUTS), strict=True))
SCORES = TOKEN_SCORES.sum(axis=1)
EXACT = (P * REWARDS) @ SCORES  # d E[reward]
PASS_RATE = float(P @ REWARDS)


def weights_of(weighting, kept, correct, pass_rate=np.nan):
    shape = KeptRollouts(
        planned=1,
        lengths=np.full(kept.sum(), 3),
        group=np.zeros(kept.sum(), dtype=int),
        correct=correct[kept],
        generated=np.array([len(correct)]),
        valid=np.array([len(correct)]),
        accepted=np.array([correct.sum()]),
        pass_rate=np.array([pass_rate]),
        max_new_tokens=3,
    )
    return weighting(shape)


def coefficients(rewards, advantage, weighting, *, keep=None, pass_rate=np.nan, values=None):
    """What selection, credit and weighting multiply the scores of one group's tokens by, [N, 3]."""
    group = group_of(rewards, lengths=[3] * len(rewards))
    if values is not None:
        group = group.fill(values=tuple(values))
    kept = np.ones(len(rewards), bool) if keep is None else max_variance(group, Rng(("x",)), keep_per_prompt=keep)
    (credit,) = advantage([group.fill(keep=kept)])
    weights = np.zeros(len(rewards))
    weights[kept] = weights_of(weighting, kept, rewards > 0, pass_rate)
    credit = np.array(credit)  # per token, or per rollout
    return weights[:, None] * (credit if credit.ndim == 2 else np.repeat(credit[:, None], 3, axis=1))


def gradients(members, advantage, weighting, *, values=None, **options):
    """Minus the gradient of the loss of each group, flat [groups, 39]; who is in a group: members [groups, N].

    The pipeline is given rewards and values, never who a rollout is, so it runs once for each group that differs in
    these.
    """
    seen = REWARDS.astype(int) if values is None else np.arange(len(ROLLOUTS))
    _, firsts, which = np.unique(seen[members], axis=0, return_index=True, return_inverse=True)
    found = [
        coefficients(REWARDS[group], advantage, weighting, values=None if values is None else values[group], **options)
        for group in members[firsts]
    ]
    return sum(
        np.array(found)[which.reshape(-1), place, t, None] * TOKEN_SCORES[members[:, place], t]
        for place in range(members.shape[1])
        for t in range(3)
    )


def groups_of(n):
    """All 27^n groups, in every order: a selector's ties are broken by who a rollout is. And their probabilities."""
    members = np.array(list(itertools.product(range(27), repeat=n)))
    return members, P[members].prod(axis=1)


def expectation(n, advantage, weighting, **options):
    members, chances = groups_of(n)
    return chances @ gradients(members, advantage, weighting, **options)


def ratio_and_angle(gradient):
    """Its length along the exact gradient, and the sine of the angle to it."""
    along = gradient @ EXACT / (EXACT @ EXACT)
    return along, float(np.linalg.norm(gradient - along * EXACT) / np.linalg.norm(gradient))


@pytest.mark.parametrize("n", [2, 3])
def test_raw_with_constant_weights_is_exact(n):
    """Every rollout weighs 1 / (N * 3) and has 3 tokens' scores summed: a third of the gradient of E[reward]."""
    assert expectation(n, raw, constant) == pytest.approx(EXACT / 3, rel=1e-10, abs=1e-14)


@pytest.mark.parametrize("n", [2, 3])
def test_raft_with_unbiased_weights_and_the_exact_pass_rate_is_exact(n):
    """1 / (n p) sum over accepted is the gradient of log P(correct), for every n: whatever GVM allocates."""
    expected = expectation(n, raft, unbiased, pass_rate=PASS_RATE)
    assert expected == pytest.approx(EXACT / PASS_RATE, rel=1e-10, abs=1e-14)


def test_under_gvm_counts_every_prompt_keeps_its_share():
    """Two prompts with 2 and 3 rollouts: the expectation does not depend on who got how many."""
    few, many = (expectation(n, raft, unbiased, pass_rate=PASS_RATE) for n in (2, 3))
    assert few == pytest.approx(many, rel=1e-10, abs=1e-14)


@pytest.mark.parametrize("n", [2, 3])
def test_rloo_with_constant_weights_is_exact(n):
    assert expectation(n, rloo, constant) == pytest.approx(EXACT / 3, rel=1e-10, abs=1e-14)


@pytest.mark.parametrize(("n", "shrink"), [(2, 1 / 2), (3, 2 / 3)])
def test_dr_grpo_is_exact_up_to_a_known_factor(n, shrink):
    """A baseline that contains the rollout itself shrinks the gradient by (N - 1) / N, and turns it by nothing."""
    assert expectation(n, dr_grpo, constant) == pytest.approx(shrink * EXACT / 3, rel=1e-10, abs=1e-14)


# (method, options) -> length along the exact gradient of E[reward] / 3, sine of the angle. With binary rewards the
# others are functions of the number of correct rollouts alone, so they change lengths, never directions, within one
# prompt.
BIASED = [
    ("group std, N = 2", 2, grpo, {}),
    ("group std, N = 3", 3, grpo, {}),
    ("PODS 3 -> 2", 3, grpo, {"keep": 2}),
]


@pytest.mark.parametrize(("name", "n", "advantage", "options"), BIASED, ids=[b[0] for b in BIASED])
def test_the_bias_of_the_others_is_that_in_the_docs(name, n, advantage, options):
    along, sine = ratio_and_angle(3 * expectation(n, advantage, constant, **options))
    assert sine < 1e-10
    assert along == pytest.approx(DOCUMENTED[name], rel=1e-6)


def closed_form(n, credit_gap, kept):
    """Length of E over the number c of correct ones, for credits that differ by `credit_gap(c)` between correct and
    wrong.

    E[sum of credits * scores] = sum over c of Pr(c) * a(c) * (mean score of correct - mean score of wrong), and the
    mean score of a correct rollout is EXACT / p, of a wrong one -EXACT / (1 - p).
    """
    p, total = PASS_RATE, 0.0
    for c in range(1, n):
        chance = np.prod([n - i for i in range(c)]) / np.prod(range(1, c + 1)) * p**c * (1 - p) ** (n - c)
        up, down, right, wrong = credit_gap(c)
        total += chance * (right * up / p - wrong * down / (1 - p)) / kept
    return total


def std_credit(c, n):
    r = np.array([1.0] * c + [0.0] * (n - c))
    s = r.std(ddof=1) + 1e-4
    return (1 - r.mean()) / s, -r.mean() / s, c, n - c


DOCUMENTED = {
    "group std, N = 2": closed_form(2, lambda c: std_credit(c, 2), 2),
    "group std, N = 3": closed_form(3, lambda c: std_credit(c, 3), 3),
    "PODS 3 -> 2": closed_form(3, lambda c: std_credit(1, 2), 2),
}


def test_a_token_mean_is_the_constant_one_when_lengths_are_equal():
    members = np.array([[3, 11, 20]])
    mean = gradients(members, raw, token)
    assert mean == pytest.approx(gradients(members, raw, constant))


# Two prompts of one rollout each; what is kept is what is correct (`threshold`), so a batch may hold one of them.
PASS_RATES = np.array([1.0, 0.1])


def expected_weights(weighting, *, updates_per_step=1, added=0):
    """E[weight of each prompt's kept rollout], by enumeration; `added` groups come from dynamic sampling."""
    total = np.zeros(2)
    for right in itertools.product([0.0, 1.0], repeat=2):
        groups = [group_of([reward], prompt=f"p{i}") for i, reward in enumerate([*right, *[1.0] * added])]
        groups = [g.fill(keep=threshold(g, Rng(("x",)), low=1.0)) for g in groups]
        groups = [g.fill(advantages=credit) for g, credit in zip(groups, raft(groups), strict=True)]
        batches = make_batches(
            groups, weighting, epochs=1, updates_per_step=updates_per_step, max_new_tokens=3, planned=2,
            pass_rates=np.concatenate([PASS_RATES, np.full(added, np.nan)]), seed=(0,),
        )  # fmt: skip
        chance = np.prod(np.where(right, PASS_RATES, 1 - PASS_RATES))
        for row in (row for batch in batches for row in batch.sequences if row.group < 2):
            total[row.group] += chance * row.weight
    return total


@pytest.mark.parametrize("added", [0, 3])
@pytest.mark.parametrize("updates", [1, 2, 3])
def test_a_prompt_that_has_nothing_kept_still_counts(updates, added):
    """E[1 / (G n p) where correct] = 1 / G for both, whatever becomes of the other, of updates and of added groups."""
    found = expected_weights(unbiased, updates_per_step=updates, added=added)
    assert found / updates == pytest.approx([0.5, 0.5], rel=1e-12)


def test_accepted_counts_the_step_s_prompts_too():
    """A correct rollout weighs 1 / G, alone in its batch or not."""
    assert expected_weights(accepted) == pytest.approx(0.5 * PASS_RATES, rel=1e-12)


@pytest.mark.parametrize(("trials", "p", "ratio"), [(8, 0.1, 0.38), (8, 0.5, 1.18)])
def test_a_probed_pass_rate_biases_the_unbiased_weight_as_published(trials, p, ratio):
    """E[1 / p_hat; p_hat > 0] * p for a binomial p_hat, the prompt being dropped at 0."""
    assert probed_ratio(trials, p) == pytest.approx(ratio, abs=0.005)


def probed_ratio(trials, p):
    from math import comb

    return sum(comb(trials, c) * p**c * (1 - p) ** (trials - c) * p * trials / c for c in range(1, trials + 1))


# A value model ------------------------------------------------------------------------------------------------------


def expected_reward(prefix):
    """E[reward] once these tokens are written, by enumeration."""
    goes_on = np.array([rollout[: len(prefix)] == prefix for rollout in ROLLOUTS])
    return float((P * REWARDS)[goes_on].sum() / P[goes_on].sum())


EXACT_VALUES = np.array([[expected_reward(rollout[:t]) for t in range(3)] for rollout in ROLLOUTS])
WRONG_VALUES = np.random.default_rng(8).normal(size=len(PREFIXES))[
    [[PREFIXES.index(rollout[:t]) for t in range(3)] for rollout in ROLLOUTS]
]


def estimated(lam):
    return functools.partial(gae, lam=lam, whiten=False)


@pytest.mark.parametrize("lam", [0.0, 0.5, 0.95, 1.0])
def test_gae_with_exact_values_is_exact(lam):
    """Of a residual after the first nothing is left in the mean: a token's expected credit is Q - V at every lambda."""
    found = expectation(2, estimated(lam), constant, values=EXACT_VALUES)
    assert found == pytest.approx(EXACT / 3, rel=1e-10, abs=1e-14)


def test_gae_at_lambda_1_is_exact_with_any_values():
    """They are then a baseline, which does not depend on the token; below 1 they replace rewards, and are wrong."""
    found = expectation(2, estimated(1.0), constant, values=WRONG_VALUES)
    assert found == pytest.approx(EXACT / 3, rel=1e-10, abs=1e-14)
    biased = 3 * expectation(2, estimated(0.95), constant, values=WRONG_VALUES)
    assert np.linalg.norm(biased - EXACT) > 0.05 * np.linalg.norm(EXACT)


def variance(n, advantage, **options):
    """Of the pipeline's estimate of d E[reward], summed over the 39 logits, by enumeration of all 27^n groups."""
    members, chances = groups_of(n)
    second = chances @ ((3 * gradients(members, advantage, constant, **options)) ** 2).sum(axis=1)
    return second - EXACT @ EXACT


def variance_by_residuals(lam):
    """The same of one rollout, without a rollout: over the 39 pairs of a prefix and its next token.

    Tokens of different prefixes share no logit, so squares add up. Residuals after a token have mean 0 whatever came
    before, so of their sum squares add up too: E[A^2 | token] = d^2 + sum_l lambda^2l E[d_l^2 | token]. Without values
    (`lam` None) credit is the reward, and E[reward^2 | token] = E[reward | token].
    """

    def credit_squared(tokens):
        if lam is None:
            return expected_reward(tokens)
        return (expected_reward(tokens) - expected_reward(tokens[:-1])) ** 2 + lam**2 * later(tokens)

    def later(tokens):
        """E over the next token of its credit squared."""
        if len(tokens) == 3:
            return 0.0
        return softmax(LOGITS[PREFIXES.index(tokens)]) @ [credit_squared((*tokens, tok)) for tok in range(3)]

    total = 0.0
    for prefix in PREFIXES:
        p = softmax(LOGITS[PREFIXES.index(prefix)])
        reached = P[[rollout[: len(prefix)] == prefix for rollout in ROLLOUTS]].sum()
        for tok in range(3):
            total += reached * p[tok] * credit_squared((*prefix, tok)) * ((np.eye(3)[tok] - p) ** 2).sum()
    return total - EXACT @ EXACT


# lambda -> variance of one rollout's gradient of E[reward]; None: raw, without values
VARIANCES = {None: 0.48495, 1.0: 0.32899, 0.95: 0.30048, 0.5: 0.15822, 0.0: 0.12610}


@pytest.mark.parametrize(("lam", "expected"), VARIANCES.items())
def test_exact_values_lower_the_variance_as_enumerated(lam, expected):
    found = variance(1, raw if lam is None else estimated(lam), values=EXACT_VALUES)
    assert found == pytest.approx(variance_by_residuals(lam), rel=1e-10)
    assert found == pytest.approx(expected, abs=5e-5)


def test_the_shorter_the_reach_of_exact_values_the_lower_the_variance():
    assert list(VARIANCES.values()) == sorted(VARIANCES.values(), reverse=True)
    two = variance(2, estimated(0.95), values=EXACT_VALUES)
    assert two == pytest.approx(variance_by_residuals(0.95) / 2, rel=1e-10)  # rollouts are independent
    assert variance(2, raw) - two == pytest.approx((variance_by_residuals(None) - variance_by_residuals(0.95)) / 2)
