"""The plan of a step: signal, seconds and memory of every candidate, sorted by progress per second."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypedDict

import numpy as np

from winnow.algos.costs import StepCosts, StepWork
from winnow.algos.planning import (
    GroupSignal,
    Law,
    Noise,
    Rates,
    UpdateBounds,
    flat_share,
    group_signal,
    progress,
    second_moment,
)
from winnow.config import Config
from winnow.core.members import Members
from winnow.errors import ConfigError
from winnow.memory.plan import FreeBytes, MemoryPlan, assume_free, free_on_device
from winnow.memory.trained_model import policy_shapes
from winnow.models.adapter import trained_parameters
from winnow.models.device import planned_device
from winnow.training.budget import plan_devices
from winnow.training.prompts import run_prompts
from winnow.training.resolve import resolve_file
from winnow_lab.costs import costs_of_profile
from winnow_lab.profile.measurement import Profile, prepare_profile
from winnow_lab.profile.points import PointResult, ProfileRequest, Way
from winnow_lab.profile.run_statistics import (
    PredictedSeconds,
    RunStatistics,
    StepClock,
    calibrated,
    statistics_of,
    uncalibrated,
)
from winnow_lab.profile.setting import Setting, rule_of, setting_of, updates_of
from winnow_lab.profile.text import row

NOISE = Noise(rollout=6.3, between=4.3)  # measured on the bundled policy: docs/planner.md
SPREAD = 0.1  # share of the trained weights that AdamW's eps acts on, measured on the bundled policy
STAGES = 8  # pass rates between the current mean and the one of `until`
SAMPLED = (4, 8, 16, 32, 64, 128, 256)  # n
KEPT = (2, 4, 8, 16, 32, 64)  # m
TIMES = (0.25, 0.5, 1, 2, 4)  # prompts per step, in multiples of the configuration's
FEWEST_TOKENS = 64  # smallest micro-batch


@dataclass(frozen=True)
class PlanRequest:
    """The options of a plan."""

    prompts: int | None = None  # per step; None: TIMES the configuration's
    memory: int | None = None  # bytes of the policy's device; None: what is free on this machine
    law: Law = "fixed"
    noise: Noise = NOISE
    spread: float = SPREAD  # share of the trained weights that AdamW's eps acts on
    calibrate: bool = True  # scale the curves to the seconds of the run's phases
    until: float | None = None  # the mean pass rate up to which progress counts; None: only the current one

    def __post_init__(self) -> None:
        for name, value in (("noise", self.noise.rollout), ("between", self.noise.between), ("spread", self.spread)):
            if not 0 <= value < np.inf:
                raise ConfigError(
                    f"{name} is {value}",
                    remedy="give a number of 0 or more, measured by benchmarks/gradient_noise.py",
                    code="config.value",
                )


@dataclass(frozen=True)
class MemoryFit:
    """How n and P fit into the memory: the size of the micro-batch, and the number of concurrent rollouts."""

    tokens: int  # per micro-batch
    at_once: int
    bytes: int  # peak on the policy's device


@dataclass(frozen=True)
class Candidate:
    """A setting with its predictions, for the current pass rates or averaged over the steps up to `until`."""

    setting: Setting
    fit: MemoryFit
    flat: float  # share of groups, at the current pass rates
    progress: float  # per step
    seconds: PredictedSeconds
    extrapolated: bool  # whether a cost curve has no point at so many rollouts

    @property
    def rate(self) -> float:
        """Progress per second."""
        return self.progress / self.seconds.total


class _Mean(TypedDict):
    progress: float
    seconds: PredictedSeconds


class StepPlan:
    """Candidates for a configuration, from a run's statistics. Their seconds need the costs (`clock`).

    The constructor makes all checks that need no measurement. It raises ConfigError for an unsupported configuration
    and if no candidate fits, and DataError for files that cannot be read.
    """

    def __init__(self, members: Members, run: RunStatistics, request: PlanRequest) -> None:
        self.members, self.run, self.request = members, run, request
        self.current = setting_of(self.config, "the configuration")
        setting_of(run.config, str(run.run))
        self.device = planned_device(self.config.device)
        self.stages = self._stages()
        prompts = run_prompts(members)
        self._longest, self._most = prompts.longest, len(prompts.training.prompts)
        self._fits: dict[tuple[int, int], MemoryFit | None] = {}
        self._misfit: ConfigError | None = None  # of the first setting that does not fit
        self.settings = [setting for setting in self._all_settings() if self.fit(setting) is not None]
        if not self.settings:
            assert self._misfit is not None
            raise self._misfit.within("no candidate fits into the memory. The smallest one") from self._misfit

    @property
    def config(self) -> Config:
        return self.members.config

    def fit(self, setting: Setting) -> MemoryFit | None:
        """How the setting fits; None if it does not fit with any micro-batch."""
        key = setting.rollouts, setting.prompts  # the memory does not depend on m
        if key not in self._fits:
            self._fits[key] = self._find_fit(setting)
        return self._fits[key]

    @property
    def left_out(self) -> int:
        """Number of pairs of n and P that do not fit."""
        return sum(fit is None for fit in self._fits.values())

    @cached_property
    def bounds(self) -> UpdateBounds:
        """AdamW's bounds, in units of |mean delta|, which follows from the run's gradient norm; none without one."""
        run, rule = self.run, rule_of(self.run.config)
        setting = setting_of(run.config, str(run.run))
        group = group_signal(run.rates, setting.rollouts, setting.kept, rule)
        moment = second_moment(group, setting.prompts / run.config.update.updates_per_step, self.request.noise)
        if run.grad_norm is None or moment <= 0:
            return UpdateBounds()
        unit = run.grad_norm / moment**0.5
        optimizer, weights = self.config.optimizer, self.request.spread * self.trained_weights
        return UpdateBounds(eps=optimizer.eps * weights**0.5 / unit, clip=optimizer.max_grad_norm / unit)

    @cached_property
    def trained_weights(self) -> int:
        """Number of parameters that the optimizer updates."""
        return sum(parameter.numel() for parameter in trained_parameters(policy_shapes(self.config)).values())

    def clock(self, costs: StepCosts) -> StepClock:
        """A clock with these costs, scaled to the run's seconds if `calibrate` is set."""
        at_once = self.run.config.rollout.max_rollouts_at_once
        return calibrated(costs, self.run, at_once=at_once) if self.request.calibrate else uncalibrated(costs, self.run)

    def candidates(self, clock: StepClock) -> list[Candidate]:
        """All candidates by descending progress per second; of equal ones, the one that samples less is first."""
        candidates = [self.candidate(setting, clock) for setting in self.settings]
        return sorted(candidates, key=lambda one: (-one.rate, one.setting))

    def candidate(self, setting: Setting, clock: StepClock) -> Candidate:
        """The predictions for one setting. Raises ConfigError if it does not fit."""
        fit = self.fit(setting)
        if fit is None:
            assert self._misfit is not None
            raise self._misfit.within(f"{setting} does not fit")
        rule = rule_of(self.config)
        groups = [group_signal(rates, setting.rollouts, setting.kept, rule) for rates in self.stages]
        works = [self.work(setting, group) for group in groups]
        gains = [self._progress(setting, group) for group in groups]
        seconds = [clock.seconds(work, at_once=fit.at_once) for work in works]
        return Candidate(
            setting=setting,
            fit=fit,
            flat=flat_share(self.run.rates, setting.rollouts),
            **_over_stages(gains, seconds),
            extrapolated=any(clock.extrapolates(work, at_once=fit.at_once) for work in works),
        )

    def _progress(self, setting: Setting, group: GroupSignal) -> float:
        """Progress of a step."""
        of_update = setting.prompts / self.config.update.updates_per_step
        each = progress(group, of_update, self.request.noise, law=self.request.law, optimizer=self.bounds)
        return updates_of(self.config) * each

    def _stages(self) -> Sequence[Rates]:
        """The current pass rates, or with `until` those on the way to it."""
        until = self.request.until
        if until is None:
            return [self.run.rates]
        try:
            return self.run.rates.towards(until, STAGES)
        except ValueError as error:
            raise ConfigError(
                f"{self.run.run}: {error}",
                remedy="give a mean pass rate between that of the run and 1",
                code="config.value",
            ) from error

    def work(self, setting: Setting, group: GroupSignal) -> StepWork:
        """The work of a step, at the run's lengths. Flat groups are trained on only if a term teaches from all."""
        learning = 1.0 if self.members.objective.trains_all else group.learning
        trained = setting.prompts * group.kept * learning * self.config.update.epochs
        return StepWork(
            prompts=setting.prompts,
            rollouts=setting.sampled,
            tokens_generated=setting.sampled * self.run.length,
            trained=trained,
            tokens_trained=trained * self.run.trained_length,
        )

    def _all_settings(self) -> Iterator[Setting]:
        """The current setting, and every candidate, whether it fits or not."""
        current, requested = self.current, self.request.prompts
        prompts = self._prompts(current.prompts if requested is None else requested)
        numbers = sorted({*SAMPLED, current.rollouts})
        settings = {Setting(n, m, p) for p in prompts for n in numbers for m in {*KEPT, current.kept, n} if m <= n}
        yield from sorted(settings | {current})

    def _prompts(self, base: int) -> Sequence[int]:
        if base > self._most:
            raise ConfigError(
                f"a step of {base} prompts needs as many problems, and the task has {self._most}",
                remedy="request fewer prompts",
                key="rollout.prompts_per_step",
                code="config.value",
            )
        if self.request.prompts is not None:
            return [base]
        divisor = self.config.update.updates_per_step
        numbers = {int(base * times) for times in TIMES}
        return sorted(p for p in numbers if divisor <= p <= self._most)

    def _find_fit(self, setting: Setting) -> MemoryFit | None:
        """Halve the configuration's micro-batch until the setting fits; None below FEWEST_TOKENS."""
        tokens = self.config.update.tokens_per_micro_batch
        while True:
            plan, free_on = self._planned(setting, tokens)
            try:
                plan.check(free_on)
            except ConfigError as error:
                if tokens // 2 < FEWEST_TOKENS:
                    self._misfit = self._misfit or error
                    return None
                tokens //= 2
                continue
            device = next((d for d in plan.devices if d.partition(":")[0] == self.device.type), plan.devices[0])
            return MemoryFit(tokens, _at_once(plan, self.config.rollout.max_rollouts_at_once), plan.need_here(device))

    def _planned(self, setting: Setting, tokens: int) -> tuple[MemoryPlan, FreeBytes]:
        rollout = self.config.rollout.model_copy(
            update={"rollouts_per_prompt": setting.rollouts, "prompts_per_step": setting.prompts}
        )
        update = self.config.update.model_copy(update={"tokens_per_micro_batch": tokens})
        config = self.config.model_copy(update={"rollout": rollout, "update": update})
        members = dataclasses.replace(self.members, config=config)
        memory = self.request.memory
        plan = plan_devices(members, self.device, longest_prompt=self._longest, memory=memory)
        return plan, free_on_device if memory is None else assume_free(memory, self.device.type)


