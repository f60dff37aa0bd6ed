"""What a run demands of its engine: the argument of the functions `memory` and `job` that an engine declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from winnow.config import Config

if TYPE_CHECKING:
    from winnow.memory.value_shapes import ValueShapes
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
    requests: tuple[tuple[int, int], ...]  # (prompts, rollouts at once) of every kind of request that a rank makes
    measured: int = 0  # rollouts whose gradient norms a rank takes one after the other, at most
    value_model: ValueShapes | None = None  # that is trained beside the policy
    ranks: int = 1  # that compute the run together
    ranks_here: int = 1  # of them on this machine
    exact_evaluation: bool = True  # an engine that rounds the weights may evaluate in the policy's own precision

    @property
    def evaluations(self) -> tuple[tuple[int, int], ...]:
        """(prompts, rollouts at once) of those of the requests that an evaluation makes."""
        return evaluation_requests(self.config, ranks=self.ranks)

    @property
    def sharded(self) -> bool:
        """Whether a rank holds a share of the policy: one alone has all of it."""
        return self.ranks > 1 and self.config.ranks.learner == "sharded"


def sampling_requests(config: Config, *, probes: bool, ranks: int = 1) -> tuple[tuple[int, int], ...]:
    """(prompts, rollouts at once) of a step, of an evaluation, and of a probe where the allocator makes one (`probes`),
    on the one of so many `ranks` that is dealt most.

    Where an allocator divides the rollouts, those of a step are averages.
    """
    rollout, probe = config.rollout, config.probe
    window = [(probe.every * rollout.prompts_per_step, probe.rollouts_per_prompt)] if probes else []
    return (
        *_dealt(config, [(rollout.prompts_per_step, rollout.rollouts_per_prompt)], ranks),
        *evaluation_requests(config, ranks=ranks),
        *_dealt(config, window, ranks),
    )


def evaluation_requests(config: Config, *, ranks: int = 1) -> tuple[tuple[int, int], ...]:
    """(prompts, rollouts at once) of an evaluation, on the one of so many `ranks` that is dealt most."""
    evaluate = config.evaluate
    greedy = [(evaluate.problems, 1)] if evaluate.greedy else []
    return _dealt(config, [(evaluate.problems, evaluate.rollouts_per_prompt), *greedy], ranks)


def _dealt(config: Config, wanted: Sequence[tuple[int, int]], ranks: int) -> tuple[tuple[int, int], ...]:
    """(prompts, rollouts of each) in all -> (prompts, rollouts at once) on the rank that is dealt most."""
    dealt = [(-(-prompts // ranks), each) for prompts, each in wanted]
    return tuple((prompts, min(config.rollout.max_rollouts_at_once, prompts * each)) for prompts, each in dealt)


def step_rollouts(config: Config, ranks: int = 1) -> int:
    """Of a step, at most: those of every round of dynamic sampling too. Of several ranks, which are dealt them in runs
    of about equal length, each gets its share and perhaps the longest one more.
    """
    rollout = config.rollout
    in_all = rollout.prompts_per_step * rollout.rollouts_per_prompt * (1 + rollout.dynamic_sampling_rounds)
    return _share(in_all, ranks)


def measured_rollouts(config: Config, source: str, ranks: int = 1) -> int:
    """Whose gradient norms an allocator asks for, which knows its prompts from a `source`: of a probe, or of a step."""
    probe = config.probe
    if probe.gradient_norm == "none" or source == "none":
        return 0
    of_probe = probe.every * config.rollout.prompts_per_step * probe.rollouts_per_prompt
    return _share(of_probe, ranks) if source == "probe" else step_rollouts(config, ranks)


def _share(rollouts: int, ranks: int) -> int:
    return min(rollouts, -(-rollouts // ranks) + (ranks > 1))
