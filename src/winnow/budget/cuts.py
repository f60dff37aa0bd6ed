"""Cuts while sampling: which rollouts of a step end before they are finished, and after how many tokens.

A rule is a function of the rollouts of one round, `SampledRound` -> [R] tokens that each rollout gets. A rollout that
gets fewer than its length is cut. The rule sees whole rollouts, and decides as if all of them advanced by one token per
tick, from tick 0: what it does at a tick depends on tokens up to that tick alone. So a cut depends on lengths in tokens
and never on the order in which an engine finishes them, and a faster engine could end the rollouts there. It raises
ValueError for an option outside its range. numpy only.

A cut rollout has no verdict. What is left are the rollouts that were short or likely, so estimates from them are
biased: `expected` enumerates the share of correct ones, and the gradient.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from winnow.bounds import AboveZeroToOne, AtLeastOne, LogProb
from winnow.budget.arguments import check_alike, check_count, check_integers, check_number, ranged
from winnow.budget.gradients import CENTRED, Credit
from winnow.records import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledRound:
    """The R rollouts of one round, sampled to their ends, in any order. Raises ValueError for a negative number, and
    for log-probs that are not one per token.

    >>> sampled = SampledRound(lengths=np.array([5, 9, 2]), group=np.array([0, 0, 1]))
    """

    lengths: IntArray  # [R] tokens
    group: IntArray  # [R] the prompt of each, a number from 0
    spent: int = 0  # tokens of the step's rounds before this one
    logprobs: Sequence[FloatArray] | None = None  # R x [L] in nats; None for a rule that does not read them

    def __post_init__(self) -> None:
        check_alike(lengths=self.lengths, group=self.group)
        check_integers("lengths", self.lengths)
        check_integers("group", self.group)
        check_count("spent", self.spent)
        if self.logprobs is not None and [len(of) for of in self.logprobs] != self.lengths.tolist():
            raise ValueError("logprobs must be one list per rollout, of its length")


Rule = Callable[[SampledRound], IntArray]


def none(sampled: SampledRound) -> IntArray:
    """No rollout is cut."""
    return sampled.lengths


@ranged
def token_budget(sampled: SampledRound, *, tokens: AtLeastOne) -> IntArray:
    """All rollouts end at the last tick at which the step has no more than `tokens` tokens. Ours.

    Rollouts that are finished by then are whole. Earlier rounds of the step count.

    >>> token_budget(SampledRound(lengths=np.array([2, 5, 9]), group=np.array([0, 0, 1])), tokens=10)
    array([2, 4, 4])
    """
    lengths, left = np.sort(sampled.lengths), max(0, tokens - sampled.spent)
    if lengths.sum() <= left:
        return sampled.lengths
    finished = np.cumsum(lengths) - lengths  # tokens of the rollouts that end before this one
    running = len(lengths) - np.arange(len(lengths))
    first = int(np.argmax(finished + running * lengths > left))  # the shortest rollout that the budget does not finish
    tick = int((left - finished[first]) // running[first])
    return np.asarray(np.minimum(sampled.lengths, tick), dtype=np.int64)


@ranged
def stragglers(sampled: SampledRound, *, share: AboveZeroToOne = 0.75) -> IntArray:
    """The other rollouts of a prompt end when `share` of them (rounded up) are finished.

    Over-provisioning as in APRIL (Zhou et al. 2025, arXiv 2509.18521, from its description), per prompt instead of per
    batch; there, the unfinished rollouts continue in the next step, and here they are dropped. Rollouts that are
    finished at the same tick are all whole.

    >>> stragglers(SampledRound(lengths=np.array([2, 3, 5, 9]), group=np.zeros(4, dtype=np.int64)), share=0.5)
    array([2, 3, 3, 3])
    """
    ends = sampled.lengths.copy()
    for group in np.unique(sampled.group):
        of = sampled.group == group
        lengths = np.sort(ends[of])
        whole = math.ceil(share * len(lengths) - 1e-9)  # 0.7 * 10 is above 7 in floating point
        ends[of] = np.minimum(ends[of], lengths[max(1, whole) - 1])
    return ends


@ranged
def unlikely(sampled: SampledRound, *, after: AtLeastOne = 16, least: LogProb = -1.0) -> IntArray:
    """A rollout ends after `after` tokens if their mean log-prob is below `least`, in nats. Ours.

    It has the place of ARRoL's quality head (arXiv 2603.24840), which is a trained model, and is a function of the
    rollout's own log-probs alone, as in DeepConf (Fu et al. 2025, arXiv 2508.15260). A rollout of at most `after`
    tokens is finished by then. Raises ValueError without log-probs, and for one that is not a number.

    >>> one = SampledRound(lengths=np.array([4]), group=np.array([0]), logprobs=[np.array([-1.0, -3.0, 0.0, 0.0])])
    >>> unlikely(one, after=2, least=-1.5), unlikely(one, after=3, least=-1.5)
    (array([2]), array([4]))
    """
    if sampled.logprobs is None:
        raise ValueError("the rule reads log-probs, and there are none")
    means = np.array([numbers[:after].mean() if len(numbers) else 0.0 for numbers in sampled.logprobs])
    if np.isnan(means).any():
        raise ValueError("a log-prob is not a number")
    return np.where((means < least) & (sampled.lengths > after), after, sampled.lengths)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutKind:
    """What a rollout may be in an enumeration: its length, its verdict, and how probable both are. Raises ValueError
    for a negative length, a log-prob above 0, and a probability outside [0, 1].
    """

    length: int
    correct: bool
    probability: float
    logprob: float = -1.0  # of each of its tokens

    def __post_init__(self) -> None:
        check_count("length", self.length)
        check_number("probability", self.probability, least=0.0, most=1.0)
        check_number("logprob", self.logprob, most=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Expected values over all results of one prompt; K kinds of rollouts."""

    kept: float  # rollouts that are not cut
    correct: float  # of these, correct ones
    tokens: float  # of all rollouts up to their cuts
    pass_rate: float  # share of correct ones among those that are not cut, where there are any
    gradient: FloatArray  # [K] weight of a kind's log-prob gradient, relative to that of infinitely many uncut rollouts


