"""Every member that a configuration names, looked up once and with its options bound."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from winnow.algos.objective import Objective
from winnow.algos.selectors import Selector
from winnow.config import Config
from winnow.families import (
    AdvantageTraits,
    AllocatorTraits,
    CorrectionTraits,
    CutTraits,
    EngineTraits,
    EnvironmentTraits,
    LossTraits,
    RewardTraits,
    RoundTraits,
    SamplerTraits,
    SelectorTraits,
    Source,
    TaskTraits,
    TermTraits,
    TrackerTraits,
    WeightingTraits,
)
from winnow.options import Bound
from winnow.records import FloatArray, Group

Critic = Callable[[Sequence[Group]], Sequence[Sequence[FloatArray]]]  # per group: N x [L]


@dataclass(frozen=True)
class Members:
    """A configuration with functions in the place of names, before anything is loaded."""

    config: Config
    base: Path  # the folder that "file.py:function" is relative to
    recipe: str | None  # the recipe that the configuration is from
    task: Bound[TaskTraits]
    further_tasks: tuple[Bound[TaskTraits], ...]  # to evaluate on
    reward: Mapping[str, Any]  # plain data, from which each verify worker builds its reward or environment
    rewards: tuple[Bound[RewardTraits], ...]  # the parts of the reward, bound in this process
    environment: Bound[EnvironmentTraits] | None
    sample: Bound[SamplerTraits]
    allocate: Bound[AllocatorTraits]
    rounds: Bound[RoundTraits]
    cut: Bound[CutTraits]
    selectors: tuple[Bound[SelectorTraits], ...]
    advantage: Bound[AdvantageTraits]
    weighting: Bound[WeightingTraits]
    loss: Bound[LossTraits]
    correction: Bound[CorrectionTraits]
    terms: tuple[Bound[TermTraits], ...]
    engine: Bound[EngineTraits]
    trackers: tuple[Bound[TrackerTraits], ...]  # in the order of config.track
    critic: Critic | None  # a user's function that returns values; config.critic is winnow's value model

    select: Selector  # all selectors, one after the other
    objective: Objective  # loss, correction and terms
    needs: frozenset[str]  # what loss and terms read besides log-probs

    @property
    def source(self) -> Source:
        """Where the allocator gets its pass rates from."""
        return self.allocate.traits.source

    @property
    def gradient_norm(self) -> Literal["embedding", "output_head", "none"]:
        """The parameters whose gradient norms are measured for the allocator; "none" where it reads no norms."""
        return self.config.probe.gradient_norm if self.allocate.traits.gradient_norms else "none"

    @property
    def group_baseline(self) -> bool:
        """Whether the advantage compares the rollouts of one prompt. A flat group then has no gradient."""
        return self.advantage.traits.baseline == "group"

    @property
    def reads_values(self) -> bool:
        """Whether a step fills rewards, values or returns per token before the advantages."""
        return self.critic is not None or self.config.critic is not None or self.config.advantage.kl_reward > 0

    @property
    def gamma(self) -> float:
        """The discount per token of the returns that values predict."""
        return float(
            self.advantage.options.get("gamma", 1.0) if self.config.critic is None else self.config.critic.gamma
        )

    @property
    def reference(self) -> bool:
        """Whether the loss, a term or the reward uses the distance from a reference policy."""
        return "ref_logprobs" in self.needs or self.config.advantage.kl_reward > 0

    @property
    def remember(self) -> bool:
        """Whether sampler, allocator or weighting reads the results of a prompt's earlier visits.

        A weighting gets the pass rates of the plan. These come from the history unless the allocator probes.
        """
        weighs_by_history = "pass_rates" in self.weighting.traits.needs
        reads = "history" in (self.sample.traits.source, self.source)
        return reads or (self.source == "none" and weighs_by_history)

    @property
    def packages(self) -> tuple[str, ...]:
        """The installed packages (without winnow) that contain members, or that engine and trackers require."""
        fields = (value if isinstance(value, tuple) else (value,) for value in vars(self).values())
        packages = {member.entry.package for of in fields for member in of if isinstance(member, Bound)}
        required = {self.engine.traits.requires, *(tracker.traits.requires for tracker in self.trackers)}
        return tuple(sorted(name for name in packages | required if name not in (None, "winnow")))

    @property
    def output(self) -> Path:
        return Path(os.path.expanduser(self.config.output))
