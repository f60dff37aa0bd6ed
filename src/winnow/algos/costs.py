"""The cost of a step from two curves: seconds of sampling and of the update by their numbers of rollouts.

The planner reads them, and scales them to the phases of a run (docs/planner.md). `winnow compare --costs` reads them,
too, and gives runs the seconds that they would have cost on the machine of the curves. docs/commands.md documents the
file and the published curves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from winnow.records import FloatArray

COMPUTE = {"generate": 2.0, "update": 6.0}  # operations per weight and token (Kaplan et al. 2020, arXiv 2001.08361)
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
    open_ended: bool = False  # whether the curves are lines, which have no last point

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
        measured = not self.costs.open_ended
        return measured and any(len(curve.rollouts) > 1 and of > curve.rollouts[-1] for of, curve in ends)

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


@dataclass(frozen=True)
class MeasuredWork:
    """The work of a step, and its seconds. An evaluation has a work, too, of which only the sampling counts."""

    rollouts: float  # sampled
    generated: float  # tokens
    trained: float  # tokens, counted once per epoch
    sampling: float  # seconds, and below
    update: float
    rest: float


FIXED = {"sampling": 0.5, "update": 0.25, "rest": 0.5}  # supposed shares of the seconds that do not grow with the work
DOUBT = 0.1  # weight of these shares, relative to one step: how much the seconds scatter over how unsure the shares are


def measured_costs(
    measured: Sequence[MeasuredWork], times: FloatArray, work: StepWork, lasting: FloatArray, *, at_once: float = np.inf
) -> StepCosts:
    """Costs with a fixed part, fitted to steps, of which the s-th counts times[s] times; further ones count once.

    A token of c rollouts that are sampled side by side takes a + b c seconds, an update u + v times its tokens, and the
    rest of a step is fixed, or grows with the rollouts. Each pair is at least 0, and has the least squares of relative
    errors. If the work hardly varies, the pair is that of the shares in FIXED.
    """
    counted = np.concatenate([times, np.ones(len(measured) - len(times))])
    of_steps = np.concatenate([times, np.zeros(len(measured) - len(times))])
    of = {name: np.array([getattr(one, name) for one in measured]) for name in vars(measured[0])}
    passes = np.array([_passes(rollouts, lasting, at_once) for rollouts in of["rollouts"]])
    a, b = _two_parts(passes, of["generated"], of["sampling"], counted, FIXED["sampling"])
    u, v = _two_parts((of["trained"] > 0).astype(np.float64), of["trained"], of["update"], of_steps, FIXED["update"])
    once, each = _two_parts(np.ones(len(measured)), of["rollouts"], of["rest"], of_steps, FIXED["rest"])
    length, trained = float(lasting.sum()), work.tokens_trained / work.trained if work.trained else float(lasting.sum())
    few, many = np.array([1.0, 2.0]), work.tokens_generated / work.rollouts / length
    return StepCosts(
        CostCurve(few, length * (a + b * many * few), length),
        CostCurve(few, u + v * trained * few, trained),
        seconds_per_step=once,
        seconds_per_rollout=each,
        source="measured in the run",
        open_ended=True,
    )


def _passes(rollouts: float, lasting: FloatArray, at_once: float) -> float:
    """Tokens that are sampled one after another, until the longest of the rollouts ends."""
    ones = CostCurve(np.array([1.0, 2.0]), np.full(2, float(lasting.sum())), float(lasting.sum()))
    return ones.of_lengths(rollouts, lasting, at_once=at_once)


def _two_parts(
    fixed: FloatArray, grows: FloatArray, seconds: FloatArray, times: FloatArray, share: float
) -> tuple[float, float]:
    """(p, q), both at least 0, with seconds of about p fixed + q grows."""
    used = (times > 0) & (seconds > 0) & (grows > 0)
    if not used.any():
        return 0.0, 0.0
    parts, spent, weight = np.stack([fixed, grows], axis=1)[used], seconds[used], times[used]
    unit = weight @ parts / (weight @ spent)  # one over the cost of a part that takes all seconds
    rows = np.concatenate([np.sqrt(weight)[:, None] * parts / unit / spent[:, None], DOUBT**0.5 * np.eye(2)])
    wanted = np.concatenate([np.sqrt(weight), DOUBT**0.5 * np.array([share, 1 - share])])
    found = np.linalg.lstsq(rows, wanted, rcond=None)[0]
    if found.min() < 0:  # then the least squares have this part at 0
        kept = 1 - int(found.argmin())
        found = np.zeros(2)
        found[kept] = max(0.0, rows[:, kept] @ wanted / (rows[:, kept] @ rows[:, kept]))
    return float(found[0] / unit[0]), float(found[1] / unit[1])


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
