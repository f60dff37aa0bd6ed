"""An environment is replayed from the policy's turns; every expected text and number is by hand."""

from __future__ import annotations

import contextlib
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from refusals import refused
from winnow.environments.replay import LONGEST, OutOfTokens, make_environment
from winnow.errors import ConfigError
from winnow.records import Outcome, Prompt, Reply, Rollout, ToolAnswer

PROMPT = Prompt(id="p7", tokens=np.array([1, 2]), text="?", answer="12", task="t", meta={"seen": [1]})


def rollout(*turns, finish="stop"):
    none = np.zeros(0)
    return Rollout(
        index=0, tokens=none.astype(np.int64), logprobs=none, text=turns[0], finish=finish, version=0, turns=turns
    )


def answer(environment, *turns, finish="stop", max_turns=16, prompt=PROMPT, **options):
    return make_environment(environment, options, max_turns=max_turns)(prompt, rollout(*turns, finish=finish))


def echo(prompt, reply, rng, *, turns=3):
    """Repeats each turn with its number, and pays the length of the last one."""
    for turn in range(1, turns):
        reply = yield f"{turn}: {reply}"
    return {"length": float(len(reply)), "bonus": 0.5}


def test_a_reply_follows_each_turn_and_the_parts_the_last_one():
    assert answer(echo, "a") == Reply(text="1: a")
    assert answer(echo, "a", "1: a", "bc") == Reply(text="2: bc")
    outcome = answer(echo, "a", "1: a", "bc", "2: bc", "def")
    assert (outcome.reward, outcome.correct, outcome.parts) == (3.5, True, {"length": 3.0, "bonus": 0.5})
    assert answer(echo, "a", turns=1).reward == 1.5


def test_answers_to_tool_calls_are_repeated_as_their_text():
    given = [
        ToolAnswer(text=text, name="f", call_id=f"call0000{place}") for place, text in enumerate(("84", "x\ud800"))
    ]

    def tools(prompt, reply, rng):
        reply = yield given
        reply = yield "and?"
        return float(reply == prompt.answer)

    text = "<tool_response>\n84\n</tool_response>\n<tool_response>\nx?\n</tool_response>"
    assert answer(tools, "a") == Reply(text=text, answers=(given[0], replace(given[1], text="x?")))
    assert answer(tools, "a", text, "b") == Reply(text="and?")
    assert answer(tools, "a", text, "b", "and?", "12").reward == 1.0
    assert answer(tools, "a", text + "x", "b").cause == "malformed"


@pytest.mark.parametrize("given", [[], (), ["84"], [None], {}, 84, [[]]])
def test_what_is_neither_a_text_nor_answers_is_malformed(given):
    def wrong(prompt, reply, rng):
        yield given

    assert answer(wrong, "a").cause == "malformed"
    assert answer(wrong, "a", "x", "b").cause == "malformed"


