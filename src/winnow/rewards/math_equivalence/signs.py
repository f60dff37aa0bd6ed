r"""Signs that carry meaning: percent, degree, minutes and seconds of arc, primes and derivatives.

`spelled` gives each sign one spelling: `\%`, `^\circ`, `'` and `''`. A sign after a bare number belongs to it like a
unit: `settled` omits percent and degree after the whole gold, and a degree sign after the whole answer. A percent sign
is never added. Inside an expression both are numbers, 1/100 and pi/180 (`computed`; `expression.py` reads them itself).
A letter with a prime and a derivative are names of their own, so `named` replaces them with unused letters. Any other
prime is not understood: two texts with one are equal only if they agree.
"""

from __future__ import annotations

import re

_PRIMES = re.compile(r"\^\s*(?:\{\s*((?:(?:\\prime(?![a-zA-Z])|')\s*)+)\}|(\\prime)(?![a-zA-Z]))|\\prime(?![a-zA-Z])")
_SPELLINGS = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r'(?<=[\d}]) ?"', "''"),
        (r"(?:\{\s*\}\s*)?\^\s*(?:\{\s*\\(?:circ|degree)\s*([CF]?)\s*\}|\\(?:circ|degree)(?![a-zA-Z]))", r"^\\circ \1"),
        (r"(?<!\^)\\degrees?(?![a-zA-Z])", r"^\\circ "),
        (r"(?<!\\)%", r"\\%"),
        (r"([\d})]|(?<![a-zA-Z\\])[a-zA-Z]) ?deg(?:rees?)?(?![a-zA-Z]|\s*[a-zA-Z])", r"\1^\\circ "),
        (r"([\d})]|(?<![a-zA-Z\\])[a-zA-Z]) ?(?:percent|per cent)(?![a-zA-Z])", r"\1\\% "),
    )
)
_ANY = re.compile(r"\\circ|\\%|'|[‰‱]")
SIGN = re.compile(r"\^\s*\\circ\s*(?P<celsius>[CF](?![a-zA-Z]))?|\\%")
_NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)(?:\s?/\s?\d+|\s?\\frac\{\d+\}\{\d+\})?|\\frac\{-?\d+\}\{\d+\}"
ANGLE = r"(?:m ?)?\\angle\s*[A-Z](?:_\w)?(?:\s?[A-Z](?:_\w)?){0,2}"
_LEFT = rf"(?:(?:\\?[a-zA-Z]+(?:_\w)?'?|{ANGLE})\s*(?:=|\\in)\s*)?"
_BARE = re.compile(rf"\s*{_LEFT}(?:[-+]|\\pm|\\mp)?\s*(?:{_NUMBER})\s*(?P<sign>{SIGN.pattern})?\s*")
_IN_BRACKETS = re.compile(rf"\(\s*((?:[-+]\s*)?(?:{_NUMBER}))\s*\)\s*(?=\^\s*\\circ|\\%)")
_PIECES = re.compile(r"[,()\[\]]|\\[{}]|\\cup(?![a-zA-Z])|\s(?:or|and)\s")

_ORDER = r"(?:\^\s*(?:\d|\{\s*\d\s*\}))?"
_UPPER = rf"d\s*{_ORDER}\s*(?:\\[a-zA-Z]+|[a-zA-Z])?\s*(?:_\w|_\{{\w+\}})?"
_LOWER = rf"d\s*(?:\\[a-zA-Z]+|[a-zA-Z])\s*{_ORDER}"
_DERIVATIVE = re.compile(
    rf"\\frac\s*\{{\s*{_UPPER}\s*\}}\s*\{{\s*{_LOWER}\s*\}}|(?<![a-zA-Z\\]){_UPPER}\s?/\s?{_LOWER}(?![a-zA-Z])"
)
_MAY_DERIVE = re.compile(r"/\s?d|\{\s?d")
_GREEK = (
    r"\\(?:var)?(?:alpha|beta|[gG]amma|[dD]elta|epsilon|zeta|eta|[tT]heta|kappa|[lL]ambda|mu|nu|xi|rho|[sS]igma|tau"
    r"|[pP]hi|chi|[pP]si|[oO]mega)(?![a-zA-Z])"
)
_INDEX = r"(?:_\w|_\{\w+\})?"
_PRIMED = re.compile(rf"(?<![a-zA-Z]{{2}})(?:{_GREEK}|(?<!\\)(?<!\\[a-zA-Z])[a-zA-Z])\s?{_INDEX}'+{_INDEX}(?!')")
_FREE = "pqrstuvwzabcjkmnlxyPQRUVWXYZ"  # letters that are neither constants nor usual names of functions

MAX_SIGNS = 8  # in one text for computer algebra
_CLOSING = {")": "(", "}": "{", "]": "["}


def spelled(text: str) -> str:
    """The text with one spelling for each sign."""
    if "prime" in text or "^{'" in text:
        text = _PRIMES.sub(
            lambda match: "'" * max(1, (match[1] or "").count("prime") + (match[1] or "").count("'")), text
        )
    for pattern, replacement in _SPELLINGS:
        text = pattern.sub(replacement, text)
    return text


def has_sign(text: str) -> bool:
    """Whether a percent, degree or prime sign is left in the text."""
    return _ANY.search(text) is not None


