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
