from __future__ import annotations

import json
from typing import Any

import pytest

from refusals import refused
from winnow.errors import DataError
from winnow.tasks.messages import messages_of, prompt_messages
from winnow.tasks.rows import Record

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "1 + 1?"}
REPLY = {"role": "assistant", "content": "2"}
MORE = {"role": "user", "content": "And 1 + 2?"}


def read(value: Any, *, drop_reply: bool = False) -> list[tuple[str, str]]:
    return [tuple(one) for one in messages_of(Record({"prompt": value}, "rows:3"), "prompt", drop_reply=drop_reply)]


@pytest.mark.parametrize(
    ("value", "messages"),
    [
        ("1 + 1?", [("user", "1 + 1?")]),
        ([USER], [("user", "1 + 1?")]),
        ([SYSTEM, USER], [("system", "Be brief."), ("user", "1 + 1?")]),
        ([USER, REPLY, MORE], [("user", "1 + 1?"), ("assistant", "2"), ("user", "And 1 + 2?")]),
        (json.dumps([SYSTEM, USER]), [("system", "Be brief."), ("user", "1 + 1?")]),
        ('[{"x": 1}] has how many items?', [("user", '[{"x": 1}] has how many items?')]),
        ('[{"x": 1}]', [("user", '[{"x": 1}]')]),
        ("[{not JSON", [("user", "[{not JSON")]),
        (
            [{"from": "system", "value": "S"}, {"from": "human", "value": "1?"}, {"from": "gpt", "value": "1"}, MORE],
            [("system", "S"), ("user", "1?"), ("assistant", "1"), ("user", "And 1 + 2?")],
        ),
        ([{"role": "developer", "content": "D"}, USER], [("system", "D"), ("user", "1 + 1?")]),
        (
            [{"role": "user", "content": [{"type": "text", "text": "1 + "}, {"type": "text", "text": "1?"}]}],
            [("user", "1 + 1?")],
        ),
        ([{**USER, "tool_calls": None}], [("user", "1 + 1?")]),  # null, as Parquet has it for messages without
    ],
)
def test_messages_and_texts_are_conversations(value: Any, messages: list[tuple[str, str]]) -> None:
    assert read(value) == messages


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ([{"role": "tool", "content": "2"}, USER], ("message 1", "'tool'")),
        ([USER, {**REPLY, "tool_calls": [{"id": 1}]}, MORE], ("message 2", "tools")),
        ([{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "?"}]}], ("message 1",)),
        ([{"role": "user", "content": None}], ("message 1",)),
        ([{"role": "user", "content": " "}], ("message 1", "empty")),
        ([{"role": "user", "content": "\ud800"}], ("UTF-8",)),
        (["1 + 1?"], ("message 1", "task.question")),
        ([{"question": "1 + 1?"}], ("message 1", "task.question")),
        ([SYSTEM], ("no question",)),
        ([USER, SYSTEM, USER], ("system",)),
        ([], ("'prompt'", "empty")),
        ({"role": "user"}, ("'prompt'", "dict")),
        (3, ("'prompt'", "int")),
    ],
)
def test_what_is_no_conversation_of_texts_is_refused_with_its_row(value: Any, named: tuple[str, ...]) -> None:
    with refused(DataError, "rows:3", *named, code="data.malformed"):
        read(value)


def test_an_answer_at_the_end_is_refused_or_left_out() -> None:
    with refused(DataError, "rows:3", "task.drop_reply = true", key="task.drop_reply", code="data.malformed"):
        read([USER, REPLY])
    assert read([USER, REPLY], drop_reply=True) == [("user", "1 + 1?")]
    assert read([USER, REPLY, MORE], drop_reply=True)[-1] == ("user", "And 1 + 2?")
    with refused(DataError, "rows:3", "no question", code="data.malformed"):
        read([REPLY], drop_reply=True)


def test_the_system_message_of_the_configuration_takes_the_place_of_the_rows() -> None:
    *earlier, (_, question) = messages_of(Record({"p": [SYSTEM, USER, REPLY, MORE]}, "a"), "p", drop_reply=False)
    own = prompt_messages(earlier, question, None)
    assert own == [SYSTEM, USER, REPLY, MORE]
    assert prompt_messages(earlier, question, "Reason.") == [{"role": "system", "content": "Reason."}, *own[1:]]
    assert prompt_messages((), question, "Reason.") == [{"role": "system", "content": "Reason."}, MORE]
