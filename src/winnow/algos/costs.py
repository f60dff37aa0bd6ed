"""The cost of a step from two curves: seconds of sampling and of the update by their numbers of rollouts.

The planner reads them, and scales them to the phases of a run (docs/planner.md). `winnow compare --costs` reads them,
too, and gives runs the seconds that they would have cost on the machine of the curves. docs/commands.md documents the
file and the published curves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from winnow.records import BoolArray, FloatArray

Numbers = float | FloatArray  # a number, or a number for each of several calls, steps or settings
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

    def at(self, rollouts: Numbers, tokens: Numbers) -> FloatArray:
        """Seconds of calls for `rollouts` rollouts with `tokens` completion tokens in all.

        Between two points the seconds are interpolated linearly. Beyond the last they grow as between the last two;
        below the first they fall with the slope of the first two, to 0 at the least. A call with longer or shorter
        rollouts than the measured ones costs proportionally more or less. 0 for a call without rollouts.
        """
        calls = np.where(np.asarray(rollouts) > 0, rollouts, 1.0)
        return np.where(np.asarray(rollouts) > 0, self._each(calls) * self._longer(tokens / calls), 0.0)

    def _each(self, rollouts: FloatArray) -> FloatArray:
        """Seconds of calls at the measured length, for numbers of rollouts above 0."""
        x, y = self.rollouts, self.seconds
        if len(x) == 1:
            return np.asarray(y[0] * rollouts / x[0], dtype=np.float64)
        if len(x) == 2:
            line = y[0] + (rollouts - x[0]) * ((y[1] - y[0]) / (x[1] - x[0]))
            return np.asarray(np.maximum(0.0, line), dtype=np.float64)
        inside = np.interp(rollouts, x, y)
        below = y[0] - (x[0] - rollouts) * (y[1] - y[0]) / (x[1] - x[0])
        beyond = y[-1] + (rollouts - x[-1]) * (y[-1] - y[-2]) / (x[-1] - x[-2])
        return np.maximum(0.0, np.where(rollouts < x[0], below, np.where(rollouts > x[-1], beyond, inside)))

    def _longer(self, length: Numbers) -> Numbers:
        """How many times as long as the measured ones rollouts of `length` tokens are."""
        return 1.0 if self.tokens_per_rollout is None else length / self.tokens_per_rollout

    def of_lengths(self, rollouts: Numbers, lasting: FloatArray, *, at_once: Numbers = np.inf) -> FloatArray:
        """Seconds to sample rollouts that end at different lengths, at most `at_once` in parallel, for each call.

        `lasting` [T] is the share of rollouts longer than t = 0 ... T - 1 tokens; its sum is the mean length. A token
        costs as much as a token of a call with the number of unfinished rollouts, by this curve. Where more rollouts
        are sampled than fit in parallel, one starts as another ends, until the last `at_once` are under way. Where the
        curve's length is unknown, lengths do not count. A curve of mixed lengths already contains the seconds in which
        only the longest rollouts are unfinished, so the mean length alone counts.
        """
        calls = np.where(np.asarray(rollouts) > 0, rollouts, 1.0)
        side_by_side = np.minimum(calls, at_once)
        ends = self.tokens_per_rollout is not None and not self.mixed_lengths
        turns, found = calls / side_by_side - ends, np.zeros(side_by_side.shape)
        if turns.any():
            found = turns * self.at(side_by_side, side_by_side * float(lasting.sum()))
        if ends:
            numbers, place = np.unique(side_by_side, return_inverse=True)  # many settings sample equally many
            under_way = 1 - (1 - lasting) ** numbers[:, None]  # the chance that any rollout is
            each = self._each(np.maximum(1.0, numbers[:, None] * lasting)) * self._longer(1.0)
            found = found + (under_way * each).sum(axis=1)[place].reshape(side_by_side.shape)
        return np.where(np.asarray(rollouts) > 0, found, 0.0)


class StepWork(NamedTuple):
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

    @property
    def ends(self) -> tuple[float, float]:
        """The rollouts of a machine at the last points of both curves, beyond which seconds are extrapolated. A curve
        of one point is a proportion, with no end.
        """
        curves = (self.sampling.rollouts, self.update.rollouts)
        sampled, updated = (np.inf if self.open_ended or len(of) == 1 else float(of[-1]) for of in curves)
        return sampled, updated

    def extrapolates(self, work: StepWork) -> bool:
        """Whether a step has more rollouts than the last point of a curve."""
        parts, (sampled, updated) = 1 if self.per == "step" else max(1, work.prompts), self.ends
        return work.rollouts > parts * sampled or work.trained > parts * updated

    def seconds(self, work: StepWork) -> float:
        """Seconds of a step. With `per` "step" all prompts add up; with "prompt" the step costs the mean of its
        prompts.
        """
        parts = 1 if self.per == "step" else max(1, work.prompts)
        return float(
            self.sampling.at(work.rollouts / parts, work.tokens_generated / parts)
            + self.update.at(work.trained / parts, work.tokens_trained / parts)
            + self.seconds_per_rollout * work.rollouts / parts
            + self.seconds_per_step
        )


class PredictedSeconds(NamedTuple):
    """Predicted seconds of a step."""

    sampling: float
    update: float  # including old log-probs
    rest: float  # verification, selection, weight sync

    @property
    def total(self) -> float:
        return self.sampling + self.update + self.rest


@dataclass(frozen=True, eq=False)
class StepClock:
    """The seconds of steps by `costs`, with each curve times a factor."""

    costs: StepCosts
    lasting: FloatArray  # [T] the share of rollouts longer than t tokens
    sampling_factor: float = 1.0
    update_factor: float = 1.0

    def seconds(self, works: Sequence[StepWork], *, at_once: Numbers) -> list[PredictedSeconds]:
        """Seconds of steps whose engine samples at most `at_once` rollouts concurrently, a number or one per step."""
        sampling, update, rollouts = self._read(works, at_once)
        columns = (
            self.sampling_factor * sampling,
            self.update_factor * update,
            self.costs.seconds_per_rollout * rollouts + self.costs.seconds_per_step,
        )
        return [PredictedSeconds(*row) for row in np.stack(columns, axis=1).tolist()]

    def extrapolates(self, works: Sequence[StepWork], *, at_once: Numbers) -> list[bool]:
        """Whether the work of a machine is beyond the last point of a curve."""
        rollouts, _, trained, _ = self._parts(works)
        sampled, updated = self.costs.ends
        beyond: BoolArray = (np.minimum(rollouts, at_once) > sampled) | (trained > updated)
        return [bool(one) for one in beyond]

    def scaled(self, work: StepWork, seconds: Mapping[str, float], *, at_once: float) -> StepClock | None:
        """This clock with factors such that this work takes the measured seconds of its phases; None if a curve is 0
        there, so that no factor exists.
        """
        sampling, update, rollouts = (float(of[0]) for of in self._read([work], at_once))
        if sampling <= 0 or update <= 0:
            return None
        spent = {name: seconds.get(name, 0.0) for name in (*SAMPLED, *TRAINED, *JUDGED, *ONCE)}
        each, once = sum(spent[name] for name in JUDGED) / rollouts, sum(spent[name] for name in ONCE)
        return StepClock(
            replace(self.costs, seconds_per_rollout=each, seconds_per_step=once),
            self.lasting,
            sampling_factor=sum(spent[name] for name in SAMPLED) / sampling,
            update_factor=sum(spent[name] for name in TRAINED) / update,
        )

    def _read(self, works: Sequence[StepWork], at_once: Numbers) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Per step and machine: unscaled seconds of sampling and of the update, and rollouts."""
        rollouts, _, trained, tokens = self._parts(works)
        return (
            self.costs.sampling.of_lengths(rollouts, self.lasting, at_once=at_once),
            self.costs.update.at(trained, tokens),
            rollouts,
        )

    def _parts(self, works: Sequence[StepWork]) -> FloatArray:
        """[4, K] the work of each machine that shares a step: one per prompt if the curves count rollouts per prompt,
        else one.
        """
        prompts, *work = np.array(works, dtype=np.float64).T
        return np.array(work) / (1 if self.costs.per == "step" else np.maximum(1, prompts))


