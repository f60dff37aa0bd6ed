"""The plan before any run: the memory, the cost curves, and a prior on pass rates in place of a log."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from winnow.algos.costs import COMPUTE, StepClock, StepCosts, proportional
from winnow.algos.setting_table import Table, table
from winnow.algos.size_prior import Prior
from winnow.algos.step_plan import Setting, StepModel, StepStatistics, candidates
from winnow.core.sizes import may_start
from winnow.training.size_fits import Fits, PlanRequest

CLOSE = 0.9  # of the best progress per second: as good as the best


@dataclass(frozen=True, eq=False)
class FirstPlan:
    """A first setting for a configuration: the one that loses least over the worlds of a prior, by mean log rate."""

    fits: Fits
    request: PlanRequest
    prior: Prior
    costs: StepCosts | None
    draws: int = 200
    seed: int = 0

    @cached_property
    def model(self) -> StepModel:
        return self.fits.model(self.request)

    @cached_property
    def settings(self) -> list[Setting]:
        """The setting of the configuration, and candidates that fit and are within the bounds of its [plan].

        Without cost curves, a step samples about as many rollouts as in the configuration.
        """
        found = candidates(
            self.model.current, prompts=self.costs is not None, divisor=self.model.updates, most=self.fits.problems
        )
        startable = [one for one in found if may_start(one, self.fits.config)]
        return sorted({*self.fits.fitting(startable), self.model.current})

    @cached_property
    def table(self) -> Table:
        """One draw per world."""
        worlds = list(self.prior.worlds(self.draws, self.seed))
        return table(self.model, self.settings, worlds[0], worlds, self.clock, self.at_once)

    @cached_property
    def relative(self) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        """[D, C] the progress per second of each setting in each world, divided by that of the world's best."""
        return np.asarray(self.table.rate / self.table.rate.max(axis=1, keepdims=True), dtype=np.float64)

    @cached_property
    def order(self) -> list[int]:
        """The places of the settings, the best first."""
        with np.errstate(divide="ignore"):
            score = np.log(self.relative).mean(axis=0)
        return [int(place) for place in np.lexsort(([one.sampled for one in self.settings], -score))]

    @property
    def best(self) -> Setting:
        fits = (self.settings[place] for place in self.order if self.fits.fit(self.settings[place]) is not None)
        return next(fits)

    def regret(self, setting: Setting) -> tuple[float, float]:
        """(geometric mean of the progress per second relative to the best, share of worlds with at least CLOSE)."""
        own = self.relative[:, self.settings.index(setting)]
        with np.errstate(divide="ignore"):
            return float(np.exp(np.log(own).mean())), float((own >= CLOSE).mean())

    def neighbour(self, **changes: int) -> float | None:
        """Progress per second with another size, relative to the chosen setting; None if it is no candidate."""
        other = Setting(**{**vars(self.best), **changes})
        if other not in self.settings or other == self.best:
            return None
        with np.errstate(divide="ignore"):
            chosen = self.table.rate[:, self.settings.index(self.best)]
            ratio = self.table.rate[:, self.settings.index(other)] / chosen
            return float(np.exp(np.log(ratio).mean()))

    def mean(self, setting: Setting, of: str) -> float:
        """The mean over worlds of a column of the table."""
        return float(getattr(self.table, of)[:, self.settings.index(setting)].mean())

    def extrapolates(self, setting: Setting) -> bool:
        """Whether its cost is beyond the last point of a curve, by the work of the first world."""
        return self.table.predicted[self.settings.index(setting)].extrapolated

    @property
    def accuracy(self) -> float:
        """The mean pass rate over all prompts of all worlds, with those that are never or always solved."""
        return float(self.table.reward.mean())

    def at_once(self, setting: Setting) -> float:
        fit = self.fits.fit(setting)
        return math.inf if fit is None else fit.at_once

    def clock(self, statistics: StepStatistics) -> StepClock:
        if self.costs is None:
            length = self.prior.length
            spent = {"generate": COMPUTE["generate"] * length, "update": COMPUTE["update"] * length}
            return StepClock(proportional(statistics.work, spent), statistics.lasting)
        return StepClock(self.costs, statistics.lasting)
