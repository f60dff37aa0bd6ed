"""The benchmark of the game: its reference lines by hand, and its control, whose pay does not depend on the number."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
import guess_number

from winnow.environments.replay import make_environment
from winnow.records import Outcome, Prompt, Rollout

CONTROL = Path(__file__).parents[3] / "configs" / "sweeps" / "by_chance.py"


def test_reference_lines_by_hand():
    assert guess_number.any_number(2, 2) == 0.75
    assert guess_number.consistent(3, 1) == pytest.approx(1 / 3)
    assert guess_number.consistent(3, 2) == pytest.approx(7 / 9)  # 2/3 after the guesses 1 and 3, and 1 after 2
    assert guess_number.bisection(3, 2) == 1.0
    assert guess_number.bisection(31, 4) == pytest.approx(15 / 31)
    assert guess_number.bisection(31, 5) == 1.0
    assert guess_number.consistent(31, 5) == pytest.approx(0.545, abs=0.01)  # 8,000 games of scripts/make_player.py


def test_the_interval_is_students():
    runs = [{"before": 0.2, "after": after, "minutes": 1.0} for after in (0.4, 0.5, 0.6)]
    found = guess_number.variant(runs)
    assert found["gain"] == pytest.approx(0.3)
    assert found["interval"] == pytest.approx([0.3 - 4.303 * 0.1 / 3**0.5, 0.3 + 4.303 * 0.1 / 3**0.5])


def outcome(secret, guesses, game):
    environment = make_environment(f"{CONTROL}:by_chance", {}, max_turns=8)
    prompt = Prompt(id=f"p{game}", tokens=np.array([1]), text="?", answer=str(secret), task="t")
    turns = []
    for guess in guesses:
        turns.append(f"<answer>{guess}</answer>")
        verdict = environment(prompt, Rollout(
            index=0, tokens=np.array([1]), logprobs=np.zeros(1), text="", finish="stop", version=0, turns=tuple(turns),
        ))  # fmt: skip
        if isinstance(verdict, Outcome):
            return verdict
        turns.append(verdict.text)
    raise AssertionError("the game has not ended")


def test_the_control_pays_losers_and_winners_alike():
    paid = {}
    for found, guesses in ((True, (16, 8, 12)), (False, (16, 8, 1, 2, 3))):
        outcomes = [outcome(12, guesses, game) for game in range(400)]
        assert {each.correct for each in outcomes} == {found}
        assert {each.reward for each in outcomes} == {0.0, 1.0}
        paid[found] = np.mean([each.reward for each in outcomes])
    assert paid[True] == pytest.approx(0.25, abs=0.07)  # 3 standard deviations
    assert paid[False] == pytest.approx(0.25, abs=0.07)