def test_answers_that_are_too_long_together_are_malformed():
    def long(prompt, reply, rng):
        yield [ToolAnswer(text="x" * (LONGEST // 4), name="f", call_id="1")] * 4

    assert answer(long, "a").cause == "malformed"


def test_a_rollout_without_turns_has_one_its_text():
    single = Rollout(index=0, tokens=np.zeros(1, int), logprobs=np.zeros(1), text="abc", finish="stop", version=0)
    assert make_environment(echo, {}, max_turns=4)(PROMPT, single) == Reply(text="1: abc")


def test_a_function_without_a_yield_is_a_rollout_of_one_turn():
    def one(prompt, reply, rng):
        return float(reply == prompt.answer)

    assert answer(one, "12").reward == 1.0
    assert answer(one, "11").kind == "wrong"
    assert answer(one, "11", "no", "12").cause == "malformed"


def test_random_numbers_depend_on_the_prompt_alone():
    def draw(prompt, reply, rng):
        yield str(rng.integers(10**9))

    first = answer(draw, "a")
    assert answer(draw, "b") == first
    other = Prompt(id="p8", tokens=PROMPT.tokens, text="?", answer="12", task="t")
    assert answer(draw, "a", prompt=other) != first


def test_a_rollout_without_room_is_wrong_or_what_the_environment_returns():
    def partial(prompt, reply, rng):
        try:
            yield "more"
        except OutOfTokens:
            return {"half": 0.5}
        return 1.0

    def stubborn(prompt, reply, rng):
        while True:
            with contextlib.suppress(OutOfTokens):
                yield "more"

    unpaid = answer(echo, "a", finish="length")
    assert (unpaid.reward, unpaid.correct, unpaid.kind) == (0.0, False, "wrong")
    assert answer(partial, "a", finish="length").parts == {"half": 0.5}
    assert answer(stubborn, "a", finish="length").cause == "malformed"
    assert answer(echo, "a", turns=1, finish="length").reward == 1.5, "an environment that has ended needs no room"


def test_one_text_too_many_is_a_failure_and_no_wrong_answer():
    assert answer(echo, "a", "1: a", "b", max_turns=3) == Reply(text="2: b")
    failed = answer(echo, "a", "1: a", "b", max_turns=2)
    assert (failed.kind, failed.cause, failed.correct) == ("failed", "malformed", None)
    assert math.isnan(failed.reward)


def test_texts_that_differ_from_the_rollouts_are_found():
    assert answer(echo, "a", "2: a", "b").cause == "malformed"
    assert answer(echo, "a", "1: a", "b", "2: b", "c", "3: c", "d").cause == "malformed", "it ended before these turns"
    counter = itertools.count()

    def counting(prompt, reply, rng):
        yield str(next(counter))
        return 1.0

    first = answer(counting, "a")
    assert first == Reply(text="0")
    assert answer(counting, "a", "0", "b").cause == "malformed"


@pytest.mark.parametrize("text", [None, 3, b"x", "x" * (LONGEST + 1)])
def test_what_is_no_text_or_too_long_a_text_is_a_failure(text):
    def odd(prompt, reply, rng):
        yield text

    assert answer(odd, "a").cause == "malformed"


def test_a_surrogate_that_no_tokenizer_can_encode_is_replaced_and_repeats():
    def broken(prompt, reply, rng):
        reply = yield "a\ud800b"
        return {"same": float(reply == "ok")}

    assert answer(broken, "x") == Reply(text="a?b")
    assert answer(broken, "x", "a?b", "ok").reward == 1.0


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), GeneratorExit(), MemoryError()])
def test_an_exception_is_a_failure(error):
    def raising(prompt, reply, rng):
        yield "fine"
        raise error

    assert answer(raising, "a") == Reply(text="fine")
    failed = answer(raising, "a", "fine", "b")
    assert failed.kind == "failed"
    assert failed.cause == ("memory" if isinstance(error, MemoryError) else "raised")


def test_an_environment_cannot_change_the_prompt():
    def vandal(prompt, reply, rng):
        prompt.meta["seen"].append(2)
        return float(len(prompt.meta["seen"]))

    assert [answer(vandal, "a").reward for _ in range(2)] == [2.0, 2.0]
    assert PROMPT.meta == {"seen": [1]}


def test_nothing_returned_is_a_failure():
    def silent(prompt, reply, rng):
        yield "fine"

    assert answer(silent, "a", "fine", "b").cause == "raised"
    assert isinstance(answer(silent, "a", "fine", "b"), Outcome)


def test_options_and_signatures_are_checked():
    with refused(ConfigError, key="environment.rounds"):
        make_environment(echo, {"rounds": 3}, max_turns=4)
    with refused(ConfigError, code="config.registration"):
        make_environment(lambda prompt, reply: 1.0, {}, max_turns=4)
    with refused(ConfigError, "gues_number", key="environment", code="config.unknown_member"):
        make_environment("gues_number", {}, max_turns=4)
