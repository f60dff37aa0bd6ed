"""Write a log as a verl run of 5 steps does: generations by its trainer's writer, metrics by its file logger.

python tests/with_verl/make_log.py tests/fixtures/verl_run        as the files there were made, by verl 0.9.1

Rollouts are made up (4 prompts of 8, rewards 0 or 1, seeded). Their metrics are computed by verl's own functions.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from verl import DataProto
from verl.trainer.ppo.metric_utils import compute_data_metrics, compute_timing_metrics
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils.tracking import FileLogger

PROMPTS, ROLLOUTS, STEPS, LONGEST = 4, 8, 5, 12
TIMES = {"step": 10.0, "gen": 6.0, "old_log_prob": 1.0, "update_actor": 2.5, "adv": 0.25}


def rollouts_of(step: int) -> dict[str, Any]:
    """Rewards [32], lengths [32] and texts of a step; rewards rise with the steps."""
    rng = np.random.default_rng(step)
    rewards = (rng.random(PROMPTS * ROLLOUTS) < 0.1 + 0.15 * step).astype(np.float64)
    lengths = rng.integers(2, LONGEST + 1, PROMPTS * ROLLOUTS)
    return {"rewards": rewards, "lengths": lengths, "texts": ["x" * int(length) for length in lengths]}


def metrics_of(rewards: np.ndarray, lengths: np.ndarray) -> dict[str, Any]:
    mask = torch.arange(LONGEST)[None] < torch.as_tensor(lengths)[:, None]
    scores = torch.zeros(mask.shape)
    scores[torch.arange(len(rewards)), torch.as_tensor(lengths) - 1] = torch.as_tensor(rewards, dtype=torch.float32)
    prompts = torch.ones(len(rewards), 5, dtype=torch.int64)
    batch = DataProto.from_dict(
        tensors={
            "token_level_scores": scores, "token_level_rewards": scores, "advantages": scores, "returns": scores,
            "prompts": prompts, "responses": mask.long(), "response_mask": mask.long(),
            "attention_mask": torch.cat([prompts, mask.long()], dim=1),
        }
    )  # fmt: skip
    batch.meta_info["global_token_num"] = (5 + lengths).tolist()
    return {**compute_data_metrics(batch, use_critic=False), **compute_timing_metrics(batch, dict(TIMES))}


def write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["VERL_FILE_LOGGER_PATH"] = str(folder / "log.jsonl")
    logger = FileLogger("project", "run")
    logger.log({"val-core/arithmetic/acc/mean@1": 0.125}, step=0)
    for step in range(1, STEPS + 1):
        own = rollouts_of(step)
        keys = [f"prompt{step}{p}_{session}_0" for p in range(PROMPTS) for session in range(ROLLOUTS)]
        PPOTrainer._write_generations(
            [f"What is {p} + {step}?" for p in range(PROMPTS) for _ in range(ROLLOUTS)],
            own["texts"],
            [str(p + step) for p in range(PROMPTS) for _ in range(ROLLOUTS)],
            own["rewards"].tolist(),
            {"uid": keys},
            str(folder / "rollouts"),
            step,
        )
        actor = {"actor/entropy": 0.5 - 0.05 * step, "actor/grad_norm": 1.0, "actor/lr": 1e-6, "actor/loss": -0.1}
        metrics = {**metrics_of(own["rewards"], own["lengths"]), **actor}
        if step == STEPS:
            metrics |= {"val-core/arithmetic/acc/mean@1": 0.5, "timing_s/testing": 3.0}
        logger.log(metrics, step=step)
    logger.finish()


if __name__ == "__main__":
    write(Path(sys.argv[1]))
