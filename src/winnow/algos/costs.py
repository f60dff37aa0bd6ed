"""What a step takes, from two measured curves: seconds of sampling and of the update by their numbers of rollouts.

The planner reads them (docs/planner.md), and so does `winnow compare --costs`, which gives runs the seconds that they
would have taken on the machine of the curves. docs/profile.md has the file and the published curves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from winnow.records import FloatArray

Scope = Literal["step", "prompt"]  # what the numbers of rollouts of a curve are of


@dataclass(frozen=True, eq=False)
class CostCurve:
    """Seconds of one call by the number of rollouts that it was given, [K] measured points with rollouts ascending.

    `tokens_per_rollout` is the length at which they were measured; None: it is not known, and lengths do not count.
    """

    rollouts: FloatArray
    seconds: FloatArray
    tokens_per_rollout: float | None = None

    def at(self, rollouts: float, tokens: float) -> float:
        """Seconds of a call for so many rollouts with so many completion tokens in all.

        Between two points the seconds are interpolated linearly. Beyond the last they grow as between the last two, and
        below the first they fall by that slope of the first two, to 0 at the least. A call whose rollouts are longer
        or shorter than those of the measurement takes proportionally more or less. 0 for a call without rollouts.
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
        """Seconds of sampling rollouts that end at different lengths, at most `at_once` side by side.

        `lasting` [T] is the share of rollouts that are longer than t = 0 ... T - 1 tokens, so that its sum is the mean
        length. A token takes as long as one of a call with as many rollouts as are not finished, by this curve. Where
        more are sampled than fit side by side, one begins as another ends, until the last `at_once` are under way.
        Where the curve's length is not known, lengths do not count.
        """
        if rollouts <= 0:
            return 0.0
        side_by_side = min(rollouts, at_once)
        turns = rollouts / side_by_side - 1
        if self.tokens_per_rollout is None:
            return (turns + 1) * self.at(side_by_side, 0.0)
        under_way = 1 - (1 - lasting) ** side_by_side  # the chance that a rollout still is
        each = [self.at(max(1.0, side_by_side * share), max(1.0, side_by_side * share)) for share in lasting]
        full = self.at(side_by_side, side_by_side * float(lasting.sum()))
        return turns * full + float(under_way @ np.array(each))


@dataclass(frozen=True)
class StepWork:
    """What a step did, as its metrics count it."""

    prompts: int
    rollouts: float  # sampled; those of a probe are a call of their own
    tokens_generated: float
    trained: float  # rollouts that reached the update, each once for every epoch
    tokens_trained: float


@dataclass(frozen=True, eq=False)
class StepCosts:
    """The two curves, and what else a step takes.

    `per` is "step" where the curves count the rollouts of a whole step, which one machine works through, and "prompt"
    where they count those of one prompt, each prompt having such a machine to itself.
    """

    sampling: CostCurve
    update: CostCurve
    per: Scope = "step"
    seconds_per_step: float = 0.0
    seconds_per_rollout: float = 0.0  # sampled: verification, the log
    source: str = ""

    def seconds(self, work: StepWork) -> float:
        """Seconds of a step. Prompts that share a machine add up; the others take as long as their mean."""
        parts = 1 if self.per == "step" else max(1, work.prompts)
        return (
            self.sampling.at(work.rollouts / parts, work.tokens_generated / parts)
            + self.update.at(work.trained / parts, work.tokens_trained / parts)
            + self.seconds_per_rollout * work.rollouts / parts
            + self.seconds_per_step
        )
