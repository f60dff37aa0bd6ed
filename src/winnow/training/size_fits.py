"""Which settings of a configuration fit the memory, and what its optimizer and its objective mean for a plan."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from winnow.algos.planning import Law, Noise
from winnow.algos.step_plan import NOISE, SPREAD, Setting, StepModel
from winnow.config import Config
from winnow.core.members import Members
from winnow.core.sizes import resized, rule_of, setting_of
from winnow.errors import ConfigError
from winnow.memory.demand import Demand
from winnow.memory.plan import MemoryPlan, assume_free, free_on_device
from winnow.models.adapter import trained_parameters
from winnow.models.device import planned_device
from winnow.training.budget import demand_of, plan_demand
from winnow.training.prompts import run_prompts

FEWEST_TOKENS = 64  # smallest micro-batch


@dataclass(frozen=True)
class PlanRequest:
    """The options of a plan."""

    memory: int | None = None  # bytes of the policy's device; None: what is free on this machine
    law: Law = "tuned"
    noise: Noise = NOISE
    measured: bool = False  # whether the run itself has measured the noise
    spread: float = SPREAD  # share of the trained weights that AdamW's eps acts on
    calibrate: bool = True  # scale given curves to the seconds of the run's phases

    def __post_init__(self) -> None:
        for name, value in (("noise", self.noise.rollout), ("between", self.noise.between), ("spread", self.spread)):
            if not 0 <= value < np.inf:
                raise ConfigError(
                    f"{name} is {value}",
                    remedy="give a number of 0 or more, or plan from a run with plan.use = 'auto', which measures it",
                    code="config.value",
                )


@dataclass(frozen=True)
class MemoryFit:
    """How n and P fit into the memory: the size of the micro-batch, and the number of concurrent rollouts."""

    tokens: int  # per micro-batch
    at_once: int
    bytes: int  # peak on the policy's device


class Fits:
    """How settings of a configuration fit into the memory of the policy's device. Nothing is loaded."""

    def __init__(self, members: Members, memory: int | None) -> None:
        self.members, self.memory = members, memory
        self.device = planned_device(self.config.device)
        prompts = run_prompts(members)
        self._longest, self.problems = prompts.longest, len(prompts.training.prompts)
        self._fits: dict[tuple[int, int], MemoryFit | None] = {}
        self._misfit: ConfigError | None = None  # of the first setting that does not fit

    @property
    def config(self) -> Config:
        return self.members.config

    def fit(self, setting: Setting) -> MemoryFit | None:
        """How the setting fits; None if it does not fit with any micro-batch."""
        key = setting.rollouts, setting.prompts  # the memory does not depend on m
        if key not in self._fits:
            self._fits[key] = self._find_fit(setting)
        return self._fits[key]

    def fitting(self, settings: Sequence[Setting]) -> list[Setting]:
        """Those that fit. Raises ConfigError if none does."""
        found = [setting for setting in settings if self.fit(setting) is not None]
        if not found:
            assert self._misfit is not None
            raise self._misfit.within("no candidate fits into the memory. The smallest one") from self._misfit
        return found

    @property
    def left_out(self) -> int:
        """Number of pairs of n and P that do not fit."""
        return sum(fit is None for fit in self._fits.values())

    def model(self, request: PlanRequest) -> StepModel:
        """The step model of the configuration."""
        config = self.config
        weights = sum(parameter.numel() for parameter in trained_parameters(self._own_demand.model).values())
        return StepModel(
            current=setting_of(config, "the configuration"),
            rule=rule_of(config),
            noise=request.noise,
            law=request.law,
            epochs=config.update.epochs,
            updates=config.update.updates_per_step,
            trains_all=self.members.objective.trains_all,
            eps=config.optimizer.eps * (request.spread * weights) ** 0.5,
            clip=config.optimizer.max_grad_norm,
        )

    @functools.cached_property
    def _own_demand(self) -> Demand:
        """What the configuration demands. Its models are those of every setting."""
        return self._demand(self.members)

    def _demand(self, members: Members, like: Demand | None = None) -> Demand:
        return demand_of(members, self.device, longest_prompt=self._longest, memory=self.memory, like=like)

    def _find_fit(self, setting: Setting) -> MemoryFit | None:
        """Halve the configuration's micro-batch until the setting fits; None below FEWEST_TOKENS."""
        sized, tokens = resized(self.members, setting), self.config.update.tokens_per_micro_batch
        free_on = free_on_device if self.memory is None else assume_free(self.memory, self.device.type)
        while True:
            update = sized.config.update.model_copy(update={"tokens_per_micro_batch": tokens})
            members = dataclasses.replace(sized, config=sized.config.model_copy(update={"update": update}))
            plan = plan_demand(members, self._demand(members, like=self._own_demand))
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


def _at_once(plan: MemoryPlan, most: int) -> int:
    """Number of rollouts of full length whose keys and values fit, at most `most`."""
    held = [part.bytes // part.least for part in plan.parts if part.least and part.wanted]
    return max(1, min([most, *held]))
