"""The plan from a run's log: which costs it is made with, its answers, and what the log cannot answer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from winnow.algos.costs import COMPUTE, StepClock, StepCosts, proportional
from winnow.algos.setting_table import Table, table
from winnow.algos.size_choice import MEASURED, SUPPOSED
from winnow.algos.step_plan import NOISE, Setting, StepModel, StepStatistics, candidates
from winnow.errors import DataError, WinnowError
from winnow.evaluation.settings import settings_of
from winnow.run_view.forecast import RunForecast, forecast_of
from winnow.training.resolve import resolve_members
from winnow.training.size_fits import Fits, PlanRequest
from winnow_lab.plan.advice import (
    ComparedSetting,
    ExpectedStep,
    Range,
    SameProgress,
    against,
    compare,
    drawn,
    expected,
    questions,
    saving,
)
from winnow_lab.plan.evidence import LogWindow

FEW_PROMPTS = 10  # a bootstrap of fewer covers too seldom: docs/statistics.md has it for three seeds


@dataclass(frozen=True, eq=False)
class LogPlan:
    """A plan for the last steps of a run. `draws` and `seed` are those of the bootstrap. With `trust_run`, the files
    that the run names are imported, also those of another user's run.
    """

    evidence: LogWindow
    request: PlanRequest
    costs: StepCosts | None = None
    draws: int = 200
    seed: int = 0
    trust_run: bool = False

    @cached_property
    def fits(self) -> Fits | WinnowError | None:
        """The memory of a run of winnow, or why it is not known; None for a run of another trainer."""
        if self.evidence.config is None:
            return None
        try:
            config, manifest = settings_of(self.evidence.run, {}, trust_run=self.trust_run)
            return Fits(resolve_members(config, manifest.base, recipe=manifest.recipe), self.request.memory)
        except WinnowError as error:  # its model, data or reward is elsewhere now
            return error

    @cached_property
    def model(self) -> StepModel:
        if isinstance(self.fits, Fits):
            return replace(self.fits.model(self.request), current=self.evidence.setting)  # it may have chosen others
        evidence, request, config = self.evidence, self.request, self.evidence.config
        return StepModel(
            evidence.setting,
            evidence.rule,
            request.noise,
            request.law,
            evidence.epochs,
            1 if config is None else config.update.updates_per_step,
            trains_all=config is None or bool(config.terms),
        )

    @cached_property
    def settings(self) -> list[Setting]:
        """The current setting, which the log shows to fit, and the candidates that fit here."""
        fits = self.fits
        most = fits.problems if isinstance(fits, Fits) else math.inf
        found = candidates(self.model.current, prompts=self.varies_prompts, divisor=self.model.updates, most=most)
        every = list(found)
        return sorted({*fits.fitting(every), self.model.current}) if isinstance(fits, Fits) else every

    @property
    def varies_prompts(self) -> bool:
        """Whether the seconds of more or fewer rollouts per step are known."""
        return self.costs is not None

    @property
    def in_seconds(self) -> bool:
        """Whether costs are seconds. Otherwise they are operations per weight."""
        return self.costs is not None or self.evidence.has_phases

    @cached_property
    def statistics(self) -> StepStatistics:
        return self.evidence.statistics()

    @cached_property
    def drawn(self) -> list[StepStatistics]:
        """The statistics of every draw."""
        return list(drawn(self.evidence, self.draws, self.seed))

    @cached_property
    def table(self) -> Table:
        return table(self.model, self.settings, self.statistics, self.drawn, self.clock, self.at_once)

    @cached_property
    def answers(self) -> dict[str, ComparedSetting]:
        """question -> the setting with the most progress per second among those that answer it."""
        asked = questions(self.settings, self.model.current, prompts=self.varies_prompts)
        return {name: compare(self.table, self.model.current, among) for name, among in asked.items()}

    @property
    def best(self) -> ComparedSetting:
        return self.answers["together"]

    @property
    def keep(self) -> bool:
        """Whether the log shows no setting that is better than the current one at every noise of the gradient."""
        return not all(gain.low > 1 for gain in self.gains.values())

    @property
    def other_noises(self) -> tuple[float, float]:
        """Less and more than the noise of the plan, by factors."""
        less, _, more = MEASURED if self.request.measured else SUPPOSED
        return less, more

    @cached_property
    def gains(self) -> dict[float, Range]:
        """How many times the progress per second of now the best setting makes, by the factor of the noise."""
        now, best = self.model.current, self.best.prediction.setting
        found = {1.0: self.best.per_second}
        for factor in self.other_noises:
            model = replace(self.model, noise=self.model.noise.times(factor))
            both = table(model, [now, best], self.statistics, self.drawn, self.clock, self.at_once)
            found[factor] = against(both, now, 1).per_second
        return dict(sorted(found.items()))

    def best_at(self, factor: float) -> Setting:
        """The best setting if the gradient's noise is `factor` times the one of the plan."""
        model, most = replace(self.model, noise=self.model.noise.times(factor)), list(map(self.at_once, self.settings))
        found = model.predict(self.settings, self.statistics, self.clock(self.statistics), at_once=np.array(most))
        return max(found, key=lambda one: one.rate).setting

    @cached_property
    def ranking(self) -> list[ComparedSetting]:
        """All settings, the best first; of equal ones, the one that samples less."""
        order = sorted(
            range(len(self.settings)),
            key=lambda place: (-self.table.predicted[place].rate, self.settings[place].sampled),
        )
        return [against(self.table, self.model.current, place) for place in order]

    @cached_property
    def expected(self) -> ExpectedStep:
        """Of a step of the best setting. A second run is supposed to have as many steps."""
        place = self.settings.index(self.best.prediction.setting)
        return self.expected_of(place, groups=self.model.current.prompts / self.settings[place].prompts)

    def expected_of(self, place: int, *, groups: float) -> ExpectedStep:
        """Of a step of a setting; see `advice.expected`."""
        return expected(self.table, place, groups=groups)

    @cached_property
    def saving(self) -> SameProgress:
        place = self.settings.index(self.best.prediction.setting)
        return saving(self.table, self.model.current, place, len(self.evidence.steps))

    @cached_property
    def critical_prompts(self) -> Range:
        """The prompts at which signal and noise of an update are equal, in the current setting."""
        now = self.model.current
        each = [self.model.critical_prompts(one.mixture, now) for one in self.drawn]
        return Range.of(self.model.critical_prompts(self.statistics.mixture, now), np.array(each))

    @cached_property
    def forecast(self) -> RunForecast | None:
        return forecast_of(self.evidence.every, self.evidence.evaluated)

    def at_once(self, setting: Setting) -> float:
        """The most rollouts that are sampled at a time."""
        fit = self.fits.fit(setting) if isinstance(self.fits, Fits) else None
        if fit is not None:
            return fit.at_once
        config = self.evidence.config
        return config.rollout.max_rollouts_at_once if config else math.inf

    def clock(self, statistics: StepStatistics) -> StepClock:
        """Costs, scaled to the seconds of these statistics as far as they are known."""
        work, seconds = statistics.work, statistics.seconds
        if not work.trained and statistics is not self.statistics:  # drawn steps without an update have no cost of one
            return replace(self.clock(self.statistics), lasting=statistics.lasting)
        if self.costs is None:
            return self._measured(statistics)
        clock = StepClock(self.costs, statistics.lasting)
        if not self.request.calibrate or not self.evidence.has_phases:
            return clock
        scaled = clock.scaled(work, seconds, at_once=self.at_once(self.evidence.setting))
        if scaled is None:
            raise DataError(
                f"{self.costs.source or 'the cost curves'}: at the {work.rollouts:.0f} rollouts that a step of "
                f"{self.evidence.run} samples, or the {work.trained:.0f} that it trains on, a curve is 0",
                remedy="measure points near these numbers",
                code="data.incomplete",
            )
        return scaled

    def _measured(self, statistics: StepStatistics) -> StepClock:
        """Seconds fitted to the steps, with a part per call; operations if the log has no seconds of phases."""
        work, seconds = statistics.work, statistics.seconds
        if not self.in_seconds:
            seconds = {"generate": COMPUTE["generate"] * work.tokens_generated}
            seconds["update"] = COMPUTE["update"] * work.tokens_trained
            return StepClock(proportional(work, seconds), statistics.lasting)
        at_once = self.at_once(self.evidence.setting)
        clock = StepClock(self.evidence.costs(work, statistics.times, at_once=at_once), statistics.lasting)
        return clock.scaled(work, seconds, at_once=at_once) or clock

    def unknown(self) -> Iterator[tuple[str, str]]:
        """(what cannot be known from this log, why; with what is supposed instead)."""
        evidence = self.evidence
        if (prompts := int(evidence.prompt.max()) + 1) < FEW_PROMPTS:
            what = f"the log has {prompts} of them, and intervals from fewer than {FEW_PROMPTS} are too narrow"
            yield "how much prompts differ", what
        if not evidence.has_tokens:
            yield "tokens", "the log has no lengths of rollouts, so every rollout counts as one token"
        if not evidence.has_phases:
            logged = "only the seconds of whole steps" if evidence.has_seconds else "no seconds"
            lacks = f"the log has {logged}, and neither those of sampling nor those of the update"
            if evidence.config is not None and evidence.config.rollout.ahead:
                lacks = "with rollout.ahead = 1 sampling overlaps the update, and its own seconds are not read"
            yield (
                "seconds of another setting",
                f"{lacks}. "
                + (
                    "The given costs are used unscaled"
                    if self.costs is not None
                    else "Costs are counted in operations: 2 per weight for a sampled token, 6 for a trained one"
                ),
            )
        if self.costs is None:
            yield (
                "the seconds of more or fewer rollouts per step",
                "all steps of the log sample about as many, so the settings above do, too. Cost curves add the "
                "seconds of other numbers",
            )
        yield from self._about_noise()
        if evidence.config is None:
            yield (
                "the advantage and the memory",
                f"the log has no configuration. The advantage is supposed to be {evidence.rule.credit} (--advantage)",
            )
        elif isinstance(self.fits, WinnowError):
            yield "the memory of another setting", f"the configuration cannot be resolved here: {self.fits}"
        if self.forecast is None:
            yield "when the accuracy stops rising", "the log has fewer than 5 evaluations of held-out accuracy"
        yield (
            "what the policy would have become",
            "after another update every later rollout differs. Only a second run shows it",
        )

    def _about_noise(self) -> Iterator[tuple[str, str]]:
        noise = self.request.noise
        less, more = map(self.best_at, self.other_noises)
        best = self.best.prediction.setting
        same = less == more == best
        answer = "the answer stays" if same else f"the best would be {less}, and {more}"
        source, factors = "supposed to be", "a quarter and four times"
        if self.request.measured:
            source, factors = "measured on the run's updates to be", "half and twice"
        yield (
            "the noise of the gradient",
            f"{source} {noise.rollout:.3g} for a rollout and {noise.between:.3g} between prompts (--noise, --between; "
            f"of the bundled policy {NOISE.rollout:g} and {NOISE.between:g}). With {factors} of it, {answer}",
        )
