"""How a LaTeX answer is normalised before it is compared: layout, variants of macros, braces; not units or order."""

from __future__ import annotations

import re
import unicodedata

MAX_CHARACTERS = 4096
MAX_DIGITS = 400
MAX_DEPTH = 40

_UNICODE = str.maketrans(
    {"−": "-", "–": "-", "×": r"\times ", "÷": r"\div ", "·": r"\cdot ", "π": r"\pi ", "∞": r"\infty ", "√": r"\sqrt "}
    | {"°": r"^\circ ", "²": "^{2}", "³": "^{3}", "½": r"\frac{1}{2}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}"}
    | {"≤": r"\le ", "≥": r"\ge ", "∪": r"\cup ", "±": r"\pm ", "′": "'", "∈": r"\in ", "⁄": "/"}
)
_FUNCTIONS = "arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|exp|ln|log"
_ONE = r"\s*(\\[a-zA-Z]+|[0-9a-zA-Z])"  # an argument without braces

_REWRITES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r",\s*\\!\s*|\{,\}", "\0"),  # a thousands comma, as typeset
        (r"(?<!\\)\\[,;:!\s]|\\q?quad(?![a-zA-Z])|~|&nbsp;", " "),
        (r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|limits)(?![a-zA-Z])\s*\.?", ""),
        (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
        (r"\\(?:leq|leqslant|le)(?![a-zA-Z])", r"\\le "),
        (r"\\(?:geq|geqslant|ge)(?![a-zA-Z])", r"\\ge "),
        (r"\\neq(?![a-zA-Z])", r"\\ne "),
        (r"<=", r"\\le "),
        (r">=", r"\\ge "),
        (rf"(?<![\\a-zA-Z])(?:np\.|math\.)?({_FUNCTIONS})(?=\s*[({{])", r"\\\1"),  # exp(x), as programs spell it
        (r"(?<=\d)\s*[xX*]\s*(?=10\s*\^)", r"\\times "),
        (r"\\lbrace(?![a-zA-Z])", r"\\{"),
        (r"\\rbrace(?![a-zA-Z])", r"\\}"),
        (r"\\[()\[\]]|(?<!\\)\$", ""),  # math delimiters
        (rf"\\frac{_ONE}{_ONE}", r"\\frac{\1}{\2}"),
        (rf"\\frac{_ONE}\s*\{{", r"\\frac{\1}{"),
        (rf"(\\frac\s*\{{[^{{}}]*\}}){_ONE}", r"\1{\2}"),
        (r"\\sqrt\s*(\\[a-zA-Z]+|[0-9a-zA-Z])", r"\\sqrt{\1}"),
        (r"\\(frac|sqrt)\s+(?=[{\[])", r"\\\1"),
        (r"\}\s+\{", "}{"),
        (r"\^\s*\{\s*(\w)\s*\}", r"^\1"),
        (r"_\s*\{\s*(\w+)\s*\}", r"_\1"),
        (r"(?<![\d/.)}])(\d+) +(\d+)/(\d+)(?![\d/.])", r"\1\\frac{\2}{\3}"),  # the mixed number 1 2/3
        (r"\s+", " "),
    )
)
_TEXT = re.compile(r"\\(?:text|mbox|textbf|textit|textrm|mathrm|mathbf|mathit|operatorname|rm)\s*\{([^{}]*)\}")
_THOUSANDS = re.compile(r"(?<![\d,.])\d{1,3}(?:[,\0]\d{3})+(?![\d,])")


def readable(text: str) -> bool:
    """Small enough to compare: at most 4,096 characters, 400 digits in a row, 40 nested brackets; not empty."""
    if not text.strip() or len(text) > MAX_CHARACTERS:
        return False
    return re.search(rf"\d{{{MAX_DIGITS + 1}}}", text) is None and nesting(text) <= MAX_DEPTH


def tidied(answer: str, gold: str) -> tuple[str, str] | None:
    r"""Both tidy; None unless both are readable before and after, for `\lbrace` or a wide bracket counts only then."""
    if not (readable(answer) and readable(gold)):
        return None
    texts = tidy(answer), tidy(gold)
    return texts if all(map(readable, texts)) else None


def tidy(text: str) -> str:
    r"""One spelling per meaning: NFKC, `\dfrac12` -> `\frac{1}{2}`, `\text{ cm}` -> ` cm`, `1,000` -> `1000`."""
    text = unicodedata.normalize("NFKC", text.translate(_UNICODE))
    for _ in range(3):  # \text{\textbf{(C)}}
        text = _TEXT.sub(r" \1 ", text)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    text = text.strip().removesuffix(".").rstrip("\\ ")
    if "\0" in text or not text.startswith(("(", "[", "\\{")):  # (1,234) may be a pair
        text = _THOUSANDS.sub(lambda number: re.sub(r"[,\0]", "", number[0]), text)
    return text.replace("\0", ",")


def split_top(text: str, separator: str = ",") -> list[str]:
    """Cut at separators outside every bracket; the pieces are stripped."""
    parts, depth, start = [], 0, 0
    for i, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == separator and depth <= 0:
            parts.append(text[start:i])
            start = i + 1
    return [part.strip() for part in (*parts, text[start:])]


def brackets(text: str) -> tuple[str, str, str]:
    r"""(opening, inside, closing) of the bracket pair around the whole text; ("", text, "") without one.

    Half-open intervals count: `(3,4]` gives ("(", "3,4", "]").
    """
    for opening, closings in (("\\{", ("\\}",)), ("(", (")", "]")), ("[", ("]", ")"))):
        for closing in closings:
            inside = text.removeprefix(opening).removesuffix(closing)
            if len(inside) == len(text) - len(opening) - len(closing) and _closed(inside):
                return opening, inside.strip(), closing
    return "", text, ""


def _closed(text: str) -> bool:
    depth = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if depth < 0:
            return False
    return depth == 0


def nesting(text: str) -> int:
    """How many brackets are open at once, at most."""
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    return deepest
