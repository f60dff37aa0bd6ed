"""A sampler of prompt groups for NeMo-RL's SingleController, by the variance of their rewards.

It has the methods of NeMo-RL's protocol `PromptGroupSampler`, which the controller calls in its two loops:

    rollouts:   admit -> a prompt is sampled -> its group is committed to the buffer
    training:   evict -> select -> update, until a step has its prompt groups

Once `decide_on` groups are committed, `winnow.budget.selection.prompts_by_variance` keeps some of them. `evict` removes
the others, and groups that are too old. `select` returns kept groups, each whole. A step has as many groups as NeMo-RL
is configured for, so more prompts are sampled than are trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from winnow.budget.arguments import check_count, check_number
from winnow.budget.selection import prompts_by_variance
from winnow.errors import ConfigError
from winnow.records import FloatArray

REWARD = "total_reward"  # NeMo-RL's column of the rewards
BUFFER = ("meta_list", "start_weight_list", "ready_list", "remove", "_call_dp")  # what is used of TQReplayBuffer


class VarianceSampler:
    """Whole prompt groups whose rewards vary most, sampled by one of the newest versions of the policy.

    The options are those of `async_rl.sampler` beside `name` and `target`:

    share                     of the sum of the reward variances, which the kept groups have at least [0.9]
    margin                    of that sum; groups that together have less are not trained on [0.01]
    decide_on                 the number of groups that are compared at a time [16]
    max_staleness_versions    how many versions older than the policy a group may be [1]

    share and margin are those of RAGEN-2 (Wang et al. 2026, arXiv 2604.06268). Sampling is limited by the size of the
    buffer and not by the version of the policy, because a step of exactly the sampled groups could never be filled once
    one of them is removed. Raises ConfigError for a value that is out of range, and for a buffer of another form.
    """

    def __init__(
        self,
        buffer: Any,
        *,
        share: float = 0.9,
        margin: float = 0.01,
        decide_on: int = 16,
        max_staleness_versions: int = 1,
    ) -> None:
        try:
            check_number("share", share, most=1.0, above=0.0)
            check_number("margin", margin, least=0.0)
            check_count("decide_on", decide_on, least=1)
            check_count("max_staleness_versions", max_staleness_versions)
        except ValueError as error:
            key = str(error).partition(" ")[0]
            raise ConfigError(
                f"async_rl.sampler.{error}", remedy=f"correct {key}", key=f"async_rl.sampler.{key}", code="config.value"
            ) from error
        for name in BUFFER:
            if not hasattr(buffer, name):
                raise ConfigError(
                    f"this release of NeMo-RL does not fit: its buffer has no {name!r}",
                    remedy="use a release of NeMo-RL with async_rl.sampler, or name: windowed",
                    key="async_rl.sampler.target",
                    code="config.not_installed",
                )
        self._buffer = buffer
        self._share, self._margin, self._decide_on = share, margin, decide_on
        self._versions = max_staleness_versions
        self._kept = set[str]()  # names of the groups in the buffer that may be trained on

    async def admit(self, *, trainer_version_fn: Callable[[], int]) -> None:
        """The next prompts are sampled at once, for no step in particular."""

    async def evict(self, *, current_train_weight: int) -> int:
        """Remove committed groups that are too old, or that are not kept; their number."""
        oldest = self._oldest(current_train_weight)
        slots = zip(self._buffer.meta_list, self._buffer.start_weight_list, self._buffer.ready_list, strict=True)
        old = await self._remove([meta for meta, version, ready in slots if ready and version < oldest])
        return old + await self._remove(await self._not_kept())

    async def select(
        self, *, current_train_weight: int, min_prompt_groups: int, max_prompt_groups: int
    ) -> tuple[Any, int]:
        """(rows of the oldest kept groups, their number), of which there are at most `max_prompt_groups`.

        (None, 0) where there are fewer than `min_prompt_groups`. The rows stay in NeMo-RL's data plane.
        """
        if not 1 <= min_prompt_groups <= max_prompt_groups:
            raise ValueError(f"select: from {min_prompt_groups} to {max_prompt_groups} prompt groups")
        oldest, buffer = self._oldest(current_train_weight), self._buffer
        places = [
            place
            for place, version in enumerate(buffer.start_weight_list)
            if buffer.ready_list[place]
            and oldest <= version <= current_train_weight
            and _name(buffer.meta_list[place]) in self._kept
        ][:max_prompt_groups]
        if len(places) < min_prompt_groups:
            return None, 0
        metas = [buffer.meta_list[place] for place in places]
        self._kept -= set(map(_name, metas))
        await buffer.remove(places, remove_in_dp=False)
        return metas[0].concat(*metas[1:]), len(metas)

    def should_abort_inflight(self, *, start_weight_version: int, current_train_weight: int) -> bool:
        """Whether a group that is still sampled would be too old."""
        return start_weight_version < self._oldest(current_train_weight)

    @property
    def is_on_policy(self) -> bool:
        """Whether only groups of the newest version are trained on."""
        return self._versions == 0

    def required_buffer_capacity(self, groups_per_step: int) -> int:
        """With fewer places, a buffer could fill up with too few groups to decide on and too few to train on."""
        return groups_per_step + self._decide_on - 1

    def set_dispatch_index(self, resume_from_step: int) -> None:
        """Nothing counts the batches that are sampled. Groups of a checkpoint are compared again."""

    def _oldest(self, version: int) -> int:
        return max(0, version - self._versions)

    async def _not_kept(self) -> list[Any]:
        """Decide on the committed groups, `decide_on` at a time in the order of their sampling; those not kept."""
        pairs = zip(self._buffer.meta_list, self._buffer.ready_list, strict=True)
        waiting = [meta for meta, ready in pairs if ready and _name(meta) not in self._kept]
        others = []
        for first in range(0, len(waiting) - self._decide_on + 1, self._decide_on):
            pool = waiting[first : first + self._decide_on]
            rewards = await self._rewards(pool)
            order = np.arange(len(pool), dtype=np.float64)
            keep = prompts_by_variance(rewards, order, share=self._share, margin=self._margin)
            self._kept |= {_name(meta) for meta, kept in zip(pool, keep, strict=True) if kept}
            others += [meta for meta, kept in zip(pool, keep, strict=True) if not kept]
        return others

    async def _rewards(self, metas: Sequence[Any]) -> list[FloatArray]:
        """The rewards [N] of each group, read from the data plane, without those that are not finite."""
        data = await self._buffer._call_dp(
            "get_samples",
            sample_ids=[row for meta in metas for row in meta.sample_ids],
            partition_id=metas[0].partition_id,
            select_fields=[REWARD],
        )
        found = np.array([float(reward) for reward in data[REWARD]], dtype=np.float64)
        groups = np.split(found, np.cumsum([len(meta.sample_ids) for meta in metas])[:-1])
        return [own[np.isfinite(own)] for own in groups]

    async def _remove(self, metas: Sequence[Any]) -> int:
        """Remove groups with their rows. Their places are looked up now, as other groups were committed meanwhile."""
        names = set(map(_name, metas))
        self._kept -= names
        listed = enumerate(self._buffer.meta_list)
        places = [place for place, meta in listed if meta is not None and _name(meta) in names]
        return int(await self._buffer.remove(places, remove_in_dp=True)) if places else 0


def _name(meta: Any) -> str:
    """The name of a committed group: that of its first row."""
    return str(meta.sample_ids[0])
