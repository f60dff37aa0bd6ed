"""Metrics of rewards and groups, against numbers by hand."""

from __future__ import annotations

import numpy as np
import pytest

from winnow.algos.group_metrics import group_metrics, reward_metrics

REWARDS = [np.array([1.0, 0.0, 2.0, 1.0]), np.array([0.5, 0.5]), np.array([1.0]), np.zeros(0)]
CORRECT = [np.array([True, False, True, True]), np.array([False, False]), np.array([True]), np.zeros(0, dtype=bool)]
NOTHING = [np.zeros(0), np.zeros(0)]


def test_rewards_are_averaged_over_rollouts_and_over_prompts_with_a_verdict():
    found = reward_metrics(REWARDS, CORRECT)
    assert (found["reward/min"], found["reward/max"]) == (0.0, 2.0)
    assert found["reward/mean"] == pytest.approx(6 / 7)
    assert found["reward/std"] == pytest.approx((7.5 / 7 - (6 / 7) ** 2) ** 0.5)
    assert found["reward/mean_of_prompts_sem"] == pytest.approx(1 / 6)  # the means 1, 1/2, 1: s = sqrt(1/12), / sqrt(3)
    assert found["reward/mean_of_prompts"] == pytest.approx((1.0 + 0.5 + 1.0) / 3)
    assert found["reward/accuracy"] == pytest.approx(4 / 7)
    assert found["reward/accuracy_of_prompts"] == pytest.approx((0.75 + 0.0 + 1.0) / 3)


def test_a_group_of_one_reward_is_flat_and_an_empty_one_is_not():
    assert group_metrics(REWARDS, CORRECT) == {
        "group/effective": pytest.approx(7**2 / (4**2 + 2**2 + 1)),
        "group/flat": 2.0,
        "group/all_correct": 1.0,
        "group/all_wrong": 1.0,
    }


def test_without_verdicts_there_are_no_accuracies():
    assert "reward/accuracy" not in reward_metrics(REWARDS, None)
    assert group_metrics(REWARDS, None).keys() == {"group/effective", "group/flat"}


def test_without_a_reward_there_is_no_mean():
    assert reward_metrics(NOTHING, None) == {}
    assert group_metrics(NOTHING, None) == {"group/effective": 0.0, "group/flat": 0.0}
