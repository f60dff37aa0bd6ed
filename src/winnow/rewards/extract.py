"""Extracts the answer from a completion. Every function takes text and returns the answer's text, or None."""

from __future__ import annotations

import re

from winnow.rewards.math_equivalence.latex import in_ascii

# A box without braces, as in $\boxed 5$, ends where its formula does.
_BOX_TOKEN = re.compile(
    r"\\{1,8}(?P<box>boxed|fbox)(?:\s*\{|(?:\s+|(?=\d))(?P<bare>[^\s{}$\\]+)(?=\$|\s*\\[)\]]))"
    r"|\\.|(?P<open>\{)|(?P<close>\})",
    re.DOTALL,
)
_BLANK = re.compile(r"\s*")
_NUMBER = re.compile(
    r"(?:(?<![\w)\]}.])[-+]\$?)?"  # a sign, unless it subtracts from something
    r"(?:\d+ +(?=\d+/\d))?"  # of a mixed number
    r"(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<![A-Za-z])\.\d+)"  # Rs.500 has no decimals
    r"(?:/\d+(?!\d|\.\d)|[eE][-+]?\d+)?"
    r"(?:\^(?:\{ ?[-+]?\d+ ?\}|[-+]?\d+))?",  # a power, which `to_fraction` does not read
    re.ASCII,
)
_SIGNED_MONEY = re.compile(r"(?<=[-+])(?:\\?\$|[€£¥₹])\s?(?=[\d.])")
_THOUSANDS = re.compile(r"(?<=\d)(?:\{,\}|,\\!|\\[,;:!]|[_'\u2009\u00a0\u202f])(?=\d{3}(?!\d))", re.ASCII)
_INDEX = re.compile(r"(?<=[A-Za-z)}])[\^_](?:\{[^{}]*\}|[-+]?\w+)")  # cm^2, x_1
_FRACTION = re.compile(r"\\[dtc]?frac\s*(?:\{\s*([-+]?\d+)\s*\}|(\d))\s*(?:\{\s*(\d+)\s*\}|(\d))", re.ASCII)
_BEFORE_FRACTION = re.compile(r"(?<=\d)\s*(?=\\[dtc]?frac)")


def last_boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{...}` (or `\fbox{...}`), braces balanced, `\{` and `\}` ignored.

    For a box that contains only a box, the content of the inner one. An empty box after another one is passed over,
    because it repeats the prompt. None without a box, and when the last box is not closed: such a completion was cut
    off before it had answered.
    """
    opened: list[tuple[int, int]] = []  # (start of a box, or -1 of another brace; start of its content)
    last: tuple[int, int, int, int] | None = None  # start and end of the box, start and end of its content
    for token in _BOX_TOKEN.finditer(text):
        if token["bare"]:
            last = *token.span(), *token.span("bare")
        elif token["box"] or token["open"]:
            opened.append((token.start() if token["box"] else -1, token.end()))
        elif token["close"] and opened:
            (box, start), end = opened.pop(), token.start()
            if box < 0:
                continue
            gaps = ((start, last[0]), (last[1], end)) if last and last[0] >= start else ()
            if last and gaps and all(_BLANK.fullmatch(text, *gap) for gap in gaps):
                last = box, token.end(), *last[2:]
            elif start < end or last is None:
                last = box, token.end(), start, end
    if last is None or any(box >= 0 and start > last[1] for box, start in opened):
        return None
    return text[last[2] : last[3]]


def in_box(text: str) -> str | None:
    r"""The last box of a text with a `\boxed` or an `\fbox`, closed or not; another text as it is."""
    return last_boxed(text) if r"\boxed" in text or r"\fbox" in text else text


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
    r"""The last number written in digits: sign, thousands commas, decimals, and one `/` or exponent.

    A mixed number is one number. An index or the exponent of a unit is none, and a power (`2^10`) is returned whole,
    which equals no number.
    """
    return ([None, *numbers(text)])[-1]


def numbers(text: str) -> list[str]:
    """All numbers of a text, each as `last_number` returns the last one."""
    return [match[0] for match in _NUMBER.finditer(plain(text))]


def plain(text: str) -> str:
    r"""The text with its numbers in ASCII: `−5`, `1{,}000`, `3½`, `\frac{1}{2}` as `-5`, `1,000`, `3 1/2`, `1/2`."""
    text = _SIGNED_MONEY.sub("", _INDEX.sub(" ", in_ascii(_THOUSANDS.sub(",", text))))
    return _FRACTION.sub(r"\1\2/\3\4", _BEFORE_FRACTION.sub(" ", text))


def after_reasoning(text: str) -> str:
    """The text after the last `</think>`, up to a `<think>` that is not closed; all of it if there is neither."""
    return text.rpartition("</think>")[2].partition("<think>")[0]
