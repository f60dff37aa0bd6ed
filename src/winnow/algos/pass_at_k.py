"""Estimates from a few rollouts: pass@k, maj@k, and the standard error of a mean."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from winnow.records import FloatArray, IntArray


def pass_at_k(correct: IntArray, rollouts: IntArray, k: int) -> FloatArray:
    """[G] probability that at least one of k rollouts is correct, from `correct` of `rollouts`; NaN where rollouts < k.

    1 - C(n - c, k) / C(n, k): unbiased (Chen et al. 2021, arXiv 2107.03374, eq. 1).
    """
    pairs = zip(correct.tolist(), rollouts.tolist(), strict=True)
    return np.array([1.0 - math.comb(n - c, k) / math.comb(n, k) if n >= k else math.nan for c, n in pairs])


def majority_at_k(correct: int, wrong: Sequence[int], silent: int, k: int) -> float:
    """Probability that the most frequent answer of k rollouts of a problem is correct; NaN where there are fewer than
    k.

    The k are drawn without replacement from all of its rollouts. `correct` gave a correct answer (one class, in
    whatever form), `wrong` are the counts of each other answer, and `silent` gave no readable answer and have no vote.
    If t answers tie for the lead, each wins with probability 1/t; without any vote the answer is wrong. For k equal to
    the number of rollouts this is the plain majority vote (Wang et al. 2022, arXiv 2203.11171).

    No subset is drawn. For every number v of correct votes, a table contains the probability that the other answers
    have at most v votes. The probabilities are those of independent draws with probability k / n per rollout, given
    that k are drawn in total. All terms are positive, so nothing cancels: the result is exact except for rounding
    (1e-12).
    """
    rollouts = correct + sum(wrong) + silent
    if rollouts < k:
        return math.nan
    share = k / rollouts if rollouts else 0.0
    drawn = _drawn(correct, share)
    possible = [votes for votes in range(1, min(correct, k) + 1) if drawn[votes] > 0]
    won = sum(drawn[votes] * _led(votes, wrong, silent, k, share) for votes in possible)
    return min(1.0, float(won / _drawn(rollouts, share)[k])) if possible else 0.0  # two roundings may exceed 1


def is_tied(correct: int, wrong: Sequence[int]) -> bool:
    """Whether the correct answer ties for the lead with a wrong one when all rollouts of a problem vote."""
    return correct == max(wrong, default=0) > 0


def standard_error(values: FloatArray) -> float:
    """Standard error of the mean of independent values (ddof 1); NaN for fewer than two."""
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan


def _drawn(count: int, share: float) -> FloatArray:
    """[count + 1] probability of each number drawn from `count` rollouts, each drawn with probability `share`."""
    if not 0.0 < share < 1.0:  # all or none
        return np.asarray(np.eye(count + 1)[count if share else 0], dtype=np.float64)
    i, factorials = np.arange(count + 1), np.concatenate([[0.0], np.log(np.arange(1, count + 1)).cumsum()])
    ways = factorials[count] - factorials - factorials[::-1]
    return np.asarray(np.exp(ways + i * math.log(share) + i[::-1] * math.log1p(-share)), dtype=np.float64)


def _led(votes: int, wrong: Sequence[int], silent: int, k: int, share: float) -> float:
    """Probability that the other draws total k - `votes` with the correct answer leading; a tie of t counts 1/t."""
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
    """[ties + 1, votes + v] the table with another rival: below v votes, or at v and so tied; above v it is dropped."""
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
