r"""Multiple choice: the letter of an option in its usual spellings, such as `E)`, `(E) 12` and `Option E`.

An answer is read as an option only if the gold is one of the letters A to J. It may have one letter: `(A) and (B)`
is no option, and neither is `A:B`, which may be a ratio.
"""

from __future__ import annotations

import re

_GOLD = re.compile(r"\(?\s*([A-J])\s*\)?\s*[.:]?")
_INTRODUCED = r"(?:(?:the )?(?:(?:correct|final|right) )*(?:answer|option|choice)(?: option| choice)?(?: is)?\s*:?\s*)?"
_CHOICE = re.compile(
    rf"(?i:{_INTRODUCED})(?:(?P<letter>[A-J])|\(\s*(?P<round>[A-J]))"
    r"(?P<mark>\s*\)\s*[.:]?|\s*[.:])?(?P<rest>(?:\s|(?<=\))\d).*)?",
    re.DOTALL,
)
_CONTINUED = re.compile(  # (A) and ..., (E) is wrong, E: = 5
    r"(?:and|or|nor|is|are|not)(?![a-zA-Z])|[*/&,;=^_!<>|)]|\(?[A-J]\)?$"
)
_ANOTHER = re.compile(r"(?<![a-zA-Z\\])[A-J]\s*[).:]|(?:(?<![a-zA-Z])(?:and|or)|[,;&/])\s*\(?[A-J]\)?$")
_GOLD_AND_VALUE = re.compile(r"\(\s*([A-J])\s*\)\s*[.:]?\s*(\S.*)", re.DOTALL)
_TERM = re.compile(r"[-+]\s")  # A) + 1
_FACTOR = re.compile(r"\s*(?:[a-zA-Z](?![a-zA-Z])(?!\s+[a-zA-Z]{2})|[-+(\\{])")
_IN_TEXT = re.compile(r"\s*\$?\s*\\(?:text|mbox|mathrm|mathbf)")


def compare(answer: str, gold: str, raw: str) -> bool | None:
    r"""Whether both tidy texts name one option. None unless the gold is a letter, and the answer one with an option.

    `raw` is the answer before it was tidy: `\textbf{(E) } x` is an option, `(E) x` may be a product.
    """
    right = _GOLD.fullmatch(gold.strip())
    if right is None:
        return None
    chosen = _CHOICE.fullmatch(answer.strip())
    if chosen is None:
        return None
    rest = (chosen["rest"] or "").strip()
    if chosen["round"] and ")" not in (chosen["mark"] or ""):
        return None
    if rest and (not chosen["mark"] or _CONTINUED.match(rest) or _ANOTHER.search(rest)):
        return None
    may_be_product = chosen["round"] or ":" in (chosen["mark"] or "")  # no product begins with `A)` or `A.`
    if rest and (_FACTOR if may_be_product else _TERM).match(rest) and not _IN_TEXT.match(raw):
        return None
    return (chosen["letter"] or chosen["round"]) == right[1]


def letter_and_value(gold: str, raw: str) -> tuple[str, str] | None:
    r"""Both parts of a gold such as `\textbf{(C)}\ 12`; None for another. `raw` is the gold before it was tidy."""
    found = _GOLD_AND_VALUE.fullmatch(gold.strip()) if _IN_TEXT.match(raw) else None
    if found is None or _CONTINUED.match(found[2]) or _ANOTHER.search(found[2]):
        return None
    return found[1], found[2]
