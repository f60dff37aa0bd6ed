"""The plan of a step: every candidate's signal, seconds and memory, the most progress per second first."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypedDict

import numpy as np

from winnow.algos.costs import StepCosts, StepWork
from winnow.algos.pass_rates import Rates, flat_share
from winnow.algos.planning_law import (
    GroupSignal,
    Law,
    Noise,
    UpdateBounds,
    group_signal,
    progress,
    second_moment,
)
from winnow.commands.profile.plan_setting import Setting, rule_of, setting_of, updates_of
from winnow.commands.profile.run_statistics import RunStatistics
from winnow.commands.profile.step_seconds import PredictedSeconds, StepClock, calibrated, uncalibrated
from winnow.config import Config
from winnow.errors import ConfigError
from winnow.memory.plan import FreeBytes, MemoryPlan, assumed, free
from winnow.models.adapter import add_lora, trained_parameters
from winnow.models.device import planned_device
from winnow.models.meta import meta_model
from winnow.training.device_plan import plan_devices
from winnow.training.members import Members
from winnow.training.prompts import run_prompts

NOISE = Noise(rollout=6.3, between=4.3)  # of the bundled policy: docs/planner.md
SPREAD = 0.1  # share of the trained weights that AdamW's eps acts on, of the bundled policy
STAGES = 8  # of the way to a mean pass rate
SAMPLED = (4, 8, 16, 32, 64, 128, 256)  # n
KEPT = (2, 4, 8, 16, 32, 64)  # m
TIMES = (0.25, 0.5, 1, 2, 4)  # the prompts of a step, over those of the configuration
FEWEST_TOKENS = 64  # of a micro-batch


@dataclass(frozen=True)
class PlanAsked:
    """What a plan is made for."""

    prompts: int | None = None  # of a step; None: TIMES the configuration's
    memory: int | None = None  # bytes of the policy's device; None: what is free here
    law: Law = "fixed"
    noise: Noise = NOISE
    spread: float = SPREAD  # share of the trained weights that AdamW's eps acts on
    calibrate: bool = True  # the curves to the run's own seconds
    until: float | None = None  # the mean pass rate up to which progress counts; None: only that of now

    def __post_init__(self) -> None:
        for name, value in (("noise", self.noise.rollout), ("between", self.noise.between), ("spread", self.spread)):
            if not 0 <= value < np.inf:
                raise ConfigError(
                    f"{name} is {value}",
                    remedy="give a number of 0 or more, measured by benchmarks/gradient_noise.py",
                    code="config.value",
                )


@dataclass(frozen=True)
class Room:
    """What n, P and a memory leave: the micro-batch that fits, and how many rollouts are sampled side by side."""

    tokens: int  # of a micro-batch
    at_once: int
    bytes: int  # at the worst moment, of the policy's device


@dataclass(frozen=True)
class Candidate:
    """A setting with all that is predicted of it: now, or on average over the steps of the way that counts."""

    setting: Setting
    room: Room
    flat: float  # share of groups, now
    progress: float  # of a step
    seconds: PredictedSeconds
    extrapolated: bool  # a cost curve ends before this many rollouts

    @property
    def rate(self) -> float:
        """Progress per second."""
        return self.progress / self.seconds.total


class _Mean(TypedDict):
    progress: float
    seconds: PredictedSeconds


class StepPlan:
    """Candidates for a configuration, from a run's statistics; no seconds are known before `with_costs`.

    Making one raises all that can be refused before anything is measured: ConfigError for what is not supported and
    where no candidate fits, DataError for what cannot be read.
    """

    def __init__(self, members: Members, run: RunStatistics, asked: PlanAsked) -> None:
        self.members, self.run, self.asked = members, run, asked
        self.current = setting_of(self.config, "the configuration")
        setting_of(run.config, str(run.run))
        self.device = planned_device(self.config.device)
        self.stages = self._stages()
        prompts = run_prompts(members)
        self._longest, self._most = prompts.longest, len(prompts.training.prompts)
        self._rooms: dict[tuple[int, int], Room | None] = {}
        self._why: ConfigError | None = None
        self.settings = [setting for setting in self._asked_for() if self.room(setting) is not None]
        if not self.settings:
            assert self._why is not None
            raise self._why.within("no candidate fits into the memory. Of the smallest one") from self._why

    @property
    def config(self) -> Config:
        return self.members.config

    def room(self, setting: Setting) -> Room | None:
        """None where the setting does not fit, whatever its micro-batch."""
        key = setting.rollouts, setting.prompts
        if key not in self._rooms:
            self._rooms[key] = self._fitted(setting)
        return self._rooms[key]

    @property
    def left_out(self) -> int:
        """Settings that do not fit."""
        return sum(room is None for room in self._rooms.values())

    @cached_property
    def bounds(self) -> UpdateBounds:
        """Of AdamW, in units of |mean delta|, which follows from the run's gradient norm; none where it has none."""
        run, rule = self.run, rule_of(self.run.config)
        own = setting_of(run.config, str(run.run))
        group = group_signal(run.rates, own.rollouts, own.kept, rule)
        moment = second_moment(group, own.prompts / run.config.update.updates_per_step, self.asked.noise)
        if run.grad_norm is None or moment <= 0:
            return UpdateBounds()
        unit = run.grad_norm / moment**0.5
        optimizer, weights = self.config.optimizer, self.asked.spread * self.trained_weights
        return UpdateBounds(eps=optimizer.eps * weights**0.5 / unit, clip=optimizer.max_grad_norm / unit)

    @cached_property
    def trained_weights(self) -> int:
        """How many numbers the optimizer changes."""
        config, lora = self.config, self.config.model.lora
        model = meta_model(
            config.model.path,
            dtype=config.model.dtype,
            adaptable=lora is not None,
            quantization=config.model.quantization,
        )
        if lora is not None:
            add_lora(model, **lora.model_dump(), seed=0)
        return sum(parameter.numel() for parameter in trained_parameters(model).values())

    def clock(self, costs: StepCosts) -> StepClock:
        """The costs, at the run's scale where that is asked for."""
        at_once = self.run.config.rollout.max_rollouts_at_once
        return calibrated(costs, self.run, at_once=at_once) if self.asked.calibrate else uncalibrated(costs, self.run)

    def candidates(self, clock: StepClock) -> list[Candidate]:
        """The most progress per second first; of two that are equal, the one that samples less."""
        found = [self.candidate(setting, clock) for setting in self.settings]
        return sorted(found, key=lambda one: (-one.rate, one.setting))

    def candidate(self, setting: Setting, clock: StepClock) -> Candidate:
        """One setting. Raises ConfigError where it does not fit."""
        room = self.room(setting)
        if room is None:
            assert self._why is not None
            raise self._why.within(f"{setting} does not fit")
        rule = rule_of(self.config)
        groups = [group_signal(rates, setting.rollouts, setting.kept, rule) for rates in self.stages]
        works = [self.work(setting, group) for group in groups]
        gains = [self._progress(setting, group) for group in groups]
        seconds = [clock.seconds(work, at_once=room.at_once) for work in works]
        return Candidate(
            setting=setting,
            room=room,
            flat=flat_share(self.run.rates, setting.rollouts),
            **_over_stages(gains, seconds),
            extrapolated=any(clock.extrapolates(work, at_once=room.at_once) for work in works),
        )

    def _progress(self, setting: Setting, group: GroupSignal) -> float:
        """Of a step."""
        of_update = setting.prompts / self.config.update.updates_per_step
        each = progress(group, of_update, self.asked.noise, law=self.asked.law, optimizer=self.bounds)
        return updates_of(self.config) * each

    def _stages(self) -> Sequence[Rates]:
        """The pass rates of now, or those of the way that counts."""
        until = self.asked.until
        if until is None:
            return [self.run.rates]
        try:
            return self.run.rates.towards(until, STAGES)
        except ValueError as error:
            raise ConfigError(
                f"{self.run.run}: {error}",
                remedy="name a mean pass rate between that of the run and 1",
                code="config.value",
            ) from error

    def work(self, setting: Setting, group: GroupSignal) -> StepWork:
        """What a step of a setting does, at the run's lengths. Flat groups are not trained on, but under a term."""
        learning = 1.0 if self.members.objective.teaches_all else group.learning
        trained = setting.prompts * group.kept * learning * self.config.update.epochs
        return StepWork(
            prompts=setting.prompts,
            rollouts=setting.sampled,
            tokens_generated=setting.sampled * self.run.length,
            trained=trained,
            tokens_trained=trained * self.run.trained_length,
        )

    def _asked_for(self) -> Iterator[Setting]:
        """The current setting, and every candidate, whether it fits or not."""
        current, asked = self.current, self.asked
        prompts = self._prompts(current.prompts if asked.prompts is None else asked.prompts)
        numbers = sorted({*SAMPLED, current.rollouts})
        found = {Setting(n, m, p) for p in prompts for n in numbers for m in {*KEPT, current.kept, n} if m <= n}
        yield from sorted(found | {current})

    def _prompts(self, own: int) -> Sequence[int]:
        if own > self._most:
            raise ConfigError(
                f"a step of {own} prompts needs as many problems, and the task has {self._most}",
                remedy="request fewer prompts",
                key="rollout.prompts_per_step",
                code="config.value",
            )
        if self.asked.prompts is not None:
            return [own]
        divisor = self.config.update.updates_per_step
        numbers = {int(own * times) for times in TIMES}
        return sorted(p for p in numbers if divisor <= p <= self._most)

    def _fitted(self, setting: Setting) -> Room | None:
        """With the micro-batch of the configuration, or the largest half, quarter ... of it that fits."""
        tokens = self.config.update.tokens_per_micro_batch
        while True:
            plan, free_on = self._planned(setting, tokens)
            try:
                plan.check(free_on)
            except ConfigError as error:
                if tokens // 2 < FEWEST_TOKENS:
                    self._why = self._why or error
                    return None
                tokens //= 2
                continue
            device = next((d for d in plan.devices if d.partition(":")[0] == self.device.type), plan.devices[0])
            return Room(tokens, _at_once(plan, self.config.rollout.max_rollouts_at_once), plan.need_here(device))

    def _planned(self, setting: Setting, tokens: int) -> tuple[MemoryPlan, FreeBytes]:
        rollout = self.config.rollout.model_copy(
            update={"rollouts_per_prompt": setting.rollouts, "prompts_per_step": setting.prompts}
        )
        update = self.config.update.model_copy(update={"tokens_per_micro_batch": tokens})
        config = self.config.model_copy(update={"rollout": rollout, "update": update})
        members = dataclasses.replace(self.members, config=config)
        memory = self.asked.memory
        plan = plan_devices(members, self.device, longest_prompt=self._longest, memory=memory)
        return plan, free if memory is None else assumed(memory, self.device.type)


def _over_stages(progress: Sequence[float], seconds: Sequence[PredictedSeconds]) -> _Mean:
    """Stages of equal progress: each takes the more steps, the less a step of it gains."""
    if min(progress) <= 0:
        return {"progress": 0.0, "seconds": seconds[0]}
    steps = 1 / np.array(progress)
    names = ("sampling", "update", "rest")
    means = {name: float(np.average([getattr(one, name) for one in seconds], weights=steps)) for name in names}
    return {"progress": len(steps) / float(steps.sum()), "seconds": PredictedSeconds(**means)}


def _at_once(plan: MemoryPlan, most: int) -> int:
    """Rollouts of full length whose keys and values fit, where memory bounds them."""
    held = [part.bytes // part.least for part in plan.parts if part.least and part.wanted]
    return max(1, min([most, *held]))
