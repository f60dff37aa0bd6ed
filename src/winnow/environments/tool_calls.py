"""Tool calls in the text of the policy: text -> calls, each a name and arguments, or the reason why it is not read.

    read_calls('<tool_call>{"name": "search", "arguments": {"query": "x"}}</tool_call>')
    # [Call(name="search", arguments={"query": "x"})]

Models write calls in the form of their chat template, and `FORMS` has one entry per form:

    hermes   <tool_call>{"name": ..., "arguments": {...}}</tool_call>    Hermes, Qwen2.5, Qwen3
    llama3   {"name": ..., "parameters": {...}}; {...}                   Llama 3, also after <|python_tag|>
    mistral  [TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]       Mistral up to 2024
             [TOOL_CALLS]NAME[ARGS]{...}[TOOL_CALLS]NAME[ARGS]{...}      Mistral since 2025

winnow's own form, `<call>NAME TEXT</call>`, is read beside each of them, as a prompt describes it and no template does.

Every call of a turn is returned, in order. One that is not closed, not JSON, without a name or an object of arguments,
or inside <think> is `Malformed`, so that the policy gets an answer to it. JSON is read from its start to its end, so an
argument may contain the tags of a call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, cast

from pydantic import AfterValidator

MOST = 32  # calls of one turn that are answered


@dataclass(frozen=True)
class Call:
    """A call that was read."""

    name: str
    arguments: Mapping[str, Any]  # of winnow's own form: {"text": TEXT}
    id: str = ""  # that the policy wrote; "" without one
    own: bool = False  # whether it has winnow's own form


@dataclass(frozen=True)
class Malformed:
    """A call that was not read, with the reason."""

    reason: str
    own: bool = False


Calls = Sequence[Call | Malformed]
Read = Callable[[str, int], tuple[Calls, int]]  # text and the place after an opening -> its calls, and where they end


@dataclass(frozen=True)
class Form:
    """How a family of models writes calls."""

    described: tuple[str, ...]  # a chat template with one of these texts belongs to the family
    opening: re.Pattern[str]
    read: Read
    marks: tuple[str, ...]  # tokens of the form; where they are special, decoding usually removes them
    leading: re.Pattern[str] | None = None  # a second opening, at the start of the turn and after </think>


_JSON = json.JSONDecoder()
_SPACE = re.compile(r"\s*")
_END_OF_JSON = re.compile(r"\s*</tool_call>")
_NEXT_OBJECT = re.compile(r"[\s;,]*(?=\{)")
_NAMED = re.compile(r"\s*([\w.:-]{1,100})(?:\[CALL_ID\](\w{1,64}))?(?:\[ARGS\])?\s*(?=\{)")


def _json(text: str, at: int) -> tuple[Any, int]:
    """The JSON value at a place after white space, and its end; a Malformed if there is none, and its start."""
    start = cast(re.Match[str], _SPACE.match(text, at)).end()
    try:
        return _JSON.raw_decode(text, start)
    except RecursionError:
        return Malformed("the call is nested too deeply"), start
    except ValueError as error:  # JSONDecodeError, and an integer of too many digits
        place = error.pos - start if isinstance(error, json.JSONDecodeError) else 0
        return Malformed(f"the call is not JSON, or not complete, at its character {place}"), start


def _call(value: Any, name: str | None = None, call_id: str | None = None) -> Call | Malformed:
    """A call from a JSON value: its arguments if `name` is given, otherwise an object with both."""
    if isinstance(value, Malformed):
        return value
    if name is None:
        inner = value.get("function") if isinstance(value, dict) else None
        value = {**value, **inner} if isinstance(inner, dict) else value
        if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"].strip():
            return Malformed('the call is not an object with a "name" that is a text')
        name, call_id = value["name"].strip(), value.get("id")
        given = [value[key] for key in ("arguments", "parameters") if key in value]
        value = given[0] if len(given) == 1 else None
    if not isinstance(value, dict):
        return Malformed(f"the arguments of the call of {name[:40]!r} are not an object")
    return Call(name, value, id=call_id if isinstance(call_id, str) and len(call_id) <= 64 else "")


def _read_hermes(text: str, at: int) -> tuple[Calls, int]:
    value, end = _json(text, at)
    if not isinstance(value, Malformed) and (tag := _END_OF_JSON.match(text, end)):
        return [_call(value)], tag.end()
    closed, end = _closed(text, end, "<tool_call>", "</tool_call>")
    if not closed:
        return [Malformed("the call has no end tag")], end
    return [value if isinstance(value, Malformed) else Malformed("the call is more than one JSON value")], end


def _closed(text: str, at: int, opening: str, closing: str) -> tuple[bool, int]:
    """Whether the end tag comes before the next call or the end of the thought, and where the call ends."""
    stops = [place for tag in (opening, "</think>") if (place := text.find(tag, at)) >= 0]
    place = text.find(closing, at, min(stops, default=len(text)))
    return (True, place + len(closing)) if place >= 0 else (False, min(stops, default=len(text)))


def _read_llama3(text: str, at: int) -> tuple[Calls, int]:
    """Objects, one after another."""
    calls = list[Call | Malformed]()
    while True:
        value, end = _json(text, at)
        calls.append(_call(value))
        if isinstance(value, Malformed):
            return calls, end + 1  # else its brace would open another call
        more = _NEXT_OBJECT.match(text, end)
        if more is None or len(calls) > MOST:
            return calls, end
        at = more.end()


def _read_mistral(text: str, at: int) -> tuple[Calls, int]:
    """A list of objects, or a name with arguments, of which several may follow one mark."""
    named, calls = _NAMED.match(text, at), list[Call | Malformed]()
    if named is None:
        value, end = _json(text, at)
        listed = value if isinstance(value, list) and value else [value]
        return [_call(one) for one in listed[: MOST + 1]], end
    while named is not None and len(calls) <= MOST:
        value, at = _json(text, named.end())
        calls.append(_call(value, named[1], named[2]))
        named = None if isinstance(value, Malformed) else _NAMED.match(text, at)
    return calls, at


def _read_own(text: str, at: int) -> tuple[Calls, int]:
    closed, end = _closed(text, at, "<call>", "</call>")
    if not closed:
        return [Malformed("the call has no end tag", own=True)], end
    name, _, argument = text[at : end - len("</call>")].strip().partition(" ")
    return [Call(name, {"text": argument.strip()}, own=True) if name else Malformed("the call is empty", own=True)], end


FORMS: Mapping[str, Form] = {
    "mistral": Form(
        described=("[TOOL_CALLS]",),
        opening=re.compile(r"\[TOOL_CALLS\]"),
        read=_read_mistral,
        marks=("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
    ),
    "llama3": Form(
        described=("<|python_tag|>", "ipython"),
        opening=re.compile(r'<\|python_tag\|>|(?=\{\s*"name"\s*:\s*"[^"]*"\s*,\s*"(?:parameters|arguments)"\s*:)'),
        read=_read_llama3,
        marks=("<|python_tag|>",),
        leading=re.compile(r'\s*(?=\{\s*"(?:type|function|name|parameters|arguments)"\s*:)'),
    ),
    "hermes": Form(
        described=("<tool_call>",),
        opening=re.compile(r"<tool_call>"),
        read=_read_hermes,
        marks=("<tool_call>", "</tool_call>"),
    ),
}
AUTO, USUAL = "auto", "hermes"
MARKS = (*(mark for form in FORMS.values() for mark in form.marks), "<think>", "</think>")


def _known(form: str) -> str:
    if form not in (AUTO, *FORMS):
        raise ValueError(f"Input should be one of {', '.join((AUTO, *FORMS))}")
    return form


CallForm = Annotated[str, AfterValidator(_known)]  # an option of an environment


def form_of(template: str) -> str:
    """The form of the calls that a chat template describes; "hermes" for one that describes none."""
    fitting = (name for name, form in FORMS.items() if any(text in template for text in form.described))
    return next(fitting, USUAL)


def read_calls(text: str, form: str = AUTO) -> list[Call | Malformed]:
    """The calls in a turn of the policy, in order: those in winnow's own form, and those in `form`.

    "auto" is the form "hermes" if no chat template has decided (`form_of`). After `MOST` calls, one last
    `Malformed` takes the place of all others. A turn that ends a thought, but does not begin it, has begun inside it.
    """
    found = _found(text, FORMS[USUAL if form == AUTO else form])
    calls = [Malformed("a call inside <think> is not made", own=call.own) if inside else call for call, inside in found]
    if len(calls) > MOST:
        reason = f"a turn has at most {MOST} calls, and the others were not made"
        calls[MOST:] = [Malformed(reason, own=calls[MOST].own)]
    return calls


def _found(text: str, form: Form) -> list[tuple[Call | Malformed, bool]]:
    """The calls in order, at most the first opening's after `MOST`, and whether each is inside a thought."""
    token = re.compile(f"(?P<think></?think>)|(?P<own><call>)|{form.opening.pattern}")
    found, at, inside, tagged, visible = list[tuple[Call | Malformed, bool]](), 0, False, False, True
    while len(found) <= MOST:
        match = form.leading.match(text, at) if form.leading is not None and visible else None
        leads, match = match is not None, match or token.search(text, at)
        if match is None:
            return found
        visible = not leads and match["think"] == "</think>"
        if not leads and match["think"]:
            if visible and not tagged:  # the prompt has begun the thought
                found = [(call, True) for call, _ in found]
            at, inside, tagged = match.end(), not visible, True
            continue
        calls, end = (_read_own if not leads and match["own"] else form.read)(text, match.end())
        found += [(call, inside) for call in calls]
        at = max(end, match.start() + 1)  # an opening may be a place between two characters
    rest = None if tagged else re.compile("</?think>").search(text, at)
    return [(call, True) for call, _ in found] if rest is not None and rest[0] == "</think>" else found
