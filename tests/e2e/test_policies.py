"""The policies of configs/policies and of the package's environments: their size, and how they start."""

from pathlib import Path

import pytest

import winnow
from winnow.config import dump
from winnow.config_file import load
from winnow.recipes import recipe_paths

CONFIGS = Path(__file__).parents[2] / "configs"
POLICIES = sorted((CONFIGS / "policies").iterdir())
MOST_BYTES = 6_000_000


def test_there_is_one_of_each_family_and_one_for_each_other_task():
    others = {"mixture_qwen2", "words_qwen2", "two_tools"}
    assert {path.name for path in POLICIES} == {"harder_qwen2", "harder_llama"} | others


# Slow: committed weights that only a new policy changes, by the same scripts as those of the other parameters.
SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("policy", "claims"),
    [("harder_qwen2", "harder"), pytest.param("harder_llama", "harder", marks=SLOW), ("words_qwen2", "words")],
)
def test_a_policy_starts_low_in_the_right_format(policy, claims):
    task = load(file := CONFIGS / "claims" / f"{claims}.toml").task
    use = str((file.parent / task.use).resolve()) if ".py:" in task.use else task.use
    found = winnow.evaluate(
        str(CONFIGS / "policies" / policy),
        task={"use": use, **task.options},
        problems=64,
        rollouts_per_prompt=4,
        prompt={"max_prompt_tokens": 256},
        rollout={"max_new_tokens": 64},
        reward="r1_zero",
        verify={"workers": 0},
        greedy=False,
    ).metrics
    assert 0.10 <= found["eval/accuracy_sampled"] <= 0.30
    assert found["eval/formatted"] >= 0.95


# unit/environments/test_guess_number.py plays the slow one's games by hand
@pytest.mark.parametrize("name", ["calculator", pytest.param("guess_number", marks=SLOW)])
def test_the_policy_of_an_environment_starts_low_with_few_turns_that_cannot_be_read(name):
    config = dump(load(recipe_paths()[name]))
    if name == "calculator":  # to draw 2,048 of them would take longer than to play 64
        config["task"]["size"] = 64
    found = winnow.evaluate(
        config["model"]["path"],
        **{key: config[key] for key in ("task", "environment", "rollout")},
        problems=64,
        rollouts_per_prompt=4,
        verify={"workers": 0},
        greedy=False,
    ).metrics
    assert 0.10 <= found["eval/accuracy_sampled"] <= 0.40
    assert found["eval/part/readable"] >= -0.1 * 0.1  # -0.1 for each rollout with such a turn, of up to five


@pytest.mark.parametrize("policy", POLICIES, ids=lambda path: path.name)
def test_a_policy_is_small_enough_to_commit(policy):
    assert sum(path.stat().st_size for path in policy.iterdir()) < MOST_BYTES
