"""The mismatch of engine and policy in a step's trained tokens, and what a correction did about it.

Without `rollout.ahead`, every rollout of a step is sampled with the weights that the step starts with
(engines/freshness.py). The difference is then that of the same version: kernels, precision, or a copy that did not
follow. With `rollout.ahead = 1` a step's own rollouts are older, and their difference is its staleness. The mismatch is
then measured on other rollouts (named_rollouts.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from torch import Tensor

from winnow.engines.base import Tolerance
from winnow.records import FloatArray, IntArray, Metrics, MicroBatch, PolicyOutput, joined

FEW = 2  # tokens whose log-probs may differ much in any step, however small
CHANCE = 5.0  # standard deviations: a run has thousands of steps
RATIOS = (0.8, 1.25)  # policy to engine probability: a token outside was sampled from another policy than the trained
STALENESS = {  # a metric of equal versions: its name where the rollouts are older than the policy
    "policy/logprob_gap_mean": "policy/staleness_gap_mean",
    "policy/logprob_gap_p999": "policy/staleness_gap_p999",
    "policy/ratio_outside": "policy/staleness_ratio_outside",
    "policy/mismatch_kl": "policy/staleness_kl",
    "policy/effective_sample_size": "policy/staleness_sample_size",
}


def gap(out: PolicyOutput, mb: MicroBatch) -> Tensor:
    """[T] log-probs of the policy minus those of the engine, at the trained tokens of a micro-batch."""
    return (mb.of_trained(out.logprobs) - mb.of_trained(mb.behaviour_logprobs)).detach()


@dataclass
class Parity:
    """Compares the log-probs of engine and policy, for the same tokens and weights: is the sampled policy the trained
    one?

    The alarm is raised if the mean gap or its 99.9th percentile exceeds the engine's declared `tolerance`. It is
    also raised if more tokens have a ratio outside `RATIOS` than `most_outside` expects by chance. The largest gap
    is not a criterion, as it grows with the number of tokens. An engine that declares an infinite tolerance differs on
    purpose and raises no alarm.
    """

    tolerance: Tolerance
    max_outside: float
    differences: list[FloatArray] = field(default_factory=list)  # [T] of each micro-batch
    sampled_by: list[IntArray] = field(default_factory=list)  # [T] the rank whose engine sampled each token

    def add(self, difference: FloatArray, rank: IntArray | None = None) -> None:
        """Add trained tokens: [T] log-probs of the policy minus those of the engine. `rank` [T] is the rank whose
        engine sampled each one; None: rank 0.
        """
        self.differences.append(difference)
        self.sampled_by.append(np.zeros(len(difference), dtype=np.int16) if rank is None else rank.astype(np.int16))

    def merge(self, others: Iterable[Self]) -> None:
        """Replace this rank's tokens by those of `others`, of which this comparison is one."""
        self.differences = [difference for other in others for difference in other.differences]
        self.sampled_by = [rank for other in others for rank in other.sampled_by]

    def metrics(self) -> Metrics:
        """The metrics of all tokens. The alarm is raised where the tokens of any single engine raise it."""
        difference = joined(self.differences)
        if not len(difference):
            return {}
        metrics, by = self._compared(difference), np.concatenate(self.sampled_by)
        sampling_ranks = np.unique(by)
        if len(sampling_ranks) > 1:
            alarms = [rank for rank in sampling_ranks if self._compared(difference[by == rank])["policy/parity_alarm"]]
            metrics["policy/parity_alarm"] = float(bool(alarms))
            metrics |= {"ranks/out_of_parity": float(alarms[0])} if alarms else {}
        return metrics

    def _compared(self, difference: FloatArray) -> Metrics:
        gap, (least, most) = np.abs(difference), np.log(RATIOS)
        mean, tail = float(gap.mean()), percentile_999(gap)
        outside = float(np.mean(~((difference >= least) & (difference <= most))))
        share = most_outside(self.max_outside, len(difference)) / len(difference)
        # A comparison with NaN is False, so log-probs that are NaN raise the alarm
        well = mean <= self.tolerance.mean and tail <= self.tolerance.tail and outside <= share
        return {
            "policy/logprob_gap_mean": mean,
            "policy/logprob_gap_p999": tail,
            "policy/logprob_gap_max": float(gap.max()),
            "policy/ratio_outside": outside,
            "policy/parity_alarm": float(not well and math.isfinite(self.tolerance.mean)),
        }


def most_outside(share: float, tokens: int) -> float:
    """The tokens of a step that may be outside the band if each is with this probability: the expected number and
    `CHANCE` of its standard deviations, and at least `FEW`.
    """
    expected = share * tokens
    return max(float(FEW), expected + CHANCE * math.sqrt(expected * (1 - share)))


