"""The demonstrations of the bundled game's warm start: what they contain, and what is learned from them."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))
from make_guesser import Habits, play, rows

from winnow.environments.replay import make_environment
from winnow.models.load import load_tokenizer
from winnow.records import Prompt, Reply, Rollout

CAREFUL, FORGETFUL = Habits(wander=0.0, forget=0.0), Habits(wander=0.5, forget=0.3)


@pytest.mark.parametrize("habits", [CAREFUL, FORGETFUL])
def test_the_environment_answers_as_the_demonstration_contains(habits):
    rng = np.random.default_rng(1)
    environment = make_environment("guess_number", {}, max_turns=8)
    for secret in (1, 12, 31):
        turns, answers, found = play(secret, habits, rng)
        prompt = Prompt(id="p", tokens=np.array([1]), text="?", answer=str(secret), task="t")
        texts = list(itertools.chain(*zip(turns, [*answers, ""], strict=True)))[:-1]
        for end in range(1, len(texts) + 1, 2):
            rollout = Rollout(
                index=0, tokens=np.array([1]), logprobs=np.zeros(1), text="", finish="stop", version=0,
                turns=tuple(texts[:end]),
            )  # fmt: skip
            verdict = environment(prompt, rollout)
            if end < len(texts):
                assert verdict == Reply(text=texts[end])
            else:
                assert verdict.correct == found


def test_a_careful_player_guesses_between_the_numbers_that_it_writes():
    turns, answers, _ = play(12, CAREFUL, np.random.default_rng(3))
    low, high = 0, 32
    for turn, answer in itertools.zip_longest(turns, answers):
        guess = int(turn.partition("<answer>")[2].partition("<")[0])
        assert turn.startswith(f"{low} {high}</think>")
        assert low < guess < high
        if answer is not None:
            low, high = (guess, high) if answer == "higher" else (low, guess)


def test_only_the_demonstrators_tokens_are_learned():
    tokenizer = load_tokenizer("bundled")
    tokens, labels = next(rows(tokenizer, CAREFUL, np.random.default_rng(0)))
    own = tokenizer.decode(tokens[labels != -100])
    assert (labels[labels != -100] == tokens[labels != -100]).all()
    assert own.startswith("0 32</think> <answer>")
    assert own.count("<|endoftext|>") == own.count("</answer>") >= 1
    assert "higher" not in own
    assert "lower" not in own
