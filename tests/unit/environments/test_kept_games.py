"""A kept generator gives the answers of a replay, is closed once, and has its own global random numbers."""

from __future__ import annotations

import asyncio
import random

import numpy as np
import pytest

from winnow.environments.replay import GlobalRandom, OutOfTokens, make_environment
from winnow.records import Outcome, Prompt, Reply, Rollout

PROMPTS = {name: Prompt(id=name, tokens=np.array([1]), text="?", answer="1", task="t") for name in "pq"}
ended = list[str]()


def rollout(*turns, finish="stop"):
    none = np.zeros(0)
    return Rollout(index=0, tokens=none.astype(int), logprobs=none, text="", finish=finish, version=0, turns=turns)


def lottery(prompt, reply, rng, *, turns: int = 4):
    """Answers with numbers of every kind."""
    try:
        for _ in range(turns - 1):
            drawn = random.random(), np.random.random(), rng.random()
            try:
                reply = yield f"{reply} {drawn}"
            except OutOfTokens:
                return {"left": -1.0}
        return {"last": float(len(reply))}
    finally:
        ended.append(prompt.id)


@pytest.fixture(autouse=True)
def none_ended():
    ended.clear()


def test_interleaved_games_have_the_answers_of_replays_and_leave_global_numbers_as_they_were():
    kept, replayed = (make_environment(lottery, {}, max_turns=8) for _ in range(2))
    turns = {name: [name] for name in PROMPTS}
    random.seed(5)
    np.random.seed(5)
    before = random.getstate(), np.random.get_state()[1].tolist()
    for turn in range(4):
        for place, (name, prompt) in enumerate(PROMPTS.items()):
            answer = kept(prompt, rollout(*turns[name]), place)
            assert answer == replayed(prompt, rollout(*turns[name]))
            if isinstance(answer, Reply):
                turns[name] += [answer.text, f"{name}{turn}"]
            else:
                assert answer.parts == {"last": 2.0}
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    assert turns["p"][1][1:] != turns["q"][1][1:], "each prompt has its own numbers"


def test_a_game_is_closed_at_its_end_when_it_is_given_up_and_when_another_takes_its_number():
    environment = make_environment(lottery, {"turns": 2}, max_turns=8)
    first = environment(PROMPTS["p"], rollout("a"), 1)
    assert not ended
    environment(PROMPTS["p"], rollout("a", first.text, "b"), 1)
    assert ended == ["p"]
    environment(PROMPTS["q"], rollout("a"), 2)
    environment.close(2)
    environment.close(2)
    assert ended == ["p", "q"]
    environment(PROMPTS["p"], rollout("a"), 3)
    environment(PROMPTS["q"], rollout("c"), 3)
    assert ended == ["p", "q", "p"]


def test_the_end_without_room_follows_the_turn_that_was_answered():
    environment = make_environment(lottery, {}, max_turns=8)
    first = environment(PROMPTS["p"], rollout("a"), 1)
    assert environment(PROMPTS["p"], rollout("a", finish="length"), 1).parts == {"left": -1.0}
    assert ended == ["p"]
    again = environment(PROMPTS["p"], rollout("a", first.text, "b", finish="length"), 1)
    assert again.parts == {"left": -1.0}, "the generator is gone, so it is replayed"


def test_a_history_that_differs_is_replayed_and_refused():
    environment = make_environment(lottery, {}, max_turns=8)
    environment(PROMPTS["p"], rollout("a"), 1)
    assert environment(PROMPTS["p"], rollout("a", "another text", "b"), 1).cause == "malformed"


def test_a_recorded_environment_that_was_lost_has_not_done_anything_wrong():
    lost = make_environment(lottery, {}, max_turns=8, recorded=True)(PROMPTS["p"], rollout("a", "another", "b"))
    assert (lost.kind, lost.cause) == ("failed", "crash")


def test_a_game_that_fails_is_over():
    def failing(prompt, reply, rng):
        yield "one"
        raise RuntimeError("broken")

    environment = make_environment(failing, {}, max_turns=8)
    assert environment(PROMPTS["p"], rollout("a"), 1) == Reply(text="one")
    failed = environment(PROMPTS["p"], rollout("a", "one", "b"), 1)
    assert isinstance(failed, Outcome)
    assert failed.cause == "raised"
    assert environment(PROMPTS["p"], rollout("a"), 1) == Reply(text="one")


@pytest.mark.parametrize("raised", [ValueError, SystemExit, asyncio.CancelledError])
def test_what_a_generator_raises_when_it_is_given_up_is_no_error(raised):
    def stubborn(prompt, reply, rng):
        try:
            yield "one"
        finally:
            raise raised("at the end")

    environment = make_environment(stubborn, {}, max_turns=8)
    environment(PROMPTS["p"], rollout("a"), 1)
    environment.close(1)
    assert environment(PROMPTS["p"], rollout("a")).cause == "raised"


def test_an_interruption_ends_also_a_generator_that_is_given_up():
    def interrupted(prompt, reply, rng):
        try:
            yield "one"
        finally:
            raise KeyboardInterrupt

    environment = make_environment(interrupted, {}, max_turns=8)
    environment(PROMPTS["p"], rollout("a"), 1)
    with pytest.raises(KeyboardInterrupt):
        environment.close(1)


def test_global_numbers_go_on_in_the_next_block():
    one, two = (GlobalRandom(np.random.default_rng(3)) for _ in range(2))
    drawn = []
    for _ in range(3):
        with one:
            drawn.append((random.random(), np.random.random()))
        random.random()
    with two:
        assert [(random.random(), np.random.random()) for _ in range(3)] == drawn
