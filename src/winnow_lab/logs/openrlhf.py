"""The log of an OpenRLHF run: the scalars that its TensorBoard logger writes.

    RUN/events.out.tfevents.*   of --logger.tensorboard_dir DIR, in the folder DIR/<logger.wandb.run_name>

OpenRLHF writes no rollouts to its disk. One sample of a step is a text of the event file, which is not read. Read as
the code of OpenRLHF 0.11.0 (commit 3c3be623) writes it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from winnow_lab.logs.tensorboard import MetricsLog


class OpenRlhfLog(MetricsLog):
    """A folder with the event files of one run. The mean reward is of all rollouts, before dynamic filtering."""

    program = "OpenRLHF"
    names = "events.out.tfevents.* of logger.tensorboard_dir"
    count = "train/rollout/num_samples"
    length = "train/rollout/response_length_mean"
    known = ("train/", "eval/")
    evaluation = re.compile(r"eval/eval_(.+)_pass1")  # the mean reward of the samples of a data source
    metrics: ClassVar[Mapping[str, str]] = {
        "train/rollout/reward_mean": "reward/mean",
        "train/rollout/truncated_rate": "rollout/truncated",
        "train/policy_loss": "policy/loss",
        "train/actor_grad_norm": "policy/grad_norm",
        "train/actor_lr": "policy/learning_rate",
        "train/kl": "loss/kl",
        "train/critic_loss": "critic/loss",
        "train/critic_grad_norm": "critic/grad_norm",
        "train/critic_lr": "critic/learning_rate",
        "train/timing/step_total": "seconds/step",
        "train/timing/generation": "seconds/generate",
        "train/timing/ppo_train": "seconds/update",
        "train/timing/broadcast": "seconds/sync",
    }
