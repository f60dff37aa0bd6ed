"""PODS in TRL on winnow's bundled policy: sample 16 rollouts per prompt and train on the 4 whose rewards differ most.

    pip install 'winnow-rl[trl]'
    python examples/pods_in_trl.py                              minutes on two CPU cores; needs no download
    python examples/pods_in_trl.py --rollouts 4                 plain GRPO with 4 rollouts, for comparison
    winnow replay runs/pods_in_trl --keep 2                     what another selection would have kept

Except for the import and two arguments, it is a script for TRL's GRPOTrainer.
"""

from __future__ import annotations

import argparse
import re

from datasets import Dataset
from trl import GRPOConfig

from winnow.models.folder import BUNDLED
from winnow.tasks.arithmetic import arithmetic
from winnow_trl import PODSTrainer

ANSWER = re.compile(r"</think> <answer>([^<]*)</answer>$")
PROMPTS = 16  # per step


def right(completions: list[list[dict[str, str]]], answer: list[str], **columns: object) -> list[float]:
    """1 for a completion that ends in its answer, else 0."""
    found = [ANSWER.search(completion[-1]["content"]) for completion in completions]
    return [float(match is not None and match[1] == gold) for match, gold in zip(found, answer, strict=True)]


def questions(size: int) -> Dataset:
    """Arithmetic, as conversations of one message. The column `id` makes the selection independent of the wording."""
    problems = arithmetic("train", levels=[2, 3, 4], size=size)
    columns = {
        "id": [problem.id for problem in problems],
        "prompt": [[{"role": "user", "content": problem.question}] for problem in problems],
        "answer": [problem.answer for problem in problems],
    }
    return Dataset.from_dict(columns)


def settings(output: str, *, steps: int, keep: int) -> GRPOConfig:
    """TRL's settings. num_generations is the number of rollouts to train on per prompt."""
    return GRPOConfig(
        output_dir=output,
        max_steps=steps,
        num_generations=keep,
        per_device_train_batch_size=PROMPTS * keep,
        max_completion_length=48,
        learning_rate=1e-4,
        adam_beta2=0.95,
        adam_epsilon=1e-3,
        lr_scheduler_type="constant",
        logging_steps=1,
        log_completions=True,
        num_completions_to_print=1,
        save_strategy="no",
        report_to="none",
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=True,
        disable_tqdm=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rollouts", type=int, default=16, help="sampled per prompt")
    parser.add_argument("--keep", type=int, default=4, help="trained on per prompt")
    parser.add_argument("--select", default="max_variance", help="a selector of winnow (winnow list selectors)")
    parser.add_argument("--output", default="runs/pods_in_trl")
    options = parser.parse_args()
    trainer = PODSTrainer(
        model=str(BUNDLED),
        args=settings(options.output, steps=options.steps, keep=options.keep),
        train_dataset=questions(2048),
        reward_funcs=right,
        rollouts_per_prompt=options.rollouts,
        select=options.select,
    )
    trainer.train()
    trainer.save_state()  # winnow replay reads the names of the rewards from it


if __name__ == "__main__":
    main()
