"""A run that samples in rounds: what it saves, what it numbers, and that a resume repeats it."""

from __future__ import annotations

import shutil

import numpy as np

import winnow
from logged_groups import read_rollouts
from refusals import refused
from winnow.errors import ConfigError
from winnow.state.logbook import read_metrics

RULE = {"use": "balanced", "right": 1, "wrong": 1, "per_round": 2}


def config_of(smallest, **more):
    return smallest(rounds=RULE, rollout={"rollouts_per_prompt": 6}, select="all", weighting="prompt", **more)


def test_prompts_end_early_and_their_rollouts_are_numbered_through_the_rounds(smallest):
    result = winnow.train(**config_of(smallest, steps=2), watch=lambda event: None)
    row = read_metrics(result.folder)[0]
    groups = [entry.group for entry in read_rollouts(result.folder) if entry.step == 0]
    sizes = [len(group.rollouts) for group in groups]
    assert set(sizes) <= {2, 4, 6}
    assert row["rounds/rollouts_saved"] == sum(6 - size for size in sizes)
    assert row["rounds/ended_early"] == sum(size < 6 for size in sizes)
    assert row["budget/rollouts"] == sum(sizes)
    for group in groups:
        assert [rollout.index for rollout in group.rollouts] == list(range(len(group.rollouts)))
        before = group.correct[: len(group.rollouts) - 2]
        assert before.all() or not before.any()  # a prompt with both kinds gets no further round


def test_each_round_has_random_numbers_of_its_own(smallest):
    """Without a verdict that ends a prompt, no round repeats the rollouts of the round before."""
    never = {"use": "positive", "right": 99, "per_round": 2}
    config = smallest(rounds=never, rollout={"rollouts_per_prompt": 4}, select="all", weighting="prompt", steps=1)
    result = winnow.train(**config, watch=lambda event: None)
    for group in (entry.group for entry in read_rollouts(result.folder)):
        first, second = group.rollouts[:2], group.rollouts[2:]
        assert any(not np.array_equal(a.tokens, b.tokens) for a, b in zip(first, second, strict=True))


def test_a_resume_repeats_the_rounds(smallest, tmp_path):
    config = config_of(smallest, steps=3, checkpoint={"every": 1, "keep_last": 3})
    whole = winnow.train(**{**config, "output": str(tmp_path / "whole")}, watch=lambda event: None)
    shutil.copytree(whole.folder, tmp_path / "half")
    for step in (2, 3):
        shutil.rmtree(tmp_path / "half" / "checkpoints" / f"step-{step:06d}")
    resumed = winnow.train(**{**config, "output": str(tmp_path / "half")}, resume=True, watch=lambda event: None)
    assert (whole.model / "model.safetensors").read_bytes() == (resumed.model / "model.safetensors").read_bytes()


def test_a_rule_that_exceeds_the_plan_is_refused(smallest, tmp_path):
    (tmp_path / "mine.py").write_text("def rule(seen):\n    return seen.planned + 1\n")
    with refused(ConfigError, code="config.member_result", key="rounds"):
        winnow.train(**smallest(steps=1, rounds=f"{tmp_path}/mine.py:rule"), watch=lambda event: None)


def test_an_unbiased_weight_is_refused_where_verdicts_end_a_prompt(smallest):
    with refused(ConfigError, code="config.combination", key="rounds"):
        winnow.train(**smallest(steps=1, rounds="positive", weighting="unbiased"), watch=lambda event: None)
