"""Estimates of what a policy can do, from a few rollouts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from winnow.records import FloatArray, IntArray


def pass_at_k(correct: IntArray, rollouts: IntArray, k: int) -> FloatArray:
    """[G] chance that at least one of k rollouts is correct, from `correct` of `rollouts`; NaN where rollouts < k.

    1 - C(n - c, k) / C(n, k): unbiased (Chen et al. 2021, arXiv 2107.03374, eq. 1).
    """
    return np.array([_pass_at_k(int(c), int(n), k) for c, n in zip(correct, rollouts, strict=True)], dtype=np.float64)


def majority_at_k(correct: int, wrong: Sequence[int], silent: int, k: int) -> float:
    """The chance that the most frequent answer of k rollouts is correct; NaN where there are fewer than k. One problem.

    The k are drawn without replacement from all of its rollouts: `correct` gave a correct answer (one class, however it
    was written), `wrong` are the counts of each other answer, `silent` gave none that can be read and have no vote.
    Where t answers lead together each is taken with chance 1/t; where nobody votes the answer is wrong. For k equal to
    the number of rollouts this is the plain majority vote (Wang et al. 2022, arXiv 2203.11171).

    No subset is drawn: for every number v of correct votes a table counts in how many ways the other answers stay at
    or below v. What is counted are the chances of independent draws, k / n per rollout, given that k are drawn. All
    terms are positive, so nothing cancels: exact but for rounding (1e-12).
    """
    rollouts = correct + sum(wrong) + silent
    if rollouts < k:
        return math.nan
    share = k / rollouts if rollouts else 0.0
    drawn = _drawn(correct, share)
    possible = [votes for votes in range(1, min(correct, k) + 1) if drawn[votes] > 0]
    won = sum(drawn[votes] * _led(votes, wrong, silent, k, share) for votes in possible)
    return min(1.0, float(won / _drawn(rollouts, share)[k])) if possible else 0.0  # two roundings may exceed 1


def tied(correct: int, wrong: Sequence[int]) -> bool:
    """Whether the correct answer shares the lead with a wrong one when all rollouts of a problem vote."""
    return correct == max(wrong, default=0) > 0


def standard_error(values: FloatArray) -> float:
    """Of the mean of independent values (ddof 1); NaN for fewer than two."""
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan


def truncated_importance(old_logprobs: FloatArray, behaviour_logprobs: FloatArray, *, most: float) -> FloatArray:
    """[L] min(p_old / p_behaviour, most): corrects for an engine that samples from slightly other probabilities.

    Truncated importance sampling (Ionides 2008), per token as in Yao et al. 2025, "Your efficient RL framework secretly
    brings you off-policy RL training". The bound trades a little bias for a bounded variance.
    """
    return np.minimum(np.exp(old_logprobs - behaviour_logprobs), most)


def _pass_at_k(correct: int, rollouts: int, k: int) -> float:
    if rollouts < k:
        return math.nan
    return 1.0 - math.comb(rollouts - correct, k) / math.comb(rollouts, k)


def _drawn(count: int, share: float) -> FloatArray:
    """[count + 1] chance of each number drawn from `count` rollouts, each of them drawn with chance `share`."""
    if not 0.0 < share < 1.0:  # all or none
        return np.asarray(np.eye(count + 1)[count if share else 0], dtype=np.float64)
    i, factorials = np.arange(count + 1), np.concatenate([[0.0], np.log(np.arange(1, count + 1)).cumsum()])
    ways = factorials[count] - factorials - factorials[::-1]
    return np.asarray(np.exp(ways + i * math.log(share) + i[::-1] * math.log1p(-share)), dtype=np.float64)


def _led(votes: int, wrong: Sequence[int], silent: int, k: int, share: float) -> float:
    """Chance that the other draws make k with so many correct votes, each time with the share 1/t of the lead."""
    rivals = [count for count in wrong if count >= votes]  # no other can reach the lead
    others = _drawn(silent + sum(wrong) - sum(rivals), share)
    table = np.ones((1, 1))  # [ties, votes of the rivals] chance
    for count in rivals:
        table = _with_rival(table, _drawn(count, share)[: votes + 1])[:, : k - votes + 1]
    ties, used = np.indices(table.shape)
    left = k - votes - used
    fits = left < len(others)
    return float((table / (ties + 1) * np.where(fits, others[left * fits], 0.0)).sum())


def _with_rival(table: FloatArray, drawn: FloatArray) -> FloatArray:
    """[ties + 1, votes + v] the table with one more rival: below v votes, or at v and so tied; above v it is out."""
    grown = np.zeros((table.shape[0] + 1, table.shape[1] + len(drawn) - 1))
    width, v = table.shape[1], len(drawn) - 1
    if v < len(table):  # along the shorter side
        for below, chance in enumerate(drawn[:v]):
            grown[:-1, below : below + width] += chance * table
    else:
        for row, chances in enumerate(table):
            grown[row, :-1] += np.convolve(chances, drawn[:v])
    grown[1:, v:] += drawn[v] * table
    return grown
