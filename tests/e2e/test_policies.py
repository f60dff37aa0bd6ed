"""The policies of configs/policies are small enough to commit, and start where docs/results.md needs them to start."""

from pathlib import Path

import pytest

import winnow
from winnow.config_file import load

CONFIGS = Path(__file__).parents[2] / "configs"
POLICIES = sorted((CONFIGS / "policies").iterdir())
MOST_BYTES = 6_000_000


def test_there_is_one_of_each_family_and_one_for_the_mixture():
    assert {path.name for path in POLICIES} == {"harder_qwen2", "harder_llama", "mixture_qwen2"}


@pytest.mark.parametrize(
    "policy", [path for path in POLICIES if path.name.startswith("harder")], ids=lambda path: path.name
)
def test_a_policy_starts_low_in_the_right_format(policy):
    task = load(CONFIGS / "claims" / "harder.toml").task
    found = winnow.evaluate(
        str(policy),
        task={"use": "arithmetic", **task.options},
        problems=64,
        rollouts_per_prompt=4,
        rollout={"max_new_tokens": 64},
        reward="r1_zero",
        greedy=False,
    ).metrics
    assert 0.10 <= found["eval/accuracy_sampled"] <= 0.30
    assert found["eval/formatted"] >= 0.95


@pytest.mark.parametrize("policy", POLICIES, ids=lambda path: path.name)
def test_a_policy_is_small_enough_to_commit(policy):
    assert sum(path.stat().st_size for path in policy.iterdir()) < MOST_BYTES