def expected(rule: Rule, kinds: Sequence[RolloutKind], rollouts: int, credit: Credit = CENTRED) -> Expected:
    """Enumerate `rollouts` independent rollouts of one prompt under a rule.

    The gradient is that of an advantage over the rollouts that are not cut, by default of r - mean, each prompt
    weighing the same: sum over them of A / n times the gradient of the log-prob. Its limit gives a kind of probability
    q the weight q A, with the advantage A at the pass rate. Without a cut and with r - mean every entry is
    (rollouts - 1) / rollouts. Raises ValueError for fewer than one rollout, for probabilities that do not add up to 1,
    and where the rule does not end each rollout within its length.
    """
    check_count("rollouts", rollouts, least=1)
    probabilities = np.array([kind.probability for kind in kinds])
    if abs(probabilities.sum() - 1) > 1e-9:
        raise ValueError(f"the probabilities of the kinds add up to {probabilities.sum():g}, and not to 1")
    right = np.array([kind.correct for kind in kinds], dtype=np.bool_)
    lengths = np.array([kind.length for kind in kinds], dtype=np.int64)
    limit = probabilities * np.where(right, *credit.limit(min(1.0, float(probabilities[right].sum()))))
    kept, tokens, rate, some, weights = np.zeros(len(kinds)), 0.0, 0.0, 0.0, np.zeros(len(kinds))
    for counts in _compositions(rollouts, len(kinds)):
        ways = math.factorial(rollouts) // math.prod(map(math.factorial, counts.tolist()))
        chance = ways * float(np.prod(probabilities**counts))
        of = np.repeat(np.arange(len(kinds)), counts)
        ends = _ends(rule, kinds, of, lengths[of])
        whole = np.bincount(of[ends == lengths[of]], minlength=len(kinds))
        kept += chance * whole
        tokens += chance * ends.sum()
        if left := int(whole.sum()):
            correct = int(whole[right].sum())
            some, rate = some + chance, rate + chance * correct / left
            weights += chance * whole * np.where(right, *credit.of(left, correct)) / left
    return Expected(
        kept=float(kept.sum()),
        correct=float(kept[right].sum()),
        tokens=float(tokens),
        pass_rate=rate / some if some else math.nan,
        gradient=np.divide(weights, limit, out=np.full(len(kinds), np.nan), where=limit != 0),
    )


def _ends(rule: Rule, kinds: Sequence[RolloutKind], of: IntArray, lengths: IntArray) -> IntArray:
    """[R] the tokens that a rule gives to rollouts of these kinds, checked."""
    logprobs = [np.full(kinds[k].length, kinds[k].logprob) for k in of.tolist()]
    ends = np.asarray(rule(SampledRound(lengths=lengths, group=np.zeros(len(of), dtype=np.int64), logprobs=logprobs)))
    check_integers("the rule's result", ends, size=len(of))
    if np.any(ends > lengths):
        raise ValueError(f"the rule gives {ends.tolist()} tokens to rollouts of {lengths.tolist()}")
    return ends


def _compositions(total: int, parts: int) -> IntArray:
    """[O, parts] every way to divide `total` rollouts over `parts` kinds."""
    bars = np.array([*itertools.combinations(range(total + parts - 1), parts - 1)], dtype=np.int64)
    return np.diff(bars, prepend=-1, append=total + parts - 1) - 1
