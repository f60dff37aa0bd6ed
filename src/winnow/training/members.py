"""Every member that a configuration names, looked up once and with its options bound."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from winnow.algos.objective import Objective
from winnow.algos.selection import Selector
from winnow.config import Config
from winnow.families import (
    AdvantageTraits,
    AllocatorTraits,
    EngineTraits,
    LossTraits,
    RewardTraits,
    SelectorTraits,
    Source,
    TaskTraits,
    TermTraits,
    TrackerTraits,
    WeightingTraits,
)
from winnow.options import Bound
from winnow.records import FloatArray, Group
from winnow.registry import package_of

Critic = Callable[[Sequence[Group]], Sequence[Sequence[FloatArray]]]  # per group: N x [L]


@dataclass(frozen=True)
class Members:
    """What a configuration comes to before anything is loaded: functions instead of names."""

    config: Config
    base: Path  # what "file.py:function" is relative to
    task: Bound[TaskTraits]
    further_tasks: tuple[Bound[TaskTraits], ...]  # to evaluate on
    reward: Mapping[str, Any]  # plain data: a verify worker builds its own
    rewards: tuple[Bound[RewardTraits], ...]  # its parts, as this process knows them
    allocate: Bound[AllocatorTraits]
    selectors: tuple[Bound[SelectorTraits], ...]
    advantage: Bound[AdvantageTraits]
    weighting: Bound[WeightingTraits]
    loss: Bound[LossTraits]
    terms: tuple[Bound[TermTraits], ...]
    engine: Bound[EngineTraits]
    trackers: tuple[Bound[TrackerTraits], ...]  # in the order of config.track
    critic: Critic | None  # a function that says values; winnow's own value model is config.critic

    select: Selector  # all selectors, one after the other
    objective: Objective  # loss and terms
    needs: frozenset[str]  # what loss and terms read besides log-probs

    @property
    def source(self) -> Source:
        """Where the allocator's knowledge comes from."""
        return self.allocate.traits.source

    @property
    def group_baseline(self) -> bool:
        """Whether the advantage compares rollouts of one prompt: a flat group teaches nothing."""
        return self.advantage.traits.baseline == "group"

    @property
    def reads_values(self) -> bool:
        """Whether a step fills in what stands per token before its advantages: rewards, values, returns."""
        return self.critic is not None or self.config.critic is not None or self.config.advantage.kl_reward > 0

    @property
    def gamma(self) -> float:
        """The discount per token of what values are of."""
        return float(
            self.advantage.options.get("gamma", 1.0) if self.config.critic is None else self.config.critic.gamma
        )

    @property
    def reference(self) -> bool:
        """Whether anything is measured from a reference policy: a term, or the reward."""
        return "ref_logprobs" in self.needs or self.config.advantage.kl_reward > 0

    @property
    def remember(self) -> bool:
        """Whether allocator or weighting reads what training has shown of a prompt at earlier visits.

        A weighting's pass rates are the plan's, which are the history's where the allocator makes no probe.
        """
        weighs_by_history = "pass_rates" in self.weighting.traits.needs
        return self.source == "history" or (self.source == "none" and weighs_by_history)

    @property
    def packages(self) -> tuple[str, ...]:
        """The installed packages, winnow aside, that members come from, and what engine and trackers require."""
        tasks_and_rewards = (self.task, *self.further_tasks, *self.rewards)
        laws = (self.allocate, *self.selectors, self.advantage, self.weighting, self.loss, *self.terms)
        found = {package_of(member.entry) for member in (*tasks_and_rewards, *laws, self.engine, *self.trackers)}
        required = {self.engine.traits.requires, *(tracker.traits.requires for tracker in self.trackers)}
        return tuple(sorted(name for name in (found | required) if name is not None))

    @property
    def output(self) -> Path:
        return Path(self.config.output).expanduser()
