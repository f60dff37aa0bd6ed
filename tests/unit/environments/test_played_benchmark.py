"""The benchmark of environments: reference lines by hand, and controls, whose pay does not depend on the answer."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
import played

from winnow.environments.replay import make_environment
from winnow.records import Outcome, Prompt, Rollout

CONTROL = Path(__file__).parents[3] / "configs" / "sweeps" / "by_chance.py"


def test_reference_lines_by_hand():
    assert played.any_number(2, 2) == 0.75
    assert played.consistent(3, 1) == pytest.approx(1 / 3)
    assert played.consistent(3, 2) == pytest.approx(7 / 9)  # 2/3 after the guesses 1 and 3, and 1 after 2
    assert played.bisection(3, 2) == 1.0
    assert played.bisection(31, 4) == pytest.approx(15 / 31)
    assert played.bisection(31, 5) == 1.0
    assert played.consistent(31, 5) == pytest.approx(0.545, abs=0.01)  # 8,000 games of scripts/make_player.py


def test_the_interval_is_students():
    runs = [{"before": 0.2, "after": after, "minutes": 1.0} for after in (0.4, 0.5, 0.6)]
    found = played.variant(runs)
    assert found["gain"] == pytest.approx(0.3)
    assert found["interval"] == pytest.approx([0.3 - 4.302653 * 0.1 / 3**0.5, 0.3 + 4.302653 * 0.1 / 3**0.5])


@functools.cache
def control(game):
    return make_environment(f"{CONTROL}:by_chance", {"game": game}, max_turns=8)


def outcome(game, secret, replies, number):
    environment = control(game)
    prompt = Prompt(id=f"p{number}", tokens=np.array([1]), text="?", answer=str(secret), task="t")
    turns = []
    for reply in replies:
        turns.append(reply)
        verdict = environment(prompt, Rollout(
            index=0, tokens=np.array([1]), logprobs=np.zeros(1), text="", finish="stop", version=0, turns=tuple(turns),
        ), number)  # fmt: skip
        if isinstance(verdict, Outcome):
            return verdict
        turns.append(verdict.text)
    raise AssertionError("the game has not ended")


GUESSES = [f"<answer>{number}</answer>" for number in (16, 8, 12, 1, 2)]
CALLS = ["<call>calculator 3 + 9</call>", "<answer>12</answer>", "<answer>13</answer>"]
PLAYED = [
    ("guess_number", {True: GUESSES[:3], False: [*GUESSES[:2], *GUESSES[3:], GUESSES[0]]}),
    ("calculator", {True: CALLS[:2], False: [CALLS[0], CALLS[2]]}),
]


@pytest.mark.parametrize(("game", "played"), PLAYED)
def test_a_control_pays_losers_and_winners_alike(game, played):
    paid = {}
    for right, replies in played.items():
        outcomes = [outcome(game, 12, replies, number) for number in range(400)]
        assert {each.correct for each in outcomes} == {right}
        assert {each.reward for each in outcomes} == {0.0, 1.0}
        paid[right] = np.mean([each.reward for each in outcomes])
    assert paid[True] == pytest.approx(0.25, abs=0.07)  # 3 standard deviations
    assert paid[False] == pytest.approx(0.25, abs=0.07)
