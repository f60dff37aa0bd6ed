"""Write the logs of OpenRLHF and SkyRL with the SummaryWriter of torch, which both of them use, and made-up numbers.

python tests/with_tensorboard/make_log.py tests/fixtures      as the files there were made, by torch 2.13.0

The calls are those of openrlhf/utils/logging_utils.py (commit 3c3be623) and of skyrl/train/utils/tracking.py (commit
a9564572). It needs tensorboard. Three steps of 32 rollouts, with evaluations before the first step and after the last.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

STEPS = 3


def openrlhf(folder: Path) -> None:
    writer = SummaryWriter(log_dir=str(folder))
    for step in range(1, STEPS + 1):
        status = {
            "policy_loss": -0.5, "actor_lr": 1e-6, "actor_grad_norm": 0.25 * step, "kl": 0.125,
            "timing/generation": 6.0, "timing/ppo_train": 3.0, "timing/step_total": 10.0,
            "rollout/reward_mean": 0.25 * step, "rollout/reward_std": 0.5, "rollout/num_samples": 32.0,
            "rollout/response_length_mean": 10.0 + step, "rollout/truncated_rate": 0.0, "return": 0.0,
        }  # fmt: skip
        writer.add_text("train/generated_samples", "Sample:\\n1 + 1 = 2\\n\\nReward: 1.0000", step)
        for name, value in status.items():
            writer.add_scalar(f"train/{name}", value, step)
    for name, value in {"eval_math_pass4": 0.75, "eval_math_pass1": 0.5}.items():
        writer.add_scalar(f"eval/{name}", value, STEPS)
    writer.close()


def skyrl(folder: Path) -> None:
    writer = SummaryWriter(str(folder))
    evaluation = {"eval/gsm8k/avg_score": 0.25, "eval/math/avg_score": 0.5, "eval/all/avg_score": 0.375}
    rows = {0: evaluation}
    for step in range(1, STEPS + 1):
        rows[step] = {
            "generate/batch_num_seq": 32, "generate/avg_num_tokens": 10.0 + step, "reward/avg_raw_reward": 0.25 * step,
            "reward/avg_pass_at_8": 0.5, "policy/policy_loss": -0.5, "policy/policy_entropy": 1.0 / step,
            "policy/policy_lr": 1e-6, "timing/step": 10.0, "timing/generate": 6.0, "trainer/global_step": step,
        }  # fmt: skip
    for step, row in rows.items():
        for name, value in row.items():
            writer.add_scalar(name, value, step)
    writer.close()
    dump = folder / "dumped_evals" / f"global_step_{STEPS}_evals"
    dump.mkdir(parents=True)
    last = {"eval/gsm8k/avg_score": 0.75, "eval/gsm8k/pass_at_1": 0.75, "eval/math/avg_score": 0.5}
    (dump / "aggregated_results.jsonl").write_text(json.dumps({**last, "eval/all/avg_score": 0.625}) + "\n")


if __name__ == "__main__":
    for write in (openrlhf, skyrl):
        folder = Path(sys.argv[1]) / f"{write.__name__}_run"
        write(folder)
        (file,) = folder.glob("events.out.tfevents.*")
        file.rename(folder / "events.out.tfevents.0")  # its name has the time and the machine
