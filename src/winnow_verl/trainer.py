"""verl's synchronous trainer with the counts of winnow: each prompt is sampled as often as the replay buffer plans.

The import registers it with verl.

verl's `rollout.n` is m, the rollouts of a prompt that are trained on: its mini-batches count rows by it. The field
`__rollout_n__` of a prompt is the number that its agent loop samples.
"""

from __future__ import annotations

from typing import Any

from winnow.algos.plain_groups import prompt_id
from winnow.errors import ConfigError
from winnow_verl.buffer import PODSReplayBuffer
from winnow_verl.release import VERL

from tensordict import TensorDict  # isort: skip
from verl.trainer.ppo.v1.trainer_base import register_trainer  # isort: skip
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync  # isort: skip
from verl.utils import tensordict_utils as tu  # isort: skip

VERL.check_method(PPOTrainerSync, "_submit_batch_to_rollout", ("self", "batch"))
VERL.check_method(PPOTrainerSync, "_build_replay_buffer", ("self",))

MODE = "winnow_sync"  # of trainer.v1.trainer_mode
COUNT = "__rollout_n__"  # verl's name of a prompt's number of rollouts


@register_trainer(MODE)
class PODSTrainer(PPOTrainerSync):  # type: ignore[misc]
    """verl's PPOTrainerSync that samples the counts of a `PODSReplayBuffer`, and trains on `rollout.n` of a prompt.

    Raises ConfigError unless that buffer is the custom sampler, and its `keep_per_prompt` is `rollout.n`.
    """

    @property
    def trainer_mode(self) -> str:
        """verl treats every mode but this one as asynchronous."""
        return "sync"

    @trainer_mode.setter
    def trainer_mode(self, mode: str) -> None:
        """The name under which the trainer is registered is of no use to it."""

    def _build_replay_buffer(self) -> PODSReplayBuffer:
        buffer: PODSReplayBuffer = super()._build_replay_buffer()
        check_buffer(buffer, self.config.actor_rollout_ref.rollout.n)
        return buffer

    def _submit_batch_to_rollout(self, batch: TensorDict) -> int:
        set_counts(batch, self.replay_buffer)
        return super()._submit_batch_to_rollout(batch)  # type: ignore[no-any-return]


def check_buffer(buffer: Any, n: int) -> None:
    """Raise ConfigError unless the replay buffer selects, down to verl's `rollout.n`."""
    if not isinstance(buffer, PODSReplayBuffer):
        raise ConfigError(
            f"trainer_mode={MODE} needs a replay buffer that selects, and this one is {type(buffer).__name__}",
            remedy="set trainer.v1.sampler.custom_sampler.path=pkg://winnow_verl.buffer and .name=PODSReplayBuffer",
            key="trainer.v1.sampler.custom_sampler.name",
            code="config.missing_key",
        )
    if buffer.plan.keep_per_prompt != n:
        raise ConfigError(
            f"sampler_kwargs.keep_per_prompt is {buffer.plan.keep_per_prompt}, and rollout.n, by which verl counts the "
            f"rows of a mini-batch, is {n}",
            remedy=f"set actor_rollout_ref.rollout.n={buffer.plan.keep_per_prompt}",
            key="actor_rollout_ref.rollout.n",
            code="config.combination",
        )


def set_counts(batch: TensorDict, buffer: PODSReplayBuffer) -> None:
    """Set the field `__rollout_n__` of every prompt of a batch."""
    prompts = [prompt_id(prompt) for prompt in tu.get(batch, "raw_prompt")]
    tu.assign_non_tensor_stack(batch, COUNT, buffer.plan.counts(prompts))
