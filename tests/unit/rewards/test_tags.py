from __future__ import annotations

import numpy as np
import pytest

from winnow.records import Prompt, Rollout
from winnow.rewards.format import format_tags, tag_count


def prompt(text: str) -> Prompt:
    return Prompt(id="p", tokens=np.zeros(1, np.int64), text=text, answer="42", task="t")


def rollout(text: str) -> Rollout:
    empty = np.zeros(0)
    return Rollout(index=0, tokens=empty.astype(np.int64), logprobs=empty, text=text, finish="stop", version=0)


CLOSED, OPEN = prompt("Q"), prompt("Q\nAssistant: <think>\n")
BLOCK = "<think>r</think> <answer>1</answer>"


@pytest.mark.parametrize(
    ("text", "score"),
    [
        (BLOCK, 1.0),
        ("<think>r</think>\n\n<answer>1</answer>", 1.0),
        (BLOCK + "x" * 30, 0.7),
        ("x" * 10 + BLOCK + "x" * 30, 0.6),
        (BLOCK + "x" * 500, 0.0),
        ("<think>r</think> and <answer>1</answer>", 0.0),
        ("<think>r</think> <answer>1", 0.0),
        ("<answer>1</answer> <think>r</think>", 0.0),
        ("", 0.0),
    ],
)
def test_format_loses_a_hundredth_per_character_outside_the_block(text: str, score: float) -> None:
    assert format_tags(CLOSED, rollout(text)).reward == pytest.approx(score, abs=1e-12)


def test_a_prompt_that_opened_the_reasoning_counts_as_the_first_tag() -> None:
    rest = rollout(BLOCK.removeprefix("<think>"))
    assert format_tags(OPEN, rest).reward == 1.0
    assert format_tags(CLOSED, rest).reward == 0.0
    assert (tag_count(OPEN, rest).reward, tag_count(CLOSED, rest).reward) == (1.0, 0.75)
    assert tag_count(OPEN, rollout(BLOCK)).reward == 0.75  # opened twice


@pytest.mark.parametrize(
    ("text", "score"), [(BLOCK, 1.0), (BLOCK + "x", 0.0), ("x" + BLOCK, 0.0), (BLOCK + BLOCK, 0.0), (BLOCK + "\n", 1.0)]
)
def test_strict_format_is_all_or_nothing(text: str, score: float) -> None:
    assert format_tags(CLOSED, rollout(text), strict=True).reward == score


@pytest.mark.parametrize(
    ("text", "score"),
    [(BLOCK, 1.0), ("<think><think></think>", 0.25), ("</answer><answer>", 0.5), ("", 0.0), (BLOCK * 2, 0.0)],
)
def test_tag_count_pays_for_each_tag_that_occurs_once(text: str, score: float) -> None:
    assert tag_count(CLOSED, rollout(text)).reward == score


@pytest.mark.timeout(120)  # what is not linear takes hours
def test_tags_without_end_are_read_in_linear_time() -> None:
    format_tags(CLOSED, rollout("<think>" * 1_000_000 + "</think> <answer>" * 1_000_000))
