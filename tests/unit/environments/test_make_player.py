"""The demonstrations of the warm starts in environments: what they contain, and what is learned from them."""

from __future__ import annotations

import itertools
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))
import make_player
from make_player import LESSONS, calculate, call_twice, guess, rows

from chat_templates import render_here
from winnow.environments.replay import make_environment
from winnow.environments.tool_calls import Call, read_calls
from winnow.models.load import load_tokenizer
from winnow.records import Prompt, Reply, Rollout
from winnow.tasks.arithmetic import arithmetic

HABITS = ("FORGET", "WANDER", "MIDDLE", "ALONE", "MISCOPY", "MISREAD", "CONFUSE")
SWEEPS = Path(__file__).parents[3] / "configs" / "sweeps"
ENVIRONMENTS = {"two_tools": f"{SWEEPS / 'two_tools.py'}:TwoTools"}  # of those that are no member's name


@pytest.fixture
def habits(monkeypatch):
    """Probabilities of mistakes; habits(FORGET=0.3) sets the others to 0."""

    def set_all(**chosen):
        for name in HABITS:
            monkeypatch.setattr(make_player, name, chosen.get(name, 0.0))

    return set_all


def prompt_of(answer, expression="?"):
    return Prompt(id="p", tokens=np.array([1]), text="?", answer=answer, task="t", meta={"expression": expression})


def problems(game):
    if game == "guess_number":
        return [prompt_of(str(secret)) for secret in (1, 12, 31)]
    levels = make_player.TWO_CALLS if game == "two_tools" else make_player.LEVELS
    return [prompt_of(one.answer, one.meta["expression"]) for one in arithmetic("train", levels=levels, size=20)]


@pytest.mark.parametrize("game", sorted(LESSONS))
@pytest.mark.parametrize("mistakes", [{}, dict.fromkeys(HABITS, 0.4)], ids=["careful", "careless"])
def test_the_environment_answers_as_the_demonstration_contains(game, mistakes, habits):
    habits(**mistakes)
    rng = np.random.default_rng(1)
    environment = make_environment(ENVIRONMENTS.get(game, game), {}, max_turns=8)
    for prompt in problems(game):
        turns, answers = LESSONS[game].play(prompt, rng)
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
                assert verdict.correct == (turns[-1].endswith(f"<answer>{prompt.answer}</answer>"))


def test_a_careful_player_guesses_between_the_numbers_that_it_writes(habits):
    habits()
    turns, answers = guess(prompt_of("12"), np.random.default_rng(3))
    low, high = 0, 32
    for turn, answer in itertools.zip_longest(turns, answers):
        number = int(turn.partition("<answer>")[2].partition("<")[0])
        assert turn.startswith(f"{low} {high}</think>")
        assert low < number < high
        if answer is not None:
            low, high = (number, high) if answer == "higher" else (low, number)


def test_a_player_may_guess_the_middle_of_the_range_or_write_no_range(habits):
    habits(MIDDLE=1.0)
    turns, _ = guess(prompt_of("12"), np.random.default_rng(0))
    assert turns == [
        "0 32</think> <answer>16</answer>",
        "0 16</think> <answer>8</answer>",
        "8 16</think> <answer>12</answer>",
    ]
    habits(WANDER=1.0, MIDDLE=1.0)
    turns, _ = guess(prompt_of("12"), np.random.default_rng(0))
    numbers = [re.fullmatch(r"</think> <answer>(\d+)</answer>", turn)[1] for turn in turns]
    assert numbers != ["16", "8", "12"]


def test_a_careful_player_calls_the_calculator_with_the_problem_s_expression(habits):
    habits()
    turns, answers = calculate(prompt_of("230", "(12 + 34) * 5"), np.random.default_rng(0))
    assert read_calls(turns[0]) == [Call("calculator", {"text": "(12 + 34) * 5"}, own=True)]
    assert answers == ["230"]
    assert turns[1] == "</think> <answer>230</answer>"


@pytest.mark.parametrize(
    ("expression", "calls", "read"),
    [
        ("(12 + 34) * 5", ["add 12 34", "multiply 46 5"], ["46", "230"]),
        ("12 + 34 + 56", ["add 12 34", "add 46 56"], ["46", "102"]),
    ],
)
def test_a_careful_player_of_two_tools_calls_one_after_the_other(expression, calls, read, habits):
    habits()
    turns, answers = call_twice(prompt_of("?", expression), np.random.default_rng(0))
    assert turns == [*(f"<call>{call}</call>" for call in calls), f"</think> <answer>{read[1]}</answer>"]
    assert answers == read


def test_each_mistake_of_the_player_of_two_tools_is_made(habits):
    prompt, rng = prompt_of("230", "(12 + 34) * 5"), np.random.default_rng(0)
    habits(CONFUSE=2.0)
    assert call_twice(prompt, rng)[0][0] == "<call>multiply 12 34</call>"
    habits(MISCOPY=2.0)
    assert call_twice(prompt, rng)[0][0] != "<call>add 12 34</call>"
    habits(MISREAD=1.0)
    assert "230" not in call_twice(prompt, rng)[0][2]
    habits(ALONE=1.0)
    assert len(call_twice(prompt, rng)[0]) == 1
    habits(FORGET=1.0)
    turns, answers = call_twice(prompt, rng)
    assert (len(turns), answers[0][:5]) == (2, "error")


def test_each_mistake_of_the_calculator_s_player_is_made(habits):
    prompt, rng = prompt_of("230", "(12 + 34) * 5"), np.random.default_rng(0)
    habits(ALONE=1.0)
    turns, answers = calculate(prompt, rng)
    assert len(turns) == 1
    assert not answers
    habits(MISCOPY=1.0)
    _, answers = calculate(prompt, rng)
    assert answers != ["230"]
    habits(MISREAD=1.0)
    turns, answers = calculate(prompt, rng)
    assert answers == ["230"]
    assert "230" not in turns[1]
    habits(FORGET=1.0)
    _, answers = calculate(prompt, rng)
    assert answers[0].startswith("error")


@pytest.mark.parametrize("game", sorted(LESSONS))
def test_only_the_demonstrators_tokens_are_learned(game, habits, monkeypatch):
    render_here(monkeypatch)
    habits()
    tokenizer, lessons = load_tokenizer("bundled"), LESSONS[game]
    tokens, labels = next(
        rows(tokenizer, replace(lessons, problems=lambda: lessons.problems()[:4]), np.random.default_rng(0))
    )
    tokens, labels = np.array(tokens), np.array(labels)
    own = tokenizer.decode(tokens[labels != -100])
    assert (labels[labels != -100] == tokens[labels != -100]).all()
    assert own.count("<|endoftext|>") == own.count("</answer>") + own.count("</call>") >= 1
    assert "higher" not in own
    assert "lower" not in own
