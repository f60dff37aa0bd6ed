"""One step ahead with vLLM: the log-probs of each rollout are those of the policy that sampled it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from logged_groups import read_rollouts
from winnow.learner.policy import Policy
from winnow.models.load import load
from winnow.records import Group, TrainingSequence

STEPS = 5


def gap(checkpoint: Path | str, groups: list[Group]) -> float:
    """The largest difference between the rollouts' log-probs and those of a checkpoint."""
    loaded = load(str(checkpoint), dtype="float32")
    policy = Policy(loaded.model, temperature=1.0, pad_token=0, tokens_per_micro_batch=10**6)
    rows = [
        TrainingSequence(prompt=group.prompt, rollout=rollout, group=0, advantage=1.0, weight=1.0)
        for group in groups
        for rollout in group.rollouts
    ]
    with torch.no_grad():
        (mb,) = policy.micro_batches(rows)
        own = policy.forward(mb).logprobs.double().numpy()
    return float(np.abs(own - np.concatenate([row.rollout.logprobs for row in mb.sequences])).max())


def test_five_steps_one_step_ahead(train: Callable, tmp_path: Path) -> None:
    train(
        steps=STEPS,
        engine={"process": "own"},
        rollout={"ahead": 1},
        checkpoint={"every": 1, "keep_last": STEPS},
        select="all",  # log-probs of rollouts that are not kept are rounded in the log
        correction="token_truncate",
    )
    run = tmp_path / "run"
    policies = ["bundled", *(run / "checkpoints" / f"step-{step:06d}" for step in range(1, STEPS + 1))]
    groups = [[logged.group for logged in read_rollouts(run, step)] for step in range(STEPS)]
    versions = [{rollout.version for group in of for rollout in group.rollouts} for of in groups]
    assert versions == [{0}, {0}, {1}, {2}, {3}]  # the second step was sampled while the first was trained
    gaps = [gap(policies[version], of) for of, (version,) in zip(groups, versions, strict=True)]
    assert max(gaps) < 1e-3, gaps
    assert gap(policies[4], groups[4]) > 1e-3  # not those of the policy that the last step trained
