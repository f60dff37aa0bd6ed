"""Advantages by hand."""

from __future__ import annotations

import numpy as np
import pytest

from winnow.algos.advantage import batch, dr_grpo, grpo, is_flat, maxrl, raft, raw, rloo
from winnow.records import Group, Outcome, Prompt, Rollout


def group_of(rewards: list[float], keep: list[int] | None = None) -> Group:
    prompt = Prompt(id="p", tokens=np.array([1]), text="", answer="", task="test")
    rollouts = tuple(
        Rollout(index=i, tokens=np.array([2]), logprobs=np.zeros(1), text="", finish="stop", version=0)
        for i in range(len(rewards))
    )
    outcomes = tuple(Outcome(reward=r, correct=r >= 1, kind="correct") for r in rewards)
    mask = np.isin(np.arange(len(rewards)), range(len(rewards)) if keep is None else keep)
    return Group(prompt=prompt, rollouts=rollouts, outcomes=outcomes, keep=mask)


# rewards, kept places, GRPO advantages on them with ddof 1 and eps 1e-4 (PODS report, four digits cut)
GOLDEN = [
    ([0.2, 0.4, 0.6, 0.8], [0, 3], [-0.7069, 0.7069]),
    ([0, 0, 0, 0, 0, 0, 1, 1], [0, 1, 6, 7], [-0.8659, -0.8659, 0.8659, 0.8659]),
    ([0, 1, 1, 1, 1, 1, 1, 1], [0, 1, 2, 3], [-1.4997, 0.4999, 0.4999, 0.4999]),
    ([0, 0.9, 0.95, 1, 1], [0, 3, 4], [-1.1545, 0.5773, 0.5773]),
]


@pytest.mark.parametrize(("rewards", "keep", "expected"), GOLDEN)
def test_grpo_normalises_after_selection(rewards, keep, expected):
    (advantages,) = grpo([group_of(rewards, keep)])
    assert advantages[keep] == pytest.approx(expected, abs=1e-4)
    assert np.all(np.delete(advantages, keep) == 0)


def test_grpo_with_the_statistics_of_the_group():
    """8 rollouts, 2 correct, 4 kept: mean 1/4, std sqrt(3/14) over all eight."""
    (advantages,) = grpo([group_of([0, 0, 0, 0, 0, 0, 1, 1], [0, 1, 6, 7])], statistics="group")
    assert advantages[[0, 1, 6, 7]] == pytest.approx([-0.54, -0.54, 1.62, 1.62], abs=5e-3)
    assert np.all(advantages[2:6] == 0)


def test_grpo_uses_the_sample_standard_deviation():
    """Two correct of four: std is sqrt(1/3) with ddof 1, 1/2 with ddof 0."""
    (advantages,) = grpo([group_of([0, 0, 1, 1])], eps=0.0)
    assert advantages == pytest.approx([-0.8660254, -0.8660254, 0.8660254, 0.8660254], abs=1e-7)


def test_dr_grpo_only_centres():
    (advantages,) = dr_grpo([group_of([0, 0, 0, 1])])
    assert advantages.tolist() == [-0.25, -0.25, -0.25, 0.75]


def test_raw_is_the_reward():
    (advantages,) = raw([group_of([0.5, -2.0, 1.0], keep=[0, 1])])
    assert advantages.tolist() == [0.5, -2.0, 0.0]


@pytest.mark.parametrize("advantage", [grpo, dr_grpo, rloo, maxrl])
@pytest.mark.parametrize("rewards", [[1.0], [0.1, 0.1, 0.1], [0.3, 0.1 + 0.2], [1.0, 1.0 + 1e-10]])
def test_flat_groups_and_single_rollouts_get_exactly_zero(advantage, rewards):
    (advantages,) = advantage([group_of(rewards)])
    assert advantages.tolist() == [0.0] * len(rewards)


def test_groups_do_not_mix():
    first, second = grpo([group_of([0, 1]), group_of([0, 10])], eps=0.0)
    assert first == pytest.approx(second)


def test_flat_is_relative():
    assert is_flat(np.array([1e6, 1e6 + 1e-4]))
    assert not is_flat(np.array([1e-3, 2e-3]))


def test_rloo_compares_with_the_others():
    (advantages,) = rloo([group_of([0, 0, 0, 1])])
    assert advantages == pytest.approx([-1 / 3, -1 / 3, -1 / 3, 1.0])


def test_batch_normalises_over_every_group():
    """Kept rewards 0, 1, 1, 1: mean 3/4, std 1/2."""
    first, second = batch([group_of([0, 1]), group_of([1, 1, 5], keep=[0, 1])], eps=0.0)
    assert first == pytest.approx([-1.5, 0.5])
    assert second == pytest.approx([0.5, 0.5, 0.0])
    assert [a.tolist() for a in batch([group_of([1, 1]), group_of([1])])] == [[0, 0], [0]]


def test_raft_takes_the_correct_ones():
    (advantages,) = raft([group_of([0, 1, 1], keep=[0, 1])])
    assert advantages.tolist() == [0, 1, 0]
