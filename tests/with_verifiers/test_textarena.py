"""Hangman of TextArena, the task set in the library's package: three steps of training on games of several turns."""

from __future__ import annotations

import numpy as np
import pytest
from warm_start import warm_start

import winnow
from winnow.environments.replay import make_environment
from winnow.records import Prompt, Reply, Rollout
from winnow.state.logbook import read_metrics, read_rows
from winnow.tasks.verifiers import verifiers

pytest.importorskip("textarena", reason="needs verifiers[ta]")
nltk = pytest.importorskip("nltk", reason="needs verifiers[ta]")
try:
    nltk.data.find("corpora/words")
except LookupError:
    pytest.skip("needs the word list of NLTK", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore")  # of the library and of what it imports

TASK = {"taskset": "textarena", "options": {"game": "Hangman-v0"}, "size": 16}
LETTERS = "etaoinsrlducmfwypvbgkqjxzh"


def answer(problem, turns):
    """The environment's answer to the turns so far."""
    prompt = Prompt(
        id=problem.id, tokens=np.zeros(1, np.int64), text="", answer=None, task=problem.task, meta=problem.meta
    )
    none = np.zeros(0)
    rollout = Rollout(
        index=0, tokens=none.astype(int), logprobs=none, text="", finish="stop", version=0, turns=tuple(turns)
    )
    return make_environment("verifiers", {}, max_turns=64)(prompt, rollout)


def played(problem, letters):
    """The turns of a game with these guesses, and its outcome."""
    turns = list[str]()
    for letter in letters:
        turns.append(f"[{letter}]")
        verdict = answer(problem, turns)
        if not isinstance(verdict, Reply):
            return turns, verdict
        turns.append(verdict.text)
    raise AssertionError("the game has not ended")


def test_a_game_is_replayed_and_paid_by_the_share_of_its_word():
    problem = verifiers("train", **TASK)[0]
    turns, lost = played(problem, LETTERS)
    assert (turns, lost) == played(problem, LETTERS)
    assert lost.parts == {"game_reward": lost.reward}
    board = turns[-2].splitlines()[-1].split()
    right = [letter for letter in LETTERS if letter.upper() in board]
    _, again = played(problem, [*right, *(letter for letter in LETTERS if letter not in right)])
    assert again.reward >= lost.reward
    word = sum(letter != "_" for letter in board) / len(board)
    assert lost.correct or lost.reward == pytest.approx(word)


@pytest.mark.timeout(1200)
def test_three_steps_of_training_on_games(tmp_path):
    problems = verifiers("train", **TASK)
    policy = warm_start(tmp_path / "policy", problems, answer)
    winnow.train(
        model={"path": str(policy)},
        task={"use": "verifiers", **TASK},
        environment={"use": "verifiers", "max_turns": 32, "max_turn_tokens": 8},
        rollout={"prompts_per_step": 2, "rollouts_per_prompt": 8, "max_new_tokens": 600},
        prompt={"max_prompt_tokens": 800},
        evaluate={"problems": 2, "rollouts_per_prompt": 1},
        verify={"workers": 1, "timeout_seconds": 120},
        steps=3,
        seed=1,
        output=str(tmp_path / "run"),
        progress=False,
    )
    rows = [row for row in read_metrics(tmp_path / "run") if "reward/mean" in row]
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert all(row["outcome/failed"] == 0 for row in rows)
    assert all(row["environment/turns_mean"] > 1 for row in rows)
    assert all(row["budget/environment_tokens"] > 0 for row in rows)
    assert any(row["reward/std"] > 0 for row in rows)
    assert any(row["policy/grad_norm"] > 0 for row in rows)
    logged = list(read_rows(tmp_path / "run" / "rollouts"))
    assert len(logged) == 48
    assert any(row["turns"][1].startswith("C00") for row in logged)
