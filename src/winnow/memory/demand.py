"""What a run demands of its devices: the models that it trains, as shapes, and the requests that an engine gets.

A `Demand` is the argument of the functions `memory` and `job` that an engine declares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from winnow.config import Config

if TYPE_CHECKING:
    from winnow.memory.trained_model import TrainedModel
    from winnow.models.meta import MetaModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """A configuration and the sizes that follow from it, before any weight is read."""

    config: Config
    options: Mapping[str, Any]  # the engine's, with defaults
    model: MetaModel  # shapes without weights; with the adapter where one is trained
    prompt_tokens: int  # of the longest prompt
    device: str  # the policy's: "cpu", "cuda:0"
    device_bytes: int | None  # memory of a device of that kind; None: that of this machine's device
    requests: tuple[tuple[int, int], ...]  # (prompts, rollouts at once) of each kind of request of a rank
    measured: int = 0  # maximum number of rollouts whose gradient norms a rank computes
    value_model: TrainedModel | None = None  # trained beside the policy
    chunk_tokens: int  # maximum number of tokens whose logits exist at once
    bucket: int  # maximum number of gradients that replicated learners sum at once
    judges: int  # worker processes of the reward; 0: the trainer itself
    sums_head_gradient: bool  # norms of gradients take the output layer's gradient, for the longest rollouts
    ranks: int = 1  # of the run
    ranks_here: int = 1  # on this machine
    exact_evaluation: bool = True  # evaluate in the policy's precision, where an engine samples in a lower one

    @property
    def policy(self) -> TrainedModel:
        """The policy as a trained model. Its adapter is float32 on a 16-bit base."""
        from winnow.memory.trained_model import policy_model  # imports torch, which engines are listed without

        return policy_model(self.config, self.model)

    @property
    def evaluations(self) -> tuple[tuple[int, int], ...]:
        """(prompts, rollouts at once) of the requests of an evaluation."""
        return evaluation_requests(self.config, ranks=self.ranks)

    @property
    def sharded(self) -> bool:
        """Whether each rank holds only a share of the policy; a single rank holds all of it."""
        return self.ranks > 1 and self.config.ranks.learner == "sharded"


def sampling_requests(config: Config, *, probes: bool, ranks: int = 1) -> tuple[tuple[int, int], ...]:
    """(prompts, rollouts at once) of a step, of an evaluation, and of a probe where the allocator makes one (`probes`).

    They are those of the one of `ranks` ranks that is dealt most. Where an allocator divides the rollouts, a step's
    numbers are averages.
    """
    rollout, probe = config.rollout, config.probe
    window = [(probe.every * rollout.prompts_per_step, probe.rollouts_per_prompt)] if probes else []
    return (
        *_dealt(config, [(rollout.prompts_per_step, rollout.rollouts_per_prompt)], ranks),
        *evaluation_requests(config, ranks=ranks),
        *_dealt(config, window, ranks),
    )


def evaluation_requests(config: Config, *, ranks: int = 1) -> tuple[tuple[int, int], ...]:
    """(prompts, rollouts at once) of an evaluation, on the one of `ranks` ranks that is dealt most."""
    evaluate = config.evaluate
    greedy = [(evaluate.problems, 1)] if evaluate.greedy else []
    return _dealt(config, [(evaluate.problems, evaluate.rollouts_per_prompt), *greedy], ranks)


def _dealt(config: Config, requests: Sequence[tuple[int, int]], ranks: int) -> tuple[tuple[int, int], ...]:
    """(prompts, rollouts of each) of the run -> (prompts, rollouts at once) of the rank that is dealt most."""
    dealt = [(-(-prompts // ranks), each) for prompts, each in requests]
    return tuple((prompts, min(config.rollout.max_rollouts_at_once, prompts * each)) for prompts, each in dealt)


def step_rollouts(config: Config, ranks: int = 1) -> int:
    """Maximum load of one rank in a step, as a number of rollouts of full length. It includes every round of dynamic
    sampling.

    Rollouts are dealt in runs of about equal numbers of tokens. So no rank gets more than its share of the tokens and
    one more rollout, the longest.
    """
    rollout = config.rollout
    in_all = rollout.prompts_per_step * rollout.rollouts_per_prompt * (1 + rollout.dynamic_sampling_rounds)
    return _of_one_rank(in_all, ranks)


def measured_rollouts(config: Config, source: str, ranks: int = 1) -> int:
    """Most rollouts whose gradient norms a rank computes: of a probe or a step, by the allocator's `source`, or 0."""
    probe = config.probe
    if probe.gradient_norm == "none" or source == "none":
        return 0
    of_probe = probe.every * config.rollout.prompts_per_step * probe.rollouts_per_prompt
    return _of_one_rank(of_probe, ranks) if source == "probe" else step_rollouts(config, ranks)


def _of_one_rank(rollouts: int, ranks: int) -> int:
    return min(rollouts, -(-rollouts // ranks) + (ranks > 1))
