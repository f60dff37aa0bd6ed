"""Guess a number, played by hand."""

from __future__ import annotations

import numpy as np
import pytest

from winnow.environments.guess_number import guess_number
from winnow.records import Prompt
from winnow.tasks.guess_number import guess_number as games


def play(answer, replies, **options):
    """The texts of the environment, and its result (None where it goes on)."""
    prompt = Prompt(id="p", tokens=np.array([1]), text="?", answer=str(answer), task="t")
    game, texts = guess_number(prompt, replies[0], np.random.default_rng(0), **options), []
    try:
        texts.append(next(game))
        for reply in replies[1:]:
            texts.append(game.send(reply))
    except StopIteration as end:
        return texts, end.value
    return texts, None


def test_a_game_by_hand():
    said = [f"so</think> <answer>{guess}</answer>" for guess in (16, 8, 12)]
    assert play(12, said) == (["lower", "higher"], {"found": 1.0, "readable": 0.0})


def test_the_turns_end():
    wrong = ["<answer>1</answer>"] * 5
    assert play(12, wrong) == (["higher"] * 4, {"found": 0.0, "readable": 0.0})
    assert play(12, wrong[:4]) == (["higher"] * 4, None)
    assert play(12, wrong[:1], turns=1) == ([], {"found": 0.0, "readable": 0.0})


def test_the_last_guess_of_a_turn_counts_and_junk_costs_a_turn():
    assert play(12, ["<answer>1</answer> <answer> 12 </answer>"])[1] == {"found": 1.0, "readable": 0.0}
    assert play(12, ["12", "<answer>12</answer>"]) == (["no number"], {"found": 1.0, "readable": -0.1})
    assert play(12, ["<answer>-12</answer>", "<answer>x</answer>"])[0] == ["no number"] * 2


@pytest.mark.parametrize("secret", range(1, 32))
def test_bisection_finds_every_number_within_five_turns(secret):
    low, high, replies = 1, 31, []
    for _ in range(5):
        replies.append(f"<answer>{(low + high) // 2}</answer>")
        texts, result = play(secret, replies)
        if result is not None:
            break
        low, high = (low, (low + high) // 2 - 1) if texts[-1] == "lower" else ((low + high) // 2 + 1, high)
    assert result == {"found": 1.0, "readable": 0.0}


def test_the_games_of_the_task():
    train = games("train", size=200)
    assert {problem.question for problem in train} == {"Guess my number from 1 to 31."}
    assert {int(problem.answer) for problem in train} == set(range(1, 32))
    assert games("train", size=20) == train[:20]
    assert {int(problem.answer) for problem in games("test", most=3, size=50)} == {1, 2, 3}
