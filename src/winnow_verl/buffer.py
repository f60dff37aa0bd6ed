"""verl's replay buffer with a selection: of the n rollouts of a prompt, m are materialised, and the others removed.

verl puts each rollout into TransferQueue with its reward, before the replay buffer makes a batch of it. So a rollout
that is not kept costs no log-probs (old or reference) and no update: only its sampling and its reward. It needs
rewards that are computed while rollouts are sampled, which is verl's default; with a reward model on the trainer's own
GPUs there are none yet.

A session (one rollout of a prompt) may have several outputs. They are kept or removed together; the reward is that of
the last one, as in verl's advantages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from winnow.algos.plain_groups import prompt_id
from winnow.errors import ConfigError
from winnow_verl.plan import BudgetPlan, Sampled, budget_metrics
from winnow_verl.release import VERL

VERL.check_installed()

import transfer_queue as tq  # noqa: E402  (after the check that verl, which needs it, is installed)
from transfer_queue import KVBatchMeta  # noqa: E402
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync  # noqa: E402

VERL.check_method(
    ReplayBuffer, "_materialize_batch", ("self", "partition_id", "selected_prompt_uids", "partition_snapshot")
)
VERL.check_method(ReplayBuffer, "sample", ("self", "global_steps", "partition_id", "batch_size"))

TRAIN = "train"  # the partition of training; selection leaves that of validation alone


class PODSReplayBuffer(ReplayBuffer):  # type: ignore[misc]
    """verl's synchronous replay buffer that keeps what a selector of winnow keeps.

    Its options are verl's `trainer.v1.sampler.sampler_kwargs`, those of `BudgetPlan`. Raises ConfigError for others.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        given = self.sampler_kwargs
        options = OmegaConf.to_container(given, resolve=True) if OmegaConf.is_config(given) else dict(given or {})
        self.plan = BudgetPlan({str(key): value for key, value in options.items()})
        self._step = 0
        self._metrics: dict[str, float] = {}

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, Any]]:
        """verl's batch and metrics, with those of the selection."""
        self._step, self._metrics = global_steps, {}
        batch, metrics = super().sample(global_steps, partition_id, batch_size)
        return batch, {**metrics, **self._metrics}

    def _materialize_batch(
        self, partition_id: str, selected_prompt_uids: list[str], partition_snapshot: dict[str, dict[str, Any]]
    ) -> KVBatchMeta:
        batch = super()._materialize_batch(partition_id, selected_prompt_uids, partition_snapshot)
        if partition_id != TRAIN or not batch.keys:
            return batch
        sessions = _sessions(batch.keys)
        groups = self._sampled(batch, sessions)
        kept = self.plan.keep(groups, self._step)
        self._metrics = budget_metrics(groups, kept)
        keys = {
            key
            for of_prompt, keep in zip(sessions.values(), kept, strict=True)
            for outputs, stays in zip(of_prompt, keep.tolist(), strict=True)
            if stays
            for key in outputs
        }
        if not keys:
            raise RuntimeError("the selector keeps no rollout of the batch, and verl cannot train on none")
        dropped = [key for key in batch.keys if key not in keys]
        if dropped:
            tq.kv_clear(partition_id=partition_id, keys=dropped)
        pairs = [(key, tag) for key, tag in zip(batch.keys, batch.tags, strict=True) if key in keys]
        return KVBatchMeta(partition_id=partition_id, keys=[key for key, _ in pairs], tags=[tag for _, tag in pairs])

    def _sampled(self, batch: KVBatchMeta, sessions: Mapping[str, Sequence[Sequence[str]]]) -> list[Sampled]:
        """The prompts of a batch, in the order of `sessions`, with the reward of each session."""
        last = [outputs[-1] for of_prompt in sessions.values() for outputs in of_prompt]
        data = tq.kv_batch_get(keys=last, partition_id=batch.partition_id, select_fields=["rm_scores", "raw_prompt"])
        fields = set(data.keys())
        if "rm_scores" not in fields:
            raise ConfigError(
                "the rollouts have no rewards when the batch is made, as the reward model shares the trainer's GPUs",
                remedy="set reward.reward_model.enable_resource_pool=True, or train without selection",
                key="reward.reward_model.enable_resource_pool",
                code="config.unsupported",
            )
        scores = dict(zip(last, (_score(of) for of in data["rm_scores"]), strict=True))
        prompts = dict(zip(last, data.get("raw_prompt").tolist(), strict=True)) if "raw_prompt" in fields else {}
        tags = dict(zip(batch.keys, batch.tags, strict=True))
        return [
            Sampled(
                prompt=prompt_id(prompts[of_prompt[0][-1]]) if prompts else uid,
                rewards=np.array([scores[outputs[-1]] for outputs in of_prompt], dtype=np.float64),
                lengths=[sum(int(tags[key]["response_len"]) for key in outputs) for outputs in of_prompt],
                longest=[max(int(tags[key]["response_len"]) for key in outputs) for outputs in of_prompt],
            )
            for uid, of_prompt in sessions.items()
        ]


class PODSReplayBufferAsync(PODSReplayBuffer, ReplayBufferAsync):  # type: ignore[misc]
    """The same over verl's asynchronous replay buffer. Its trainers sample `rollout.n` of every prompt."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.plan.allocator is not None:
            raise ConfigError(
                "an asynchronous trainer samples rollout.n of every prompt, so `allocate` has no effect",
                remedy="remove it, or set trainer.v1.trainer_mode=winnow_sync",
                key="allocate",
                code="config.no_effect",
            )


def _sessions(keys: Sequence[str]) -> dict[str, list[list[str]]]:
    """prompt -> its sessions in order, each the keys of its outputs in order. A key is prompt_session_output."""
    found: dict[str, dict[int, list[tuple[int, str]]]] = {}
    for key in keys:
        prompt, session, output = key.rsplit("_", 2)
        found.setdefault(prompt, {}).setdefault(int(session), []).append((int(output), key))
    return {
        prompt: [[key for _, key in sorted(outputs)] for _, outputs in sorted(of.items())]
        for prompt, of in found.items()
    }


def _score(of_tokens: Any) -> float:
    total = float(of_tokens.sum())
    return total if math.isfinite(total) else math.nan
