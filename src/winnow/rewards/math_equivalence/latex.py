"""How a LaTeX answer is normalised before it is compared: layout, variants of macros, braces; not units or order."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable
from itertools import accumulate, groupby, starmap

from winnow.rewards.math_equivalence.signs import spelled
from winnow.rewards.math_equivalence.unit_words import BARE, lookup

MAX_CHARACTERS = 4096
MAX_DIGITS = 400
MAX_DEPTH = 40

_LETTERS = (
    r"α\alpha β\beta γ\gamma δ\delta ε\epsilon ζ\zeta η\eta θ\theta ι\iota κ\kappa λ\lambda ν\nu ξ\xi π\pi ρ\rho"
    r" σ\sigma τ\tau υ\upsilon φ\phi χ\chi ψ\psi ω\omega Γ\Gamma Δ\Delta Θ\Theta Λ\Lambda Ξ\Xi Π\Pi Σ\Sigma Φ\Phi Ψ\Psi"
)  # μ and Ω are units
_UNICODE = str.maketrans(
    {letter[0]: letter[1:] + " " for letter in _LETTERS.split()}
    | dict.fromkeys("−–‐‑‒", "-")
    | dict.fromkeys("·⋅∙•", r"\cdot ")
    | dict.fromkeys("°º˚", r"^\circ ")
    | dict.fromkeys("′’´", "'")
    | dict.fromkeys("\0\1\2", " ")
    | {"×": r"\times ", "÷": r"\div ", "±": r"\pm ", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne "}
    | {"∪": r"\cup ", "∈": r"\in ", "∅": r"\emptyset ", "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "⟨": r"\langle "}
    | {"⟩": r"\rangle ", "≈": r"\approx ", "℃": r"^\circ C", "℉": r"^\circ F", "″": "''", "‴": "'''"}
    | {"⁄": "/", "。": "."}
)
_LAYOUTS = {"<super>": ("^{", ""), "<sub>": ("_{", ""), "<fraction>": (r"\frac{", "}{")}  # start, and fraction slash
_FOREIGN = re.compile(r"[^\x00-\x7f]+")
_ROOTS = {"√": r"\sqrt", "sqrt": r"\sqrt", "∛": r"\sqrt[3]", "∜": r"\sqrt[4]"}
_ROOT = re.compile(r"([√∛∜]|(?<![a-zA-Z\\])sqrt(?=\s?\d))\s*(\d+(?:\.\d+)?)?", re.ASCII)
_FUNCTIONS = "arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|exp|ln|log"
_ONE = r"\s*(\\[a-zA-Z]+|[0-9a-zA-Z])"  # an argument without braces

# Placeholders for two ways to typeset a comma in a number; _with_plain_commas decides whether it separates thousands.
_NARROW, _BRACED = "\0", "\1"
# It stays in a tidy text, before a short name of a unit that \text or \mathrm sets: 12 \text{ m} is no product.
UPRIGHT = "\2"
_TEXT = re.compile(
    r"(?P<micro>\\mu\s*)?\\(?:(?P<upright>text|mbox|textrm|mathrm|operatorname|rm)|(?:text|math)(?:bf|it|sf|tt|normal)"
    r"|boldsymbol|bm|emph|underline|ensuremath)"
    r"\s*\{(?P<inside>(?:[^{}]|\^\s*\{[^{}]*\})*)\}"
)
_AFTER_VALUE = re.compile(r"[0-9A-Za-z)}\].*/](?:\\[,;:!\s]|[\s~])*(?:\\frac\s*)?\{?\s*$")
_NUMBER = re.compile(r"\s*[-+]?[\d.,/]*\d\s*")
_SHORT = re.compile(r"(?<![A-Za-zµμ\\])(?!(?:sq|cu)(?![A-Za-z]))[A-Za-zµμ]{1,2}Ω?(?![A-Za-zΩ])|Ω")
_NO_UNIT = re.compile(r"^\s*[(\[]|(?<!\\)[,;:=]|(?<!sq)(?<!cu)\.|\\(?!cdot|[,;:!\s])")
_THOUSANDS = re.compile(r"(?<![\d,.])\d{1,3}(?:[,\0\1]\d{3})+(?!\d|,\d)")
_TYPESET_THOUSANDS = re.compile(r"(?<![\d.])\d{1,3}(?:[\0\1]\d{3})+(?!\d)")
_BRACKET = re.compile(r"(?P<open>[(\[]|\\\{)|(?P<close>[)\]]|\\\})")
_PLAIN = r"(?:\d+(?:\.\d*)?|\.\d+)(?:/\d+)?"
_KEPT_BLANK = (
    r"\\[a-zA-Z]+ (?=[a-zA-Z])"  # it ends the name of a macro
    r"|(?<=[\d.]) (?=\.?\d)|(?<=['\"]) (?=\d)"  # 7 8
    r"|(?<=\d) (?=[eE] ?[-+]? ?\d)|(?<=\d[eE]) (?=[-+]? ?\d)|(?<=\d[eE][-+]) (?=\d)"  # 1e - 5 is not 1e-5
)
_BLANK = re.compile(rf"({_KEPT_BLANK})| ")
_APART = re.compile(
    r"(?<![\d._])[\d.]*\d\.? (?=\.?\d)"  # 7 8, but not \log_2 8
    r"|\d\.?['\"]+ ?(?=\.?\d)"  # 5'3
    rf"|(?:^|[(\[,=&]|\\\{{|\\\\) ?[-+]?{_PLAIN}(?: [-+]{_PLAIN})+ ?(?:$|[)\],=&]|\\\}}|\\\\)"  # -5 -3, not 6 -5i
    r"|^(?:\d{4}-\d{1,2}-\d{1,2}|\d{1,2}(?P<between>[-/])\d{1,2}(?P=between)\d{4})$"  # 2020-05-12
)

_FUNCTION_POWER = re.compile(  # \sin^2 15, n^2 2^n
    r"\\(?:sin|cos|tan|cot|sec|csc|ln|log)\s?\^\s?\d (?=\d)|(?<=[a-zA-Z)])\^\d (?=\d+\^)"
)


def _mixed_number(match: re.Match[str]) -> str:
    r"""`1 2/3` as `1\frac{2}{3}`; `20 000/3` is not changed, because its second part is no numerator."""
    whole, top, bottom = match.groups()
    is_proper = not top.startswith("0") and int(top) < int(bottom)
    return rf"{whole}\frac{{{top}}}{{{bottom}}}" if is_proper else match[0]


def _conditions(system: re.Match[str]) -> str:
    """The rows of a system of equations as `x=1 and y=2`; a function by cases is not changed."""
    rows = [row.replace("&=", "=").strip(" ,;.") for row in system["rows"].split(r"\\")]
    return system[0] if any("&" in row for row in rows) else " and ".join(filter(None, rows))


_REWRITES: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\\\\s*\[\s*-?[\d.]+\s*[a-z]{2}\s*\]", r"\\\\"),  # the space between two rows
        (r",\s*\\!\s*", _NARROW),
        (r"\{,\}", _BRACED),
        (r"(?<!\\)\\[,;:!\s]|\\q?quad(?![a-zA-Z])|~|&nbsp;", " "),
        (r"\\(?:left|right|middle|[bB]igg?[lr]?)(?![a-zA-Z])\s*\.?", ""),
        (r"\\(?:displaystyle|limits|bf|it)(?![a-zA-Z])\s*|\\(?:text)?color\s*\{\w+\}", ""),
        (r"\\(?:[dtcs]|nice)frac(?![a-zA-Z])", r"\\frac"),
        (r"\\(?:leq|leqslant|le)(?![a-zA-Z])", r"\\le "),
        (r"\\(?:geq|geqslant|ge)(?![a-zA-Z])", r"\\ge "),
        (r"\\neq(?![a-zA-Z])|\\not\s*=", r"\\ne "),
        (
            r"\\[pb]?mod(?![a-zA-Z])\s*(?:\{\s*(\w+)\s*\}|(\w+))|\(\s*\\?[pb]?mod\s+(\w+)\s*\)",
            r"\\pmod{\1\2\3}",
        ),
        (r"=\s*\\(?:boxed|fbox)\s*\{((?:[^{}]|\{[^{}]*\})*)\}\s*$", r"=\1"),
        (r"\\in(?![a-zA-Z])", r"\\in "),
        (r"<=", r"\\le "),
        (r">=", r"\\ge "),
        (rf"(?<![\\a-zA-Z])(?:np\.|math\.)?({_FUNCTIONS})(?=\s*[({{])", r"\\\1"),  # exp(x), as programs spell it
        (r"(?<=\d)\s*[xX*]\s*(?=10\s*\^)", r"\\times "),
        (r"\\lbrace(?![a-zA-Z])", r"\\{"),
        (r"\\rbrace(?![a-zA-Z])", r"\\}"),
        (r"\\(?:varnothing|empty|emptyset)(?![a-zA-Z])|\\\{\s*\\\}", r"\\emptyset "),
        (r"\\(begin|end)\s*\{(?:[pbB]|small)?matrix\}", r"\\\1{pmatrix}"),  # vmatrix is a determinant
        (
            r"[(\[]\s*\\begin\s*\{array\}\s*(?:\{[clr|\s]*\})?((?:(?!\\begin|\\end)[\s\S])*)\\end\s*\{array\}\s*[)\]]",
            r"\\begin{pmatrix}\1\\end{pmatrix}",
        ),
        (
            r"(?:\\begin\s*\{(?P<name>cases|aligned|gathered)\}|\\\{\s*\\begin\s*\{array\}\s*(?:\{[clr|\s]*\})?)"
            r"(?P<rows>(?:(?!\\begin|\\end)[\s\S])*)\\end\s*\{(?:(?P=name)|array)\}",
            _conditions,
        ),
        (r"\\[()\[\]]|(?<!\\)\$", " "),  # math delimiters
        (rf"\\frac{_ONE}{_ONE}", r"\\frac{\1}{\2}"),
        (rf"\\frac{_ONE}\s*\{{", r"\\frac{\1}{"),
        (rf"(\\frac\s*\{{[^{{}}]*\}}){_ONE}", r"\1{\2}"),
        (r"\\sqrt\s*(\\[a-zA-Z]+|[0-9a-zA-Z])", r"\\sqrt{\1}"),
        (r"\\(frac|sqrt)\s+(?=[{\[])", r"\\\1"),
        # A repeating decimal: 0.\overline{142}, 0.\dot{1}4\dot{2}, 0.(142)
        (r"(\.\d*)\s*\\dot\s*\{?(\d)\}?(\d*)\\dot\s*\{?(\d)\}?", r"\1\\overline{\2\3\4}"),
        (r"(\.\d*)\s*\\(?:overline|bar|dot)\s*(?:\{\s*(\d+)\s*\}|(\d))", r"\1\\overline{\2\3}"),
        (r"(?<=\d\.)\((\d+)\)", r"\\overline{\1}"),
        (r"(?<!\d)\.(?=\d*\\overline)", "0."),
        (r"_\s*\{\s*base\s*(\d+)\s*\}", r"_{\1}"),
        (r"\(\s*([0-9A-F]+)\s*\)\s*_(?=\s*\{?\s*\d)", r"\1_"),
        (r"\}\s+\{", "}{"),
        (r"\^\s*\{\s*(\w)\s*\}(?=\w)", r"^\1 "),  # x^{2}3 is not x^{23}
        (r"\^\s*\{\s*(\w)\s*\}", r"^\1"),
        (r"_\s*\{\s*(\w+)\s*\}(?=\w)", r"_\1 "),
        (r"_\s*\{\s*(\w+)\s*\}", r"_\1"),
        (r"\s+", " "),
        (r"(?<![\d/.)}])(\d+) (\d+)/(\d+)(?![\d/.])", _mixed_number),
        (r"(?<![\w.,^])(?<!\d )[1-9]\d{0,2}(?: \d{3})+(?! ?\d)", lambda number: number[0].replace(" ", "")),
    )
)


def readable(text: str) -> bool:
    """Small enough to compare: at most 4,096 characters, 400 digits in a row, 40 nested brackets; not empty."""
    if not text.strip() or len(text) > MAX_CHARACTERS:
        return False
    return re.search(rf"\d{{{MAX_DIGITS + 1}}}", text) is None and nesting(text) <= MAX_DEPTH


def tidied(answer: str, gold: str) -> tuple[str, str] | None:
    r"""Both texts tidy; None unless both are readable before and after (`\lbrace` is a bracket only when tidy)."""
    if not all(readable(in_ascii(text)) for text in (answer, gold)):
        return None
    texts = tidy(answer), tidy(gold)
    return texts if all(map(readable, texts)) else None


def tidy(text: str) -> str:
    r"""One spelling per meaning: NFKC, `\dfrac12` -> `\frac{1}{2}`, `\text{ cm}` -> ` cm`, `1,000` -> `1000`."""
    text = in_ascii(text)
    for _ in range(3):  # \text{\textbf{(C)}}
        text = _TEXT.sub(_plain, text)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    text = _with_plain_commas(_bare(spelled(text).strip().removesuffix(".").rstrip("\\ ")))
    return _with_comma_separators(text) if ";" in text else text


def _with_comma_separators(text: str) -> str:
    """`(1,2); (3,4)` as `(1,2), (3,4)`, but not `1,5; 2,5`, whose commas may be decimal commas."""
    levels: dict[str, list[int]] = {",": [], ";": []}
    for character, depth in zip(text, depths(text), strict=False):
        levels.get(character, []).append(depth)
    return text.replace(";", ",") if max(levels[";"]) < min(levels[","], default=len(text)) else text


def _bare(text: str) -> str:
    """A tidy text without the asterisks of Markdown or the braces of a group around all of it."""
    for opening, closing in (("**", "**"), ("{", "}")):
        inside = text.removeprefix(opening).removesuffix(closing)
        if len(inside) == len(text) - len(opening) - len(closing) and _closed(inside):
            text = inside.strip()
    return text


def _plain(text: re.Match[str]) -> str:
    r"""What a macro such as \text contains. Short names of units are marked, if only units follow a value there."""
    micro, inside = text["micro"] or "", text["inside"]
    plain = f"{micro} {inside} "
    value = _NUMBER.match(inside)
    if not text["upright"] or not (value or _AFTER_VALUE.search(text.string[max(0, text.start() - 16) : text.start()])):
        return plain
    unit = (micro and "μ") + inside[value.end() if value else 0 :].lstrip("~ ")
    unit = unit.replace(r"\mu ", "μ").replace(r"\mu", "μ").replace(r"\Omega", "Ω")
    names = _SHORT.findall(unit)
    if _NO_UNIT.search(unit) or not names or not all(lookup(name, upright=True) for name in names):
        return plain
    marked = _SHORT.sub(lambda name: name[0] if name[0] in BARE else UPRIGHT + name[0], unit)
    return f" {value[0] if value else ''} {marked} "


def spelling(text: str) -> str:
    r"""A tidy text without its blanks, except those between two numbers, and those that end the name of a macro."""
    return _BLANK.sub(lambda blank: blank[1] or "", " ".join(text.replace(UPRIGHT, "").split()))


def apart(text: str) -> bool:
    """Whether numbers are side by side without an operator (`7 8`, `-5 -3`, `5'3`), or the text is a date.

    Such a text has no value, and equals only itself.
    """
    return _APART.search(_FUNCTION_POWER.sub("", " ".join(text.split()))) is not None


def in_ascii(text: str) -> str:
    r"""The text as LaTeX spells it: `2⁵` is `2^{5}`, `x₁` is `x_{1}`, `1⅓` is `1\frac{1}{3}`; the rest by NFKC."""
    text = _ROOT.sub(lambda root: _ROOTS[root[1]] + (f"{{{root[2]}}}" if root[2] else " "), text).translate(_UNICODE)
    if text.isascii():
        return text
    text = _FOREIGN.sub(lambda run: "".join(starmap(_laid_out, groupby(run[0], _layout))), text)
    return unicodedata.normalize("NFKC", text)


def _layout(character: str) -> str:
    return unicodedata.decomposition(character).partition(" ")[0]


def _laid_out(layout: str, run: Iterable[str]) -> str:
    text = "".join(run)
    if layout not in _LAYOUTS:
        return text
    start, slash = _LAYOUTS[layout]
    return start + unicodedata.normalize("NFKC", text).replace("−", "-").replace("⁄", slash, 1) + "}"


def _with_plain_commas(text: str) -> str:
    """The text without the commas of thousands. Inside brackets only typeset ones count, because (1,234) may be a pair.

    A typeset comma that separates no thousands is a decimal comma.
    """
    edges = [(match.start(), 1 if match["open"] else -1) for match in _BRACKET.finditer(text)]

    def joined(number: re.Match[str]) -> str:
        depth = sum(step for place, step in edges if place < number.start())
        if depth > 0:
            return number[0]
        return _without_commas(number)

    text = _TYPESET_THOUSANDS.sub(_without_commas, _THOUSANDS.sub(joined, text))
    text = re.sub(rf"(?<=\d){_BRACED}(?=\d)", ".", text)
    return text.replace(_NARROW, ",").replace(_BRACED, ",")


def _without_commas(number: re.Match[str]) -> str:
    return re.sub(f"[,{_NARROW}{_BRACED}]", "", number[0])


def depths(text: str) -> list[int]:
    """The number of open brackets before each character, and at the end."""
    return list(accumulate(((c in "([{") - (c in ")]}") for c in text), initial=0))


def split_top(text: str, separator: str = ",") -> list[str]:
    """Cut at separators outside every bracket; the pieces are stripped."""
    parts, start = [], 0
    for i, (character, depth) in enumerate(zip(text, depths(text), strict=False)):
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
    levels = depths(text)
    return min(levels) == levels[-1] == 0


def nesting(text: str) -> int:
    """How many brackets are open at once, at most."""
    return max(depths(text))
