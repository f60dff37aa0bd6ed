"""The cost of a step from two curves: seconds of sampling and of the update by their numbers of rollouts.

The planner reads them, and scales them to the phases of a run (docs/planner.md). `winnow compare --costs` reads them,
too, and gives runs the seconds that they would have cost on the machine of the curves. docs/commands.md documents the
file and the published curves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from winnow.records import FloatArray

Scope = Literal["step", "prompt"]  # what a curve's numbers of rollouts count


@dataclass(frozen=True, eq=False)
class CostCurve:
    """Seconds of a call by its number of rollouts, [K] measured points with rollouts ascending.

    `tokens_per_rollout` is the length of the measured rollouts. Where it is None (unknown), lengths do not count. With
    `mixed_lengths`, the rollouts ended at different lengths, as in training, and it is their mean.
    """

    rollouts: FloatArray
    seconds: FloatArray
    tokens_per_rollout: float | None = None
    mixed_lengths: bool = False

    def at(self, rollouts: float, tokens: float) -> float:
        """Seconds of a call for `rollouts` rollouts with `tokens` completion tokens in all.

        Between two points the seconds are interpolated linearly. Beyond the last they grow as between the last two;
        below the first they fall with the slope of the first two, to 0 at the least. A call with longer or shorter
        rollouts than the measured ones costs proportionally more or less. 0 for a call without rollouts.
        """
        if rollouts <= 0:
            return 0.0
        return float(self._each(np.array([rollouts]))[0]) * self._longer(tokens / rollouts)

    def _each(self, rollouts: FloatArray) -> FloatArray:
        """Seconds of calls at the measured length, for [K] numbers of rollouts above 0."""
        x, y = self.rollouts, self.seconds
        if len(x) == 1:
            return np.asarray(y[0] * rollouts / x[0], dtype=np.float64)
        inside = np.interp(rollouts, x, y)
        below = y[0] - (x[0] - rollouts) * (y[1] - y[0]) / (x[1] - x[0])
        beyond = y[-1] + (rollouts - x[-1]) * (y[-1] - y[-2]) / (x[-1] - x[-2])
        return np.maximum(0.0, np.where(rollouts < x[0], below, np.where(rollouts > x[-1], beyond, inside)))

    def _longer(self, length: float) -> float:
        """How many times as long as the measured ones rollouts of `length` tokens are."""
        return 1.0 if self.tokens_per_rollout is None else length / self.tokens_per_rollout

    def of_lengths(self, rollouts: float, lasting: FloatArray, *, at_once: float = np.inf) -> float:
        """Seconds to sample rollouts that end at different lengths, at most `at_once` in parallel.

        `lasting` [T] is the share of rollouts longer than t = 0 ... T - 1 tokens; its sum is the mean length. A token
        costs as much as a token of a call with the number of unfinished rollouts, by this curve. Where more rollouts
        are sampled than fit in parallel, one starts as another ends, until the last `at_once` are under way. Where the
        curve's length is unknown, lengths do not count. A curve of mixed lengths already contains the seconds in which
        only the longest rollouts are unfinished, so the mean length alone counts.
        """
        if rollouts <= 0:
            return 0.0
        side_by_side = min(rollouts, at_once)
        turns = rollouts / side_by_side - 1
        if self.tokens_per_rollout is None:
            return (turns + 1) * self.at(side_by_side, 0.0)
        full = self.at(side_by_side, side_by_side * float(lasting.sum()))
        if self.mixed_lengths:
            return (turns + 1) * full
        under_way = 1 - (1 - lasting) ** side_by_side  # the chance that any rollout is
        unfinished = np.maximum(1.0, side_by_side * lasting)
        each = self._each(unfinished) * self._longer(1.0)
        return turns * full + float(under_way @ each)


@dataclass(frozen=True)
class StepWork:
    """The work of a step, by its metrics."""

    prompts: int
    rollouts: float  # sampled, without those of a probe, which is a separate call
    tokens_generated: float
    trained: float  # rollouts in the update, counted once per epoch
    tokens_trained: float


@dataclass(frozen=True, eq=False)
class StepCosts:
    """The two curves and the other costs of a step.

    `per` is "step" where the curves count the rollouts of a whole step on one machine. It is "prompt" where they count
    those of one prompt, and each prompt has such a machine.
    """

    sampling: CostCurve
    update: CostCurve
    per: Scope = "step"
    seconds_per_step: float = 0.0
    seconds_per_rollout: float = 0.0  # per sampled rollout: verification, the log
    source: str = ""

    def seconds(self, work: StepWork) -> float:
        """Seconds of a step. With `per` "step" all prompts add up; with "prompt" the step costs the mean of its
        prompts.
        """
        parts = 1 if self.per == "step" else max(1, work.prompts)
        return (
            self.sampling.at(work.rollouts / parts, work.tokens_generated / parts)
            + self.update.at(work.trained / parts, work.tokens_trained / parts)
            + self.seconds_per_rollout * work.rollouts / parts
            + self.seconds_per_step
        )


@dataclass(frozen=True)
class PredictedSeconds:
    """Predicted seconds of a step."""

    sampling: float
    update: float  # including old log-probs
    rest: float  # verification, selection, weight sync

    @property
    def total(self) -> float:
        return self.sampling + self.update + self.rest


@dataclass(frozen=True, eq=False)
class StepClock:
    """The curves of `costs`, each times a factor, and the seconds of the rest of a step."""

    costs: StepCosts
    lasting: FloatArray  # [T] the share of rollouts longer than t tokens
    sampling_factor: float = 1.0
    update_factor: float = 1.0
    per_rollout: float = 0.0  # seconds of verification and selection per sampled rollout
    per_step: float = 0.0  # other seconds

    @classmethod
    def of(cls, costs: StepCosts, lasting: FloatArray) -> StepClock:
        """Curves and rest as `costs` has them."""
        return cls(costs, lasting, per_rollout=costs.seconds_per_rollout, per_step=costs.seconds_per_step)

    def seconds(self, work: StepWork, *, at_once: float) -> PredictedSeconds:
        """Seconds of a step whose engine samples at most `at_once` rollouts concurrently."""
        sampling, update = self._read(work, at_once)
        return PredictedSeconds(
            sampling=self.sampling_factor * sampling,
            update=self.update_factor * update,
            rest=self.per_rollout * work.rollouts / self._parts(work) + self.per_step,
        )

    def extrapolates(self, work: StepWork, *, at_once: float) -> bool:
        """Whether the work is beyond the last point of a curve. A curve of one point is a proportion, with no end."""
        parts = self._parts(work)
        ends = (
            (min(work.rollouts / parts, at_once), self.costs.sampling),
            (work.trained / parts, self.costs.update),
        )
        return any(len(curve.rollouts) > 1 and of > curve.rollouts[-1] for of, curve in ends)

    def scaled(self, work: StepWork, seconds: Mapping[str, float], *, at_once: float) -> StepClock | None:
        """This clock with factors such that this work takes the measured seconds of its phases; None if a curve is 0
        there, so that no factor exists.
        """
        sampling, update = self._read(work, at_once)
        if sampling <= 0 or update <= 0:
            return None
        spent = {name: seconds.get(name, 0.0) for name in (*SAMPLED, *TRAINED, *JUDGED, *ONCE)}
        return StepClock(
            self.costs,
            self.lasting,
            sampling_factor=sum(spent[name] for name in SAMPLED) / sampling,
            update_factor=sum(spent[name] for name in TRAINED) / update,
            per_rollout=sum(spent[name] for name in JUDGED) / (work.rollouts / self._parts(work)),
            per_step=sum(spent[name] for name in ONCE),
        )

    def _read(self, work: StepWork, at_once: float) -> tuple[float, float]:
        """Unscaled seconds of sampling, and of the update."""
        parts = self._parts(work)
        return (
            self.costs.sampling.of_lengths(work.rollouts / parts, self.lasting, at_once=at_once),
            self.costs.update.at(work.trained / parts, work.tokens_trained / parts),
        )

    def _parts(self, work: StepWork) -> int:
        """Number of machines that share a step: one per prompt if the curves count rollouts per prompt, else 1."""
        return 1 if self.costs.per == "step" else max(1, work.prompts)


# The phases of a step by what they grow with: sampled rollouts, trained ones, verdicts, and none of them
SAMPLED, TRAINED, JUDGED, ONCE = ("generate",), ("logprobs", "update"), ("verify", "select"), ("sync", "other")


def proportional(work: StepWork, seconds: Mapping[str, float]) -> StepCosts:
    """Costs in proportion to the rollouts, at the measured seconds of the phases of a step with this work."""
    trained = max(work.trained, 1e-9)

    def line(rollouts: float, tokens: float, phases: tuple[str, ...]) -> CostCurve:
        spent = sum(seconds.get(name, 0.0) for name in phases)
        return CostCurve(np.array([rollouts]), np.array([spent]), tokens / rollouts or None, mixed_lengths=True)

    return StepCosts(
        line(work.rollouts, work.tokens_generated, SAMPLED),
        line(trained, work.tokens_trained, TRAINED),
        seconds_per_step=sum(seconds.get(name, 0.0) for name in ONCE),
        seconds_per_rollout=sum(seconds.get(name, 0.0) for name in JUDGED) / work.rollouts,
        source="in proportion to the tokens",
    )