def percentile_999(numbers: FloatArray) -> float:
    """The 99.9th percentile of [T] numbers: the largest number that at least 1 in 1,000, and at least three, reach.

    Of fewer than 3,000 it is therefore the third largest, as one or two rare tokens determine no percentile.
    """
    rank = min(len(numbers), max(FEW + 1, math.ceil(len(numbers) / 1000)))
    return float(np.partition(numbers, -rank)[-rank])


@dataclass
class Mismatch:
    """Compares engine and policy over tokens and over whole rollouts, before the first update."""

    per_token: list[FloatArray] = field(default_factory=list)  # [T] log(p_policy / p_engine)
    per_rollout: list[FloatArray] = field(default_factory=list)  # [B] its sum over a rollout's trained tokens
    along: list[FloatArray] = field(default_factory=list)  # [B] the same sum, each token with its advantage's sign

    def add(self, sequence: IntArray, difference: FloatArray, advantages: FloatArray) -> None:
        """Add the trained tokens of a micro-batch, all [T]: the place of each token's sequence, the log-prob of the
        policy minus that of the engine, and the advantage.
        """
        rollouts = np.bincount(sequence) > 0
        self.per_token.append(difference)
        self.per_rollout.append(_sums(sequence, difference)[rollouts])
        self.along.append(_sums(sequence, difference * np.sign(advantages))[rollouts])

    def merge(self, others: Iterable[Self]) -> None:
        """Replace this rank's tokens by those of `others`, of which this object is one."""
        every = list(others)
        self.per_token = [part for other in every for part in other.per_token]
        self.per_rollout = [part for other in every for part in other.per_rollout]
        self.along = [part for other in every for part in other.along]

    def metrics(self) -> Metrics:
        """Nothing without trained tokens."""
        difference, sums, along = map(joined, (self.per_token, self.per_rollout, self.along))
        if not len(difference):
            return {}
        lag = {"policy/engine_lag": float(along.mean())}
        if len(along) > 1:
            lag["policy/engine_lag_sem"] = float(along.std(ddof=1) / math.sqrt(len(along)))
        return {
            "policy/mismatch_kl": float(np.mean(np.expm1(difference) - difference)),
            "policy/effective_sample_size": effective_sample_size(sums),
            **lag,
        }


def as_staleness(compared: Metrics) -> Metrics:
    """The metrics of parity and mismatch by their names as staleness; those that need equal versions are omitted."""
    return {name: compared[own] for own, name in STALENESS.items() if own in compared}


def effective_sample_size(log_ratios: FloatArray) -> float:
    """(sum w)^2 / (n sum w^2) of the importance w = exp(log_ratios) of n rollouts: 1 where all are equal, 1 / n where
    one has all of the weight (Kong 1992; Kish 1965).
    """
    weights = np.exp(log_ratios - log_ratios.max())
    return float(weights.sum() ** 2 / (len(weights) * (weights**2).sum()))


@dataclass
class CorrectionEffect:
    """What a correction did to the trained tokens of all updates."""

    importance: float = 0.0  # sum over tokens
    tokens: int = 0
    masked: int = 0  # tokens with importance 0
    truncated: int = 0  # tokens with a smaller importance than their ratio
    rollouts: int = 0
    rollouts_masked: int = 0  # with a masked token
    rollouts_truncated: int = 0  # with a truncated token

    def add(self, sequence: IntArray, importance: FloatArray, acted: FloatArray) -> None:
        """Add the trained tokens [T] of a micro-batch: the place of each token's sequence, its importance, and 1 where
        the correction acted.
        """
        masked = (importance == 0) & (acted > 0)
        truncated = (importance != 0) & (acted > 0)
        self.importance += float(importance.sum())
        self.tokens += len(importance)
        self.masked += int(masked.sum())
        self.truncated += int(truncated.sum())
        self.rollouts += len(np.unique(sequence))
        self.rollouts_masked += len(np.unique(sequence[masked]))
        self.rollouts_truncated += len(np.unique(sequence[truncated]))

    def merge(self, others: Iterable[Self]) -> None:
        """Replace this rank's numbers by the sums over `others`, of which this object is one."""
        every = [vars(other).copy() for other in others]
        for name in vars(self):
            setattr(self, name, sum(other[name] for other in every))

    def metrics(self) -> Metrics:
        """Nothing without a correction."""
        if not self.tokens:
            return {}
        return {
            "correction/importance_mean": self.importance / self.tokens,
            "correction/tokens_masked": self.masked / self.tokens,
            "correction/tokens_truncated": self.truncated / self.tokens,
            "correction/rollouts_masked": self.rollouts_masked / self.rollouts,
            "correction/rollouts_truncated": self.rollouts_truncated / self.rollouts,
            "budget/tokens_masked": float(self.masked),
        }


def _sums(sequence: IntArray, numbers: FloatArray) -> FloatArray:
    return np.asarray(np.bincount(sequence, numbers), dtype=np.float64)
