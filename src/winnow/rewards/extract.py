"""Extracts the answer from a completion. Every function takes text and returns the answer's text, or None."""

from __future__ import annotations

import re

_BOX_TOKEN = re.compile(r"\\{1,8}(?P<box>boxed|fbox)\s*\{|\\.|(?P<open>\{)|(?P<close>\})", re.DOTALL)
_NUMBER = re.compile(
    r"(?:(?<![\w)\]}.])[-+]\$?)?"  # a sign, unless it subtracts from something
    r"(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)"
    r"(?:/\d+(?!\.\d)|[eE][-+]?\d+)?",
    re.ASCII,
)


def last_boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{...}` (or `\fbox{...}`), braces balanced, `\{` and `\}` ignored.

    For a box that contains only a box without further braces, the content of the inner one. None without a box, and
    when the last box is not closed: such a completion was cut off before it had answered.
    """
    opened: list[tuple[bool, int]] = []  # (is a box, start of its content)
    last: tuple[int, int] | None = None
    for token in _BOX_TOKEN.finditer(text):
        if token["box"] or token["open"]:
            opened.append((token["box"] is not None, token.end()))
        elif token["close"] and opened:
            is_box, start = opened.pop()
            last = (start, token.start()) if is_box else last
    if last is None or any(is_box and start > last[1] for is_box, start in opened):
        return None
    content = text[slice(*last)]
    inner = re.fullmatch(r"\s*\\+(?:boxed|fbox)\s*\{([^{}]*)\}\s*", content)
    return inner[1] if inner else content


def has_box(text: str) -> bool:
    r"""True when the text contains a `\boxed` or an `\fbox`, closed or not."""
    return r"\boxed" in text or r"\fbox" in text


def unwrap_box(answer: str) -> str:
    r"""A gold answer without its `\boxed{...}`, if it has one."""
    inner = last_boxed(answer)
    return answer if inner is None else inner


def answer_tag(text: str) -> str | None:
    """The text between the last `<answer>` and the `</answer>` that follows it, or the end of the text."""
    _, opened, rest = text.rpartition("<answer>")
    return rest.partition("</answer>")[0].strip() if opened else None


def hashes(text: str) -> str | None:
    """The rest of the line after the last `#### `, which marks an answer in GSM8K."""
    _, mark, rest = text.rpartition("#### ")
    return rest.partition("\n")[0].strip() or None if mark else None


def last_number(text: str) -> str | None:
    """The last number written in digits: sign, thousands commas, decimals, and one `/` or exponent."""
    *_, last = [None, *_NUMBER.finditer(text.replace("−", "-"))]
    return None if last is None else last[0]


def after_reasoning(text: str) -> str:
    """The text after the last `</think>`, up to a `<think>` that is not closed; all of it if there is neither."""
    return text.rpartition("</think>")[2].partition("<think>")[0]