# The phases of a step by what they grow with: sampled rollouts, trained ones, verdicts, and none of them
SAMPLED, TRAINED, JUDGED, ONCE = ("generate",), ("logprobs", "update"), ("verify", "select"), ("sync", "other")


class MeasuredWork(NamedTuple):
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
    rollouts, generated, trained, sampling, update, rest = np.array(measured, dtype=np.float64).T
    length = float(lasting.sum())
    # Tokens that are sampled one after another, until the longest of the rollouts ends
    passes = CostCurve(np.array([1.0, 2.0]), np.full(2, length), length).of_lengths(rollouts, lasting, at_once=at_once)
    a, b = _two_parts(passes, generated, sampling, counted, FIXED["sampling"])
    u, v = _two_parts((trained > 0).astype(np.float64), trained, update, counted, FIXED["update"])
    once, each = _two_parts(np.ones(len(measured)), rollouts, rest, counted, FIXED["rest"])
    of_trained = work.tokens_trained / work.trained if work.trained else length
    few, many = np.array([1.0, 2.0]), work.tokens_generated / work.rollouts / length
    return StepCosts(
        CostCurve(few, length * (a + b * many * few), length),
        CostCurve(few, u + v * of_trained * few, of_trained),
        seconds_per_step=once,
        seconds_per_rollout=each,
        source="measured in the run",
        open_ended=True,
    )


