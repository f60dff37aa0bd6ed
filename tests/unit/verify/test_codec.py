from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from refusals import refused
from winnow.errors import ConfigError, DataError
from winnow.records import Outcome, Prompt, Reply, Rollout, ToolAnswer
from winnow.rewards.compose import NOT_READ
from winnow.verify.codec import (
    decode_error,
    decode_outcome,
    decode_task,
    decode_verdict,
    encode_error,
    encode_outcome,
    encode_prompt,
    encode_task,
    encode_verdict,
)

NASTY = 'NUL \x00, newline \n\r\u2028, lone \ud800 and \udfff, emoji \U0001f600, right to left \u202e, quote " \\'


def a_prompt(**changes: Any) -> Prompt:
    fields: dict[str, Any] = {
        "id": "p",
        "tokens": np.array([1, 2]),
        "text": "q",
        "answer": "4",
        "task": "t",
        "meta": {},
    }
    return Prompt(**{**fields, **changes})


def a_rollout(text: str = "4", **changes: Any) -> Rollout:
    fields: dict[str, Any] = {
        "index": 3,
        "tokens": np.array([5, 2**31 - 1, 0]),
        "logprobs": np.array([-0.1, -1e-300, -np.inf]),
        "text": text,
        "finish": "stop",
        "version": 7,
    }
    return Rollout(**{**fields, **changes})


def line(prompt: Prompt, rollout: Rollout, *, logprobs: bool = True) -> bytes:
    return encode_task(encode_prompt(prompt), rollout, logprobs=logprobs)


def test_a_task_arrives_exactly_as_it_was():
    prompt = a_prompt(answer=["1/2", None, 3.5, {"x": [1]}], meta={"level": 2, "x": math.inf})
    rollout = a_rollout(trainable=np.array([True, False, True]))
    there_prompt, there_rollout = decode_task(line(prompt, rollout))

    assert (there_prompt.id, there_prompt.text, there_prompt.task) == ("p", "q", "t")
    assert there_prompt.answer == prompt.answer
    assert there_prompt.meta == prompt.meta
    assert there_prompt.tokens.dtype == np.int64
    assert there_prompt.tokens.tolist() == [1, 2]
    assert (there_rollout.index, there_rollout.finish, there_rollout.version) == (3, "stop", 7)
    assert there_rollout.tokens.tolist() == [5, 2**31 - 1, 0]
    assert (there_rollout.tokens.dtype, there_rollout.tokens.flags.writeable) == (np.int64, True)
    assert there_rollout.logprobs.tobytes() == rollout.logprobs.tobytes()
    assert there_rollout.trainable is not None
    assert there_rollout.trainable.tolist() == [True, False, True]


@pytest.mark.parametrize("text", ["", NASTY, "x" * 1_000_000, "\ud83d" * 1000])
def test_any_text_fits_on_one_line(text: str):
    task = line(a_prompt(id=text, answer=text), a_rollout(text))
    assert b"\n" not in task
    prompt, rollout = decode_task(task)
    assert (prompt.id, prompt.answer, rollout.text) == (text, text, text)


def test_an_answer_that_is_no_json_names_its_prompt():
    with refused(DataError, "'p'", code="data.malformed"):
        encode_prompt(a_prompt(answer={1, 2}))


def test_the_error_of_an_import_arrives_with_its_parts():
    error = decode_error(encode_error(DataError(NASTY, remedy="b", key="c.d", code="data.e")))
    assert (type(error), error.problem, error.remedy, error.key) == (ConfigError, NASTY, "b", "c.d")
    assert error.code == "data.e"


@pytest.mark.parametrize("written", [b"nonsense", b'"abcd"', b"[1, 2, 3, 4]", b"7"])
def test_what_a_reward_wrote_into_the_socket_is_no_error_of_the_import(written: bytes):
    assert decode_error(written).code == "config.user_code"


def test_an_outcome_arrives_exactly_as_it_was():
    outcome = Outcome(reward=0.1 + 0.2, correct=False, kind="wrong", parts={"a": 1e-17}, answer=NASTY, seconds=0.25)
    assert decode_outcome(encode_outcome(outcome)) == outcome


def test_a_failed_outcome_keeps_its_nan():
    outcome = decode_outcome(
        encode_outcome(Outcome(reward=math.nan, correct=None, kind="failed", cause="raised", detail="why"))
    )
    assert math.isnan(outcome.reward)
    assert (outcome.correct, outcome.cause, outcome.detail) == (None, "raised", "why")


def test_an_outcome_that_is_not_plain_data_is_malformed():
    outcome: Any = Outcome(reward=1.0, correct=True, kind="correct", answer=object())  # type: ignore[arg-type]
    there = decode_outcome(encode_outcome(outcome))
    assert (there.kind, there.cause) == ("failed", "malformed")
    assert "object" in there.detail


def test_lines_are_json_with_ascii_escapes():
    task = line(a_prompt(text=NASTY), a_rollout())
    assert json.loads(task)["prompt"]["text"] == NASTY
    assert max(task) < 128


def test_a_token_takes_a_third_of_its_bytes_without_log_probs():
    """Base64 makes four bytes of three: 16/3 of 4 bytes, and 32/3 of the 8 of a log-prob. The text is not counted."""
    rollout = a_rollout("", tokens=np.arange(6000), logprobs=np.zeros(6000))
    empty = a_rollout("", tokens=np.arange(0), logprobs=np.zeros(0))
    for logprobs, each in ((False, 16 / 3), (True, 16)):
        more = len(line(a_prompt(), rollout, logprobs=logprobs)) - len(line(a_prompt(), empty, logprobs=logprobs))
        assert more == 6000 * each
    assert decode_task(line(a_prompt(), rollout, logprobs=False))[1].logprobs is NOT_READ


ANSWERS = (ToolAnswer(text="84", name="f", call_id="call00000"), ToolAnswer(text='"\u2028é', name="", call_id=""))


@pytest.mark.parametrize("answers", [(), ANSWERS])
def test_a_reply_comes_back_with_its_answers(answers: tuple[ToolAnswer, ...]) -> None:
    reply = Reply(text="higher", seconds=0.5, answers=answers)
    assert decode_verdict(encode_verdict(reply)) == reply


@pytest.mark.parametrize("answers", ["null", "3", "[1]", '[["a", "b"]]', '[["a", "b", 3]]', '["abcd"]', "[[]]", '"a"'])
def test_a_line_with_other_answers_is_a_crash(answers: str) -> None:
    verdict = decode_verdict(b'{"reply":"x","seconds":0,"answers":%b}' % answers.encode())
    assert isinstance(verdict, Outcome)
    assert verdict.cause == "crash"
