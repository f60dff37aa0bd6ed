"""The numbers of rollouts with tokens that the policy did not sample: each counts the policy's tokens, or says which.

The rollout of these tests has 6 tokens. The policy sampled the first two and the last two, and an environment wrote the
two between them.
"""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest

from synthetic_run import RIGHT, WRONG
from winnow.core.batches import make_batches
from winnow.core.evaluation import judged
from winnow.core.metrics import completion_tokens, describe
from winnow.core.step import scatter
from winnow.evaluation.folder import parse_row, rows_of
from winnow.metrics import check
from winnow.records import Group, Prompt, Rollout
from winnow.rewards.format import length, overlong

MASK = np.array([True, True, False, False, True, True])
PROMPT = Prompt(id="p", tokens=np.array([7, 8, 9]), text="?", answer="1", task="t")


def rollout(index=0, mask=MASK, *, environment_logprob=0.0):
    logprobs = np.where(np.ones(6, bool) if mask is None else mask, -0.5, environment_logprob)
    return Rollout(
        index=index, tokens=np.arange(6), logprobs=logprobs, text="", finish="stop", version=0, trainable=mask
    )


def step(*rollouts):
    group = Group(prompt=PROMPT, rollouts=rollouts, outcomes=(RIGHT, WRONG))
    return group.fill(keep=np.array([True, True])).fill(advantages=np.array([1.0, -1.0]))


def batches_of(group, **limits):
    return make_batches(
        [group],
        lambda kept: np.full(len(kept.lengths), 1 / kept.lengths.sum()),
        epochs=1,
        updates_per_step=1,
        max_new_tokens=6,
        planned=1,
        pass_rates=None,
        seed=(0,),
        **limits,
    )


def metrics_of(group, **limits):
    metrics = describe([group], batches_of(group, **limits), planned=1)
    check(metrics)
    return metrics


def test_lengths_are_the_policys_and_sizes_those_of_the_arrays():
    group = step(rollout(), rollout(1, None))
    assert [each.length for each in group.rollouts] == [4, 6]
    assert group.lengths.tolist() == [4, 6]
    assert group.sizes.tolist() == [6, 6]
    assert completion_tokens([group]) == 10.0


def test_the_entropy_is_a_mean_over_sampled_tokens():
    """8 sampled tokens at -0.5 each: 0.5 nats, whatever the log-probs in the places of the environment's."""
    for foreign in (0.0, -9.0):
        group = step(rollout(environment_logprob=foreign), rollout(1, environment_logprob=foreign))
        assert metrics_of(group)["policy/entropy"] == pytest.approx(0.5)


def test_the_mean_advantage_is_one_over_sampled_tokens():
    """3 at the 4 sampled tokens of one rollout, and 1 at the 6 of the other: 2, with a deviation of 1."""
    group = Group(prompt=PROMPT, rollouts=(rollout(), rollout(1, None)), outcomes=(RIGHT, WRONG))
    credits = (np.where(MASK, 3.0, 0.0), np.ones(6))
    group = group.fill(keep=np.array([True, True])).fill(advantages=credits)
    metrics = metrics_of(group)
    assert (metrics["advantage/mean"], metrics["advantage/std"]) == (2.0, 1.0)


def test_the_budget_counts_environment_tokens_apart():
    metrics = metrics_of(step(rollout(), rollout(1, None)))
    of = {name.removeprefix("budget/"): value for name, value in metrics.items() if name.startswith("budget/")}
    assert of["environment_tokens"] == 2.0
    assert of["tokens_generated"] == of["tokens_verified"] == of["tokens_kept"] == of["tokens_trained"] == 10.0
    assert of["tokens_wasted"] == of["tokens_cut"] == 0.0
    assert (metrics["rollout/length_mean"], metrics["rollout/length_max"]) == (5.0, 6.0)


def test_without_an_environment_there_is_no_number_of_its_tokens():
    assert "budget/environment_tokens" not in metrics_of(step(rollout(0, None), rollout(1, None)))


def test_the_first_trained_tokens_are_sampled_ones():
    """The first 3 sampled tokens end at the fifth token, and one sampled token of each rollout is cut."""
    group = step(rollout(), rollout(1))
    (batch,) = batches_of(group, max_trained_tokens=3)
    assert [row.rollout.tokens.tolist() for row in batch.sequences] == [[0, 1, 2, 3, 4]] * 2
    assert [row.rollout.sampled.sum() for row in batch.sequences] == [3, 3]
    metrics = metrics_of(group, max_trained_tokens=3)
    assert (metrics["budget/tokens_trained"], metrics["budget/tokens_cut"], metrics["budget/rollouts_cut"]) == (6, 2, 2)
    (whole,) = batches_of(group, max_trained_tokens=4)
    assert whole.sequences[0].rollout is group.rollouts[0]


def test_a_limit_of_length_is_about_the_policys_tokens():
    assert length(PROMPT, rollout(), limit_tokens=4, slope_tokens=0).reward == 1.0
    assert length(PROMPT, rollout(1, None), limit_tokens=4, slope_tokens=0).reward == 0.0
    assert overlong(PROMPT, rollout(), limit_tokens=5, slope_tokens=2).reward == -0.5


def test_an_evaluation_measures_the_policys_tokens():
    group = step(rollout(), rollout(1, None))
    assert [one.length for one in judged(group)] == [4, 6]
    assert [row["length"] for row in rows_of("sampled", [group])] == [4, 6]


def test_a_row_of_an_evaluation_is_read_as_it_was_written():
    turns = ("so <answer>3</answer>", "higher", "7")
    played = dataclasses.replace(rollout(), turns=turns, text="\n".join(turns[::2]))
    for row, expected in zip(rows_of("sampled", [step(played, rollout(1, None))]), (list(turns), None), strict=True):
        assert row["turns"] == expected
        assert parse_row(json.dumps(row).encode(), "a file") == row
        older = {name: value for name, value in row.items() if name != "turns"}
        assert parse_row(json.dumps(older).encode(), "a file") == older


def test_advantages_per_token_have_the_size_of_the_rollout():
    group = Group(prompt=PROMPT, rollouts=(rollout(), rollout(1)), outcomes=(RIGHT, WRONG))
    credit = tuple(np.full(6, value) for value in (0.5, -0.5))
    assert [array.tolist() for array in scatter(group, credit)] == [[0.5] * 6, [-0.5] * 6]
    assert not math.isnan(group.rewards.sum())
