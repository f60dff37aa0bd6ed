"""A PODSTrainer on the bundled policy whose completions and rewards are written here.

Completion i of prompt p is the tokens [LETTERS + i, 3 * p + 5, ...] with an end token, or without one where the script
cuts it off. So a row of a batch shows which rollout it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig

from winnow.models.folder import BUNDLED
from winnow_trl import PODSTrainer

LETTERS = 20  # the token of rollout 0
SEED = 7
EOS = AutoTokenizer.from_pretrained(BUNDLED).eos_token_id


def settings(folder: Path, **changes: Any) -> GRPOConfig:
    """Of a run of one step of two prompts, unless changed."""
    common: dict[str, Any] = {
        "output_dir": str(folder),
        "num_generations": 4,
        "per_device_train_batch_size": 8,
        "max_completion_length": 8,
        "max_steps": 1,
        "logging_steps": 1,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "constant",
        "save_strategy": "no",
        "report_to": "none",
        "bf16": False,
        "gradient_checkpointing": False,
        "use_cpu": True,
        "disable_tqdm": True,
        "seed": SEED,
    }
    return GRPOConfig(**{**common, **changes})


def prompts(count: int) -> Dataset:
    return Dataset.from_dict({"id": [f"p{i}" for i in range(count)], "prompt": [f"{i} + {i} =" for i in range(count)]})


def completion(prompt: int, index: int, *, cut: bool) -> list[int]:
    """Its length differs between rollouts: 3 to 6 tokens."""
    body = [LETTERS + index, 3 * prompt + 5, *[9] * (index % 4)]
    return [*body, 10] if cut else [*body, EOS]


def is_cut(prompt: int, index: int) -> bool:
    return (prompt + index) % 5 == 0


def reward(prompt: int, index: int) -> float | None:
    """Multiples of 1/8, with many ties; exact in float32."""
    return int(np.random.default_rng([prompt, index]).integers(0, 5)) / 8


class Scripted(PODSTrainer):
    """Samples `completion` for each prompt and each index; the number of a prompt is the first word of its text."""

    def _generate_single_turn(self, prompt_ids: Any, *rest: Any, **more: Any) -> Any:
        texts = self.processing_class.batch_decode(prompt_ids)
        n, found = self.num_generations, []
        for row, text in enumerate(texts):
            prompt = int(text.split()[0])
            found.append(completion(prompt, row % n, cut=is_cut(prompt, row % n)))
        return found, None


def scripted_reward(prompts: list[str], completion_ids: list[list[int]], **columns: Any) -> list[float | None]:
    return [
        reward(int(prompt.split()[0]), ids[0] - LETTERS) for prompt, ids in zip(prompts, completion_ids, strict=True)
    ]


def trainer_of(folder: Path, *, n: int, select: Any = "max_variance", count: int = 2, **changes: Any) -> Scripted:
    more = {
        name: changes.pop(name)
        for name in ("peft_config", "reward_funcs", "processing_class", "eval_dataset")
        if name in changes
    }
    return Scripted(
        model=str(BUNDLED),
        args=settings(folder, **changes),
        train_dataset=prompts(count),
        rollouts_per_prompt=n,
        select=select,
        **{"reward_funcs": scripted_reward, **more},
    )


def batch_of(trainer: Scripted) -> dict[str, Any]:
    """The generation batch of the first step, as the trainer would take it apart."""
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
    rows = [dict(row) for row in trainer.train_dataset for _ in range(trainer.num_generations)]
    batch: dict[str, Any] = trainer._generate_and_score_completions(rows)
    return batch


def rollouts_of(batch: dict[str, Any]) -> list[tuple[int, int]]:
    """[rows] (prompt, index) of the rows that are trained on: those with an unmasked token."""
    pairs = zip(batch["completion_ids"], batch["completion_mask"], strict=True)
    return [((int(ids[1]) - 5) // 3, int(ids[0]) - LETTERS) for ids, mask in pairs if mask.any()]
