"""What a run demands of its devices: the models that it trains, as shapes, and the requests that an engine gets.

A `Demand` is the argument of the functions `memory` and `job` that an engine declares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from winnow.config import Config
from winnow.families import Source

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
    source: Source  # of the allocator's pass rates
    gradient_norms: bool  # the allocator reads them
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
    def sharded(self) -> bool:
        """Whether each rank holds only a share of the policy; a single rank holds all of it."""
        return self.ranks > 1 and self.config.ranks.learner == "sharded"

    @property
    def requests(self) -> tuple[tuple[int, int], ...]:
        """(prompts, rollouts at once) of a step, of an evaluation, and of a probe, on the rank that is dealt most.

        Where an allocator divides the rollouts, a step's numbers are averages.
        """
        rollout, probe = self.config.rollout, self.config.probe
        step = self._dealt(rollout.prompts_per_step, rollout.rollouts_per_prompt)
        window = self._dealt(probe.every * rollout.prompts_per_step, probe.rollouts_per_prompt)
        return (step, *self.evaluations, *([window] if self.source == "probe" else []))

    @property
    def evaluations(self) -> tuple[tuple[int, int], ...]:
        """(prompts, rollouts at once) of the requests of an evaluation, on the rank that is dealt most."""
        evaluate = self.config.evaluate
        greedy = [self._dealt(evaluate.problems, 1)] if evaluate.greedy else []
        return (self._dealt(evaluate.problems, evaluate.rollouts_per_prompt), *greedy)

    @property
    def step_rollouts(self) -> int:
        """Maximum load of one rank in a step, as a number of rollouts of full length, with every round of dynamic
        sampling.
        """
        rollout = self.config.rollout
        in_all = rollout.prompts_per_step * rollout.rollouts_per_prompt * (1 + rollout.dynamic_sampling_rounds)
        return of_one_rank(in_all, self.ranks)

    @property
    def measured(self) -> int:
        """Most rollouts whose gradient norms a rank computes: of a probe or a step, or 0."""
        probe = self.config.probe
        if not self.gradient_norms:
            return 0
        of_probe = probe.every * self.config.rollout.prompts_per_step * probe.rollouts_per_prompt
        return of_one_rank(of_probe, self.ranks) if self.source == "probe" else self.step_rollouts

    def _dealt(self, prompts: int, each: int) -> tuple[int, int]:
        """(prompts, rollouts of each) of the run -> (prompts, rollouts at once) of the rank that is dealt most."""
        dealt = -(-prompts // self.ranks)
        return dealt, min(self.config.rollout.max_rollouts_at_once, dealt * each)


def of_one_rank(rollouts: int, ranks: int) -> int:
    """Most rollouts of full length on a rank. They are dealt in runs of about equal numbers of tokens, so no rank gets
    more than its share of the tokens and one more rollout, the longest.
    """
    return min(rollouts, -(-rollouts // ranks) + (ranks > 1))