def without(text: str) -> str:
    """The text without the percent or degree signs of its bare numbers; unchanged if one is inside an expression."""
    return SIGN.sub(" ", _IN_BRACKETS.sub(r"\1", text)) if names(text) else text


def names(text: str) -> frozenset[str]:
    """The one sign that every number of the text has ("percent", "degree", "degreeC"); empty for other texts.

    In a list without brackets the last number is enough: `30, 60^\\circ`.
    """
    if "\\%" not in text and "\\circ" not in text:
        return frozenset()
    pieces = [piece for piece in _PIECES.split(_IN_BRACKETS.sub(r"\1", text)) if piece and not piece.isspace()]
    bare = [_BARE.fullmatch(piece) for piece in pieces]
    signs = [match and match["sign"] for match in bare]
    in_brackets = any(bracket in text for bracket in "([") or "\\{" in text
    if not all(bare) or not signs[-1] or (in_brackets and not all(signs)):
        return frozenset()
    found = {"percent" if "%" in s else "degree" + s.replace("circ", "").strip("^\\ ") for s in signs if s}
    return frozenset(found) if len(found) == 1 else frozenset()


def settled(answer: str, gold: str, *, whole: bool) -> tuple[str, str] | None:
    """Both texts without the signs on which they agree, or that may be omitted. None if their signs differ.

    Only `whole` texts, not the elements of a list, may omit a sign. Signs inside expressions are kept.
    """
    mine, theirs = has_sign(answer), has_sign(gold)
    if not (mine or theirs):
        return answer, gold
    a, g = names(answer), names(gold)
    if a and a == g:
        return without(answer), without(gold)
    if whole and not mine and g:
        return answer, without(gold)
    if whole and not theirs and a and "percent" not in a:
        return without(answer), gold
    if (a or g) and (not (mine and theirs) or (a and g)):
        return None  # signs are not exchanged, and no number is converted
    texts = (computed(answer), computed(gold)) if a or g else (answer, gold)
    return None if texts[0] is None or texts[1] is None else (texts[0], texts[1])


def computed(text: str) -> str | None:
    r"""`\sin 18^\circ` as `\sin \frac{18\pi}{180}`, for computer algebra; None if a sign follows no value.

    None too for more than MAX_SIGNS of them.
    """
    if len(SIGN.findall(text)) > MAX_SIGNS:
        return None
    while match := SIGN.search(text):
        start = _operand(text[: match.start()])
        rest = text[match.end() :]
        if match["celsius"] or start is None or rest.lstrip().startswith("^"):
            return None
        operand = text[start : match.start()].strip()
        value = rf"\frac{{{operand}\pi}}{{180}}" if "circ" in match[0] else rf"\frac{{{operand}}}{{100}}"
        text = text[:start] + value + rest
    return None if has_sign(text) else text


def named(answer: str, gold: str) -> tuple[str, str] | None:
    """Both texts with an unused letter in place of each letter with a prime, and each derivative; None without one."""
    if not any("'" in text or _MAY_DERIVE.search(text) for text in (answer, gold)):
        return answer, gold
    free = [letter for letter in _FREE if letter not in answer and letter not in gold]
    letters: dict[str, str] = {}

    def replaced(match: re.Match[str]) -> str:
        name = re.sub(r"\\frac|[\s{}/]", "", match[0])
        if name not in letters:
            letters[name] = free.pop(0)
        return f" {letters[name]} "

    try:
        texts = [_PRIMED.sub(replaced, _DERIVATIVE.sub(replaced, text)) for text in (answer, gold)]
    except IndexError:
        return None
    return texts[0].strip(), texts[1].strip()


def _operand(head: str) -> int | None:
    """The place at which the operand of a sign starts: digits, a letter, a group, a fraction or a product of them."""
    end = len(head.rstrip())
    start = end
    while start > 0:
        place = _factor(head, start)
        if place is None or place == start:
            break
        start = place
    if start == end or head[:start].rstrip()[-1:] in ("^", "_", "'"):
        return None
    return start


def _factor(head: str, end: int) -> int | None:
    """The place at which the number, letter, group or fraction before `end` starts; None without one."""
    last = head[end - 1]
    if last in _CLOSING:
        return _group(head, end)
    digits = re.search(r"[\d.]+$", head[max(0, end - 400) : end])
    if digits:
        return end - len(digits[0])
    word = re.search(r"\\[a-zA-Z]+$", head[max(0, end - 40) : end])
    if word:
        return end - len(word[0]) if re.fullmatch(rf"{_GREEK}|\\pi", word[0]) else None
    return end - 1 if last.isalpha() else None


def _group(head: str, end: int) -> int | None:
    """The place at which the bracket before `end` opens, with `\\frac{a}` or `\\sqrt` before it."""
    while True:  # once for each group of \frac{a}{b}
        depth, start = 0, end
        while start > 0:
            start -= 1
            depth += (head[start] in _CLOSING) - (head[start] in _CLOSING.values())
            if depth == 0:
                break
        if depth or head[start] == "[" or head[max(0, start - 1) : start] == "\\":
            return None
        before = head[:start].rstrip() if head[start] == "{" else ""
        if not before.endswith("}"):
            return len(before) - 5 if before.endswith(("\\frac", "\\sqrt")) else start
        end = len(before)