def _two_parts(
    fixed: FloatArray, grows: FloatArray, seconds: FloatArray, times: FloatArray, share: float
) -> tuple[float, float]:
    """(p, q), both at least 0, with seconds of about p fixed + q grows."""
    used = (times > 0) & (seconds > 0) & (grows > 0)
    if not used.any():
        return 0.0, 0.0
    parts, spent, weight = np.stack([fixed, grows])[:, used], seconds[used], times[used]
    unit = parts @ weight / (spent @ weight)  # one over the cost of a part that takes all seconds
    rows = parts / unit[:, None] / spent
    weighted = rows * weight
    (a, b), (_, c) = (weighted @ rows.T + DOUBT * np.eye(2)).tolist()  # of the normal equations
    d, e = (weighted.sum(axis=1) + DOUBT * np.array([share, 1 - share])).tolist()
    found = [(c * d - b * e) / (a * c - b * b), (a * e - b * d) / (a * c - b * b)]
    if min(found) < 0:  # then the least squares have this part at 0
        found = [0.0, max(0.0, e / c)] if found[0] < found[1] else [max(0.0, d / a), 0.0]
    return found[0] / float(unit[0]), found[1] / float(unit[1])


def proportional(work: StepWork, seconds: Mapping[str, float]) -> StepCosts:
    """Costs in proportion to the rollouts, at the measured seconds of the phases of a step with this work."""

    def line(rollouts: float, tokens: float, phases: tuple[str, ...]) -> CostCurve:
        spent = sum(seconds.get(name, 0.0) for name in phases)
        return CostCurve(np.array([rollouts]), np.array([spent]), tokens / rollouts or None, mixed_lengths=True)

    return StepCosts(
        line(work.rollouts, work.tokens_generated, SAMPLED),
        line(max(work.trained, 1e-9), work.tokens_trained, TRAINED),
        seconds_per_step=sum(seconds.get(name, 0.0) for name in ONCE),
        seconds_per_rollout=sum(seconds.get(name, 0.0) for name in JUDGED) / work.rollouts,
        source="in proportion to the tokens",
    )
