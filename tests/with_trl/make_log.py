"""Train 5 steps of TRL's own GRPOTrainer with two weighted rewards and a column of the user's, and log completions.

python tests/with_trl/make_log.py tests/fixtures/trl_run        as the files there were made, by TRL 1.16.0
python tests/with_trl/make_log.py tests/fixtures/trl_mixed_run mixed

The second is a run of two tasks with evaluations after steps 2, 4 and 5: `even` scores the problems with an even answer
alone, and returns None for the others. An evaluation has fewer completions than a generation batch.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from winnow.models.folder import BUNDLED
from winnow.tasks.arithmetic import arithmetic

PROMPTS, ROLLOUTS, STEPS = 4, 8, 5


def right(completions: list[Any], answer: list[str], log_extra: Any, **columns: Any) -> list[float]:
    texts = [completion[-1]["content"] for completion in completions]
    log_extra("letters", [len(text) for text in texts])
    return [float(text.endswith(f"<answer>{gold}</answer>")) for text, gold in zip(texts, answer, strict=True)]


def short(completion_ids: list[list[int]], **columns: Any) -> list[float]:
    return [-len(ids) / 64 for ids in completion_ids]


def even(completion_ids: list[list[int]], answer: list[str], **columns: Any) -> list[float | None]:
    pairs = zip(completion_ids, answer, strict=True)
    return [None if int(gold) % 2 else len(ids) / 64 for ids, gold in pairs]


def rows(split: str, size: int) -> Dataset:
    problems = arithmetic(split, levels=[1, 2, 3], size=size)
    return Dataset.from_dict(
        {
            "prompt": [[{"role": "user", "content": problem.question}] for problem in problems],
            "answer": [problem.answer for problem in problems],
        }
    )


def train(folder: Path, *, mixed: bool = False) -> None:
    evaluation: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 2, "num_generations_eval": 2} if mixed else {}
    trainer = GRPOTrainer(
        model=str(BUNDLED),
        reward_funcs=[right, even if mixed else short],
        args=GRPOConfig(
            output_dir=str(folder),
            max_steps=STEPS,
            num_generations=ROLLOUTS,
            per_device_train_batch_size=PROMPTS * ROLLOUTS,
            max_completion_length=32,
            reward_weights=[1.0, 0.5],
            logging_steps=1,
            log_completions=True,
            num_completions_to_print=1,
            save_strategy="no",
            report_to="none",
            bf16=False,
            gradient_checkpointing=False,
            use_cpu=True,
            disable_tqdm=True,
            **evaluation,
        ),
        train_dataset=rows("train", 64),
        eval_dataset=rows("test", 6) if mixed else None,
    )
    trainer.train()
    trainer.save_state()


if __name__ == "__main__":
    train(Path(sys.argv[1]), mixed="mixed" in sys.argv[2:])
