"""The log of a SkyRL run: the scalars of its TensorBoard tracker, and its dumped evaluations.

    RUN/events.out.tfevents.*                                       of trainer.logger=tensorboard, TENSORBOARD_DIR=RUN
    RUN/dumped_evals/global_step_N_evals/aggregated_results.jsonl   of trainer.export_path=RUN

The rollouts of training are dumped as a pickle of tensors without rewards and groups (trainer.dump_data_batch): reading
one would execute it, and it has nothing that a replay needs. Read as the code of SkyRL (commit a9564572) writes it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from winnow_lab.logs.reading import json_lines, metric
from winnow_lab.logs.tensorboard import MetricsLog, Scalars

_DUMP = re.compile(r"global_step_(\d{1,15})_evals")


class SkyRlLog(MetricsLog):
    """A folder with the event files of one run; dumped evaluations add the steps that these lack."""

    program = "SkyRL"
    names = "events.out.tfevents.* of TENSORBOARD_DIR, dumped_evals/global_step_5_evals/aggregated_results.jsonl"
    count = "generate/batch_num_seq"
    length = "generate/avg_num_tokens"
    evaluation = re.compile(r"eval/(.+)/avg_score")
    known = ("generate/", "reward/", "eval/", "policy/", "critic/", "loss/", "timing/", "trainer/", "vllm/", "ray/")
    metrics: ClassVar[Mapping[str, str]] = {
        "reward/avg_raw_reward": "reward/mean",
        "policy/policy_loss": "policy/loss",
        "policy/policy_entropy": "policy/entropy",
        "policy/policy_lr": "policy/learning_rate",
        "timing/step": "seconds/step",
        "timing/generate": "seconds/generate",
        "timing/policy_train": "seconds/update",
        "timing/critic_train": "seconds/critic",
        "timing/sync_weights": "seconds/sync",
    }

    @classmethod
    def is_at(cls, path: Path) -> bool:
        return super().is_at(path) or bool(_dumps(path))

    def scalars(self) -> Scalars:
        merged = {step: dict(tags) for step, tags in super().scalars().items()}
        for step, path in _dumps(self.path).items():
            for number, row in json_lines(path):
                known = {tag: row[tag] for tag in row if self.evaluation.fullmatch(tag)}
                own = {tag: metric(path, f"line {number}", tag, value) for tag, value in known.items()}
                merged[step] = {**own, **merged.get(step, {})}
        return dict(sorted(merged.items()))


def _dumps(path: Path) -> dict[int, Path]:
    """The step of each dumped evaluation -> its metrics."""
    found = path.glob("dumped_evals/global_step_*_evals/aggregated_results.jsonl")
    matches = ((match, own) for own in found if (match := _DUMP.fullmatch(own.parent.name)))
    return dict(sorted((int(match[1]), own) for match, own in matches))
