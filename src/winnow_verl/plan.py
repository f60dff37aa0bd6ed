"""What the replay buffer decides: how many rollouts each prompt gets, and which of them are kept.

Imports neither verl nor torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from winnow.algos.plain_groups import Use, allocator_of, plain_group, plain_stats, selector_of, uses_of
from winnow.algos.selectors import keep_verified
from winnow.errors import ConfigError, near_miss
from winnow.records import BoolArray, FloatArray, Group
from winnow.seeds import Rng

KEYS = ("rollouts_per_prompt", "keep_per_prompt", "select", "allocate", "seed", "max_response_length")


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """The rollouts of one prompt."""

    prompt: str  # its id, on which the random numbers of a selector depend
    rewards: FloatArray  # [N] NaN: none was computed
    lengths: Sequence[int]  # [N] tokens, of all outputs of a session
    longest: Sequence[int]  # [N] tokens of the longest of them: verl cuts each off by itself


class BudgetPlan:
    """Counts and selection of one run. `kwargs` are verl's `trainer.v1.sampler.sampler_kwargs`:

    rollouts_per_prompt     n, the rollouts of a prompt, on average with an allocator
    keep_per_prompt         m, what a selector with this option keeps
    select                  a selector of winnow, by name, as a table, or a list of these ["max_variance"]
    allocate                an allocator that reads earlier steps or nothing, such as "gvm_online" [none: n for each]
    seed                    of the selectors that draw, and of ties [0]
    max_response_length     from which on a rollout counts as cut off; required by the selector "finished"

    Raises ConfigError for other keys, values and members.
    """

    def __init__(self, kwargs: Mapping[str, Any]) -> None:
        for key in kwargs:
            if key not in KEYS:
                raise ConfigError(
                    f"sampler_kwargs has no key {key!r}",
                    remedy=near_miss(key, KEYS),
                    key=key,
                    code="config.unknown_key",
                )
        self.rollouts_per_prompt = _count(kwargs, "rollouts_per_prompt")
        self.keep_per_prompt = _count(kwargs, "keep_per_prompt")
        if self.keep_per_prompt > self.rollouts_per_prompt:
            raise ConfigError(
                f"{self.rollouts_per_prompt} rollouts of a prompt cannot be reduced to {self.keep_per_prompt}",
                remedy="set rollouts_per_prompt to at least keep_per_prompt",
                key="rollouts_per_prompt",
                code="config.combination",
            )
        select: Use | Sequence[Use] = kwargs.get("select", "max_variance")
        self._longest = None if kwargs.get("max_response_length") is None else _count(kwargs, "max_response_length")
        if self._longest is None and "finished" in uses_of(select):
            raise ConfigError(
                "the selector 'finished' needs the length at which verl cuts a response off",
                remedy="set max_response_length=${data.max_response_length}",
                key="max_response_length",
                code="config.missing_key",
            )
        self._select = selector_of(select, keep=self.keep_per_prompt, base=Path.cwd())
        self._seed = _count({"seed": 0, **kwargs}, "seed", least=0)
        allocate = kwargs.get("allocate")
        self.allocator = None if allocate is None else allocator_of(allocate, base=Path.cwd())
        if self.allocator is not None and self.allocator.traits.source == "probe":
            raise ConfigError(
                f"the allocator {self.allocator.name!r} reads a probe, and verl samples a prompt once",
                remedy="choose one that reads earlier steps, such as 'gvm_online'",
                key="allocate",
                code="config.unsupported",
            )
        self._visits: dict[str, tuple[int, int]] = {}  # prompt -> (correct, judged) in the steps so far

    def counts(self, prompts: Sequence[str]) -> list[int]:
        """Rollouts to sample for each prompt; n times as many in all. A prompt that occurs twice counts as one."""
        if self.allocator is None:
            return [self.rollouts_per_prompt] * len(prompts)
        visits = self._visits if self.allocator.traits.source == "history" else {}
        stats = plain_stats(prompts, visits)
        return [int(count) for count in self.allocator(stats, self.rollouts_per_prompt * len(prompts))]

    def keep(self, groups: Sequence[Sampled], step: int) -> list[BoolArray]:
        """[N] of each group: what is trained on. The verdicts are added to the statistics of the next counts."""
        most = max((len(one.rewards) for one in groups), default=0)
        if most <= self.keep_per_prompt < self.rollouts_per_prompt:
            raise ConfigError(
                f"no prompt has more than {most} rollouts, of which {self.keep_per_prompt} are kept: this trainer "
                f"ignores rollouts_per_prompt = {self.rollouts_per_prompt}",
                remedy="set trainer.v1.trainer_mode=winnow_sync or, for an asynchronous trainer, "
                f"actor_rollout_ref.rollout.n={self.rollouts_per_prompt}",
                key="rollouts_per_prompt",
                code="config.no_effect",
            )
        rng = Rng((self._seed, "select", step))
        plain = [self._group(one) for one in groups]
        kept = [keep_verified(self._select, group, rng) for group in plain]
        for group in plain:
            right, judged = self._visits.get(group.prompt.id, (0, 0))
            self._visits[group.prompt.id] = right + int(group.correct.sum()), judged + int(group.valid.sum())
        return kept

    def _group(self, one: Sampled) -> Group:
        finished = None if self._longest is None else [length < self._longest for length in one.longest]
        tokens = [np.zeros(length, np.int64) for length in one.lengths]
        return plain_group(one.prompt, one.rewards, tokens=tokens, finished=finished)


def budget_metrics(groups: Sequence[Sampled], kept: Sequence[BoolArray]) -> dict[str, float]:
    """For verl's own log: tokens sampled and kept, the share of rollouts kept, and the variance of their rewards."""
    variances = [float(np.var(one.rewards[keep])) for one, keep in zip(groups, kept, strict=True) if keep.any()]
    lengths = [np.array(one.lengths, dtype=np.int64) for one in groups]
    return {
        "budget/generated_tokens": float(sum(of.sum() for of in lengths)),
        "budget/trained_tokens": float(sum(of[keep].sum() for of, keep in zip(lengths, kept, strict=True))),
        "budget/share_kept": sum(int(keep.sum()) for keep in kept) / max(1, sum(len(keep) for keep in kept)),
        "budget/kept_reward_variance": float(np.mean(variances)) if variances else 0.0,
    }


def _count(kwargs: Mapping[str, Any], key: str, *, least: int = 1) -> int:
    value = kwargs.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        code, remedy = "config.missing_key" if value is None else "config.value", f"give an integer of at least {least}"
        raise ConfigError(f"sampler_kwargs.{key} is {value!r}", remedy=remedy, key=key, code=code)
    return value
