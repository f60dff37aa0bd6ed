"""The cost of a step from two measured curves: seconds of sampling and of the update by their numbers of rollouts.

The planner reads them (docs/planner.md). So does `winnow compare --costs`, which gives runs the seconds that they would
have cost on the machine of the curves. docs/profile.md documents the file and the published curves.
"""

from __future__ import annotations

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
        x, y = self.rollouts, self.seconds
        if len(x) == 1:
            seconds = float(y[0]) * rollouts / float(x[0])
        elif rollouts < x[0]:
            seconds = float(y[0] - (x[0] - rollouts) * (y[1] - y[0]) / (x[1] - x[0]))
        elif rollouts > x[-1]:
            seconds = float(y[-1] + (rollouts - x[-1]) * (y[-1] - y[-2]) / (x[-1] - x[-2]))
        else:
            seconds = float(np.interp(rollouts, x, y))
        length = 1.0 if self.tokens_per_rollout is None else tokens / rollouts / self.tokens_per_rollout
        return max(0.0, seconds) * length

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
        each = [self.at(max(1.0, side_by_side * share), max(1.0, side_by_side * share)) for share in lasting]
        return turns * full + float(under_way @ np.array(each))


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