def _over_stages(progress: Sequence[float], seconds: Sequence[PredictedSeconds]) -> _Mean:
    """Averages over stages of equal progress: a stage needs steps in inverse proportion to the progress per step."""
    if min(progress) <= 0:
        return {"progress": 0.0, "seconds": seconds[0]}
    steps = 1 / np.array(progress)
    names = ("sampling", "update", "rest")
    means = {name: float(np.average([getattr(one, name) for one in seconds], weights=steps)) for name in names}
    return {"progress": len(steps) / float(steps.sum()), "seconds": PredictedSeconds(**means)}


def _at_once(plan: MemoryPlan, most: int) -> int:
    """Number of rollouts of full length whose keys and values fit, at most `most`."""
    held = [part.bytes // part.least for part in plan.parts if part.least and part.wanted]
    return max(1, min([most, *held]))


MEASURED: tuple[Way, ...] = ("sampling", "accumulated")  # the two curves


def prepare_plan(
    config: Path, sets: Sequence[str], run: Path, request: PlanRequest, *, window: int, unset: Sequence[str] = ()
) -> StepPlan:
    """A plan whose candidates have no seconds yet. Raises WinnowError for everything that can be checked now."""
    members = resolve_file(config, sets, unset)
    return StepPlan(members, statistics_of(run.expanduser(), window=window), request)


def curves_to_measure(
    config: Path, sets: Sequence[str], plan: StepPlan, request: ProfileRequest, *, unset: Sequence[str] = ()
) -> Profile:
    """A profile of the configuration's two curves, with rollouts of the run's mean length."""
    length = max(1, round(plan.run.length))
    return prepare_profile(config, [*sets, f"rollout.max_new_tokens={length}"], request, unset=unset)


def measure_points(profile: Profile) -> Iterator[PointResult]:
    """Measure the points of the two curves."""
    return profile.measure(ways=MEASURED)


def costs_of(profile: Profile) -> StepCosts:
    """The cost curves through the measured points. Raises DataError if a curve has none."""
    on = profile.measured_on
    return costs_of_profile(
        {"points": [row(result) for result in profile.found]}, f"measured on {on['date']}, {on['cpu']}"
    )
