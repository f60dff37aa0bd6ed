"""The chat messages of a row as a question and the messages before it.

A message is {"role", "content"}, or {"from", "value"} as in ShareGPT. Its content is text, or a list of parts
{"type": "text", "text"}, whose texts are joined. The question is the last message, which has to be the user's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from winnow.records import Message
from winnow.tasks.rows import Record, list_in

_PYTHON = re.compile(r"\s*\[\s*\{.*?'(?:role|from)': '(?:system|user|human)'", re.DOTALL)
# Roles in published data sets; those of ShareGPT are human and gpt.
ROLES: Mapping[str, str] = MappingProxyType(
    {
        **{name: "system" for name in ("system", "developer")},
        **{name: "user" for name in ("user", "human")},
        **{name: "assistant" for name in ("assistant", "gpt", "model")},
    }
)


def messages_of(record: Record, key: str, *, drop_reply: bool) -> tuple[Message, ...]:
    """The messages of a field, of which the last is the user's: one message for a field that is text.

    With `drop_reply`, the assistant's messages at the end are left out. Raises DataError for anything else than text
    or messages, for parts that are not text, for tools, and for an order that is no conversation.
    """
    value = record.value(key)
    if isinstance(value, str) and re.match(r"\s*\[\s*\{", value):
        value = list_in(value, _is_message)
    if isinstance(value, str) and _PYTHON.match(value):
        raise record.malformed(f"the field {key!r} has messages as Python prints them", "write it with json.dumps")
    if not isinstance(value, list):
        return (Message("user", record.text(key)),)
    messages = tuple(_message(record, key, one, place) for place, one in enumerate(value, start=1))
    while drop_reply and messages and messages[-1].role == "assistant":
        messages = messages[:-1]
    _check_order(record, key, messages)
    return messages


def prompt_messages(earlier: Sequence[Message], question: str, system: str | None) -> list[dict[str, str]]:
    """The messages of a prompt for a chat template: `system`, if given, in the place of the problem's own."""
    first = [] if system is None else [Message("system", system)]
    kept = [message for message in earlier if system is None or message[0] != "system"]
    return [{"role": role, "content": text} for role, text in (*first, *kept, Message("user", question))]


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and any(value.keys() >= kind for kind in ({"role", "content"}, {"from", "value"}))


def _message(record: Record, key: str, value: Any, place: int) -> Message:
    table = value if isinstance(value, dict) else {}
    role, content = table.get("role", table.get("from")), table.get("content", table.get("value"))
    what = f"message {place} of the field {key!r}"
    if not isinstance(role, str):
        raise record.malformed(
            f"{what} is no message",
            'write each as {"role": "user", "content": "..."}, or name the field with the question by task.question',
        )
    if role not in ROLES or table.get("tool_calls"):
        raise record.malformed(
            f"{what} is of the role {role!r}{' and calls tools' if role in ROLES else ''}",
            f"remove this row: winnow reads texts of the roles {', '.join(ROLES)}",
        )
    text = _text(content)
    if text is None:
        raise record.malformed(f"{what} has content that is not text", "remove this row: winnow trains on text alone")
    if not text.strip() and ROLES[role] == "user":
        raise record.malformed(f"{what} is empty", "correct or remove this row")
    record.check_text(key, text)
    return Message(ROLES[role], text)


def _text(content: Any) -> str | None:
    """The text of a message; None for a message without, and for parts such as images."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        return None
    texts = [part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in content]
    return "".join(texts) if all(isinstance(text, str) for text in texts) else None  # type: ignore[arg-type]


def _check_order(record: Record, key: str, messages: Sequence[Message]) -> None:
    """Raise DataError unless the last message is the user's, and a system message the first."""
    roles = [message.role for message in messages]
    if roles and roles[-1] == "assistant":
        raise record.malformed(
            f"the messages of the field {key!r} end with one of the assistant",
            "set task.drop_reply = true, which leaves it out of the prompt",
            key="task.drop_reply",
        )
    if not roles or roles[-1] != "user":
        raise record.malformed(f"the messages of the field {key!r} have no question", "correct or remove this row")
    if "system" in roles[1:]:
        raise record.malformed(
            f"the field {key!r} has a system message that is not its first message", "correct or remove this row"
        )
