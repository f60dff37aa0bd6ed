"""One optimizer step of a scripted PODSTrainer on two prompts, as one of any number of processes.

ACCELERATE_USE_CPU=true torchrun --standalone --nproc_per_node 2 tests/with_trl/two_processes.py FOLDER

Each process writes FOLDER/<rank>.json: what it kept, with advantages, and the norm of each parameter after the step.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from scripted import rollouts_of, trainer_of

folder, world, rank = Path(sys.argv[1]), int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
trainer = trainer_of(
    folder / "trl", n=8, beta=0.05, scale_rewards="batch", per_device_train_batch_size=8 // world, max_grad_norm=0.1
)
batches = []
inner = trainer._generate_and_score_completions
trainer._generate_and_score_completions = lambda rows: batches.append(inner(rows)) or batches[-1]
trainer.train()
(batch,) = batches
report = {
    "world": trainer.accelerator.num_processes,
    "kept": rollouts_of(batch),
    "advantages": batch["advantages"].tolist(),
    "tokens": int(batch["num_items_in_batch"]),
    "log": {name: value for name, value in trainer.state.log_history[0].items() if name.startswith(("budget/", "kl"))},
    "norms": [
        float(parameter.double().norm()) for parameter in trainer.accelerator.unwrap_model(trainer.model).parameters()
    ],
}
(folder / f"{rank}.json").write_text(json.dumps(report))
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()
