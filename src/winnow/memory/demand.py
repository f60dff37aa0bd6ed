"""What a run demands of its engine: the argument of the functions `memory` and `job` that an engine declares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from winnow.config import Config

if TYPE_CHECKING:
    from winnow.models.meta import MetaModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """A configuration and what follows from it, before any weight is read."""

    config: Config
    options: Mapping[str, Any]  # the engine's, with the defaults of those that are not given
    model: MetaModel  # shapes alone, with its adapter where one is trained
    prompt_tokens: int  # of the longest prompt
    device: str  # the policy's: "cpu", "cuda:0"
    device_bytes: int | None  # memory of a device of that kind; None: what the device that is here has
    requests: tuple[tuple[int, int], ...]  # (prompts, rollouts at once) of every kind of request for rollouts
    measured: int = 0  # rollouts whose gradient norms are taken one after the other, at most


def sampling_requests(config: Config, *, probes: bool) -> tuple[tuple[int, int], ...]:
    """(prompts, rollouts at once) of a step, of an evaluation, and of a probe where the allocator makes one (`probes`).

    Where an allocator divides the rollouts, those of a step are averages.
    """
    rollout, evaluate, probe = config.rollout, config.evaluate, config.probe
    wanted = [
        (rollout.prompts_per_step, rollout.rollouts_per_prompt),
        (evaluate.problems, evaluate.rollouts_per_prompt),
        *([(evaluate.problems, 1)] if evaluate.greedy else []),
        *([(probe.every * rollout.prompts_per_step, probe.rollouts_per_prompt)] if probes else []),
    ]
    return tuple((prompts, min(rollout.max_rollouts_at_once, prompts * each)) for prompts, each in wanted)


def step_rollouts(config: Config) -> int:
    """Of a step, at most: those of every round of dynamic sampling too."""
    rollout = config.rollout
    return rollout.prompts_per_step * rollout.rollouts_per_prompt * (1 + rollout.dynamic_sampling_rounds)


def measured_rollouts(config: Config, source: str) -> int:
    """Whose gradient norms an allocator asks for, which knows its prompts from a `source`: of a probe, or of a step."""
    probe = config.probe
    if probe.gradient_norm == "none" or source == "none":
        return 0
    of_probe = probe.every * config.rollout.prompts_per_step * probe.rollouts_per_prompt
    return of_probe if source == "probe" else step_rollouts(config)
