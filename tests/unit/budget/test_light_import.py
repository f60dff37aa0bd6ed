"""The library of rollout budgets needs numpy alone, and refuses arguments that do not fit."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from winnow.budget import selection

RULES = (selection.max_variance, selection.max_reward, selection.random, selection.percentile)


def test_the_library_imports_no_torch_and_no_configuration():
    heavy = ("torch", "pydantic", "transformers", "scipy", "winnow.config", "winnow.registry")
    code = f"import sys, winnow.budget; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_register_is_still_a_name_of_the_package():
    code = "import sys, winnow; early = 'pydantic' in sys.modules; from winnow import Group, register; print(early)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_rules_by_hand():
    """Rewards 0, 5, 9, 9.5, 10: the largest variance of four has three of the high end."""
    rewards, ties = np.array([9.0, 0.0, 10.0, 5.0, 9.5]), np.array([0.4, 0.3, 0.2, 0.1, 0.0])
    assert selection.max_variance(rewards, ties, keep_per_prompt=4).tolist() == [True, True, True, False, True]
    assert selection.max_reward(rewards, ties, keep_per_prompt=2).tolist() == [False, False, True, False, True]
    assert selection.random(rewards, ties, keep_per_prompt=2).tolist() == [False, False, False, True, True]
    assert selection.percentile(rewards, ties, keep_per_prompt=1).tolist() == [True, False, False, False, False]
    assert selection.threshold(rewards, ties, low=9.0, high=9.5).tolist() == [True, False, False, False, True]


def test_ties_decide_among_equal_rewards():
    rewards = np.array([1.0, 1.0, 1.0])
    assert selection.max_reward(rewards, np.array([0.9, 0.1, 0.5]), keep_per_prompt=1).tolist() == [True, False, False]
    assert selection.max_reward(rewards, np.array([0.1, 0.5, 0.9]), keep_per_prompt=1).tolist() == [False, False, True]


@pytest.mark.parametrize("rule", RULES)
def test_what_is_no_group_is_refused(rule):
    two, three = np.array([0.0, 1.0]), np.array([0.1, 0.2, 0.3])
    for rewards, ties in ((two, three), (two.reshape(1, 2), two.reshape(1, 2)), (np.array([np.nan, 1.0]), two)):
        with pytest.raises(ValueError, match=r"."):
            rule(rewards, ties, keep_per_prompt=1)
    for keep in (-1, 0.0, 1.5):
        with pytest.raises(ValueError, match=r"."):
            rule(two, two, keep_per_prompt=keep)
    assert rule(np.zeros(0), np.zeros(0), keep_per_prompt=4).tolist() == []
