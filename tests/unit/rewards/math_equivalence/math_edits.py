r"""Small edits of real golds: blanks, units, signs, separators and brackets inserted, removed or swapped.

An edit is a function from a gold and a source of random numbers to one edited text, or None if it does not apply
to the gold. The place is random; whether the result is equal to the gold is known by construction. Nothing is imported
from the grader, so that a fault of the grader cannot affect a label.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Mapping

from math_pairs import Pair

Edit = Callable[[str, random.Random], str | None]

_RUN = re.compile(r"(?<!frac)(?<!frac )(?<![\d.,])\d{2,}(?![\d.,]*\d)")  # digits of a number without a point or a comma
_SCALAR = re.compile(r"[^,=<>:;&|]+")
_LIST = re.compile(r"[^()\[\]{}=\\]+(?:,[^()\[\]{}=\\]+)+")
_TUPLE = re.compile(r"(\(|\\left\()(.*)(\)|\\right\))", re.DOTALL)
_NOT_SCALAR = re.compile(
    r"\\(?:pm|in|cup|begin|text|mbox|le|ge|leq|geq|geqslant|infty|circ|angle|quad|%|\$)(?![a-z])|[%]|^[(\[]|^\\left|\\\{|[A-Za-z]{3,}(?<!frac)"
)
_COMMA_LIST = re.compile(r"-?\d+(?:, ?-?\d+)+")


def _is_number(gold: str) -> bool:
    return re.fullmatch(r"-?\d+", gold) is not None


def _is_scalar(gold: str) -> bool:
    """A single value without words, units or surrounding brackets; letters and macros are allowed."""
    plain = re.sub(r"\\[a-zA-Z]+", "", gold)
    return (
        _SCALAR.fullmatch(gold) is not None
        and _NOT_SCALAR.search(gold) is None
        and re.search(r"[A-Za-z]{3}|[A-Za-z]\(|\^\\prime|e\d|e-|np\.", plain) is None
    )


def _inside(gold: str, draw: random.Random, insert: str) -> str | None:
    """Insert a text between two digits of a number, except where that would make groups of three."""
    places = [
        run.start() + i
        for run in _RUN.finditer(gold)
        for i in range(1, len(run[0]))
        if not (len(run[0]) - i == 3 and i <= 3) and not run[0].startswith("0")
    ]
    if not places:
        return None
    place = draw.choice(places)
    return gold[:place] + insert + gold[place:]


# ------------------------------------------------------------------------------------------------- equal


def blank_around_operator(gold: str, draw: random.Random) -> str | None:
    places = [
        m for m in re.finditer(r"(?<=[\w)}]) ?([-+=]) ?(?=[\w(\\])", gold) if not re.search(r"\de$", gold[: m.start()])
    ]
    if not places or "text" in gold or "{-" in gold or "mbox" in gold:
        return None
    place = draw.choice(places)
    return (
        gold[: place.start()] + draw.choice([" {} ", r"\,{}\,", "{}", "  {}  "]).format(place[1]) + gold[place.end() :]
    )


def blank_after_comma(gold: str, draw: random.Random) -> str | None:
    if not re.search(r",(?![\\}])", gold) or re.search(r"\d,\d{3}(?!\d)", gold) or r"\!" in gold:
        return None
    return re.sub(r",\s*(?!\\!)", draw.choice([", ", ",", r",\ ", r",\;", " , "]), gold)


def blank_at_edge(gold: str, draw: random.Random) -> str | None:
    return draw.choice([f" {gold}", f"{gold} ", rf"\ {gold}\ ", f"${gold}$", rf"\({gold}\)", f"{gold}."])


def groups_of_three(gold: str, draw: random.Random) -> str | None:
    if not _is_number(gold) or len(gold.lstrip("-")) < 4 or gold.lstrip("-").startswith("0"):
        return None
    return f"{int(gold):,}".replace(",", draw.choice([" ", r"\,", "{,}", ",", r"\ ", "~"]))


def unit_added(gold: str, draw: random.Random) -> str | None:
    return (
        gold + draw.choice([r" \text{ cm}", r"\text{ hours}", " miles", r"\text{ square feet}"])
        if _is_number(gold)
        else None
    )


def dollar_added(gold: str, draw: random.Random) -> str | None:
    return (
        draw.choice([r"\${}", r"\$ {}", r"{}\text{{ dollars}}"]).format(gold)
        if re.fullmatch(r"\d+(\.\d\d)?", gold)
        else None
    )


def unit_removed(gold: str, draw: random.Random) -> str | None:
    bare = re.sub(
        r"\s*\\(?:text|mbox)\s*\{ ?(?:inches|cm|cents|degrees)\}(?:\^2)?|\^\{?\\circ\}?|\\\$|\s*\\?%", "", gold
    )
    return bare if bare != gold and not re.search(r"[a-z]{4}", bare) else None


def degrees_in_words(gold: str, draw: random.Random) -> str | None:
    return re.sub(r"\^\{?\\circ\}?", r"\\text{ degrees}", gold) if gold.count("circ") == 1 else None


def plus_added(gold: str, draw: random.Random) -> str | None:
    return f"+{gold}" if _is_scalar(gold) and gold[0] not in "-+" else None


def two_signs(gold: str, draw: random.Random) -> str | None:
    return f"-(-({gold}))" if _is_scalar(gold) and "_" not in gold else None


def brackets_added(gold: str, draw: random.Random) -> str | None:
    if not _is_scalar(gold) or "_" in gold:
        return None
    return draw.choice(["({})", r"\left({}\right)", "{{{}}}", "(({}))"]).format(gold)


def list_reordered(gold: str, draw: random.Random) -> str | None:
    if not _LIST.fullmatch(gold) or re.search(r"[a-z]{3}|\d,\d{3}(?!\d)", gold):
        return None
    parts = [part.strip() for part in gold.split(",")]
    draw.shuffle(parts)
    return ", ".join(parts)


def list_separator(gold: str, draw: random.Random) -> str | None:
    if not _COMMA_LIST.fullmatch(gold) or re.search(r"\d,\d{3}(?!\d)", gold):
        return None
    parts = [part.strip() for part in gold.split(",")]
    kind = draw.randrange(3)
    if kind == 0:
        return "; ".join(parts)
    return ", ".join(parts[:-1]) + (", and " if kind == 1 and len(parts) > 2 else r" \text{ and } ") + parts[-1]


def matrix_brackets(gold: str, draw: random.Random) -> str | None:
    return gold.replace("pmatrix", "bmatrix") if "pmatrix" in gold else None


# ---------------------------------------------------------------------------------------------- different


def blank_in_number(gold: str, draw: random.Random) -> str | None:
    return _inside(gold, draw, draw.choice([" ", r"\,", r"\ ", "~", "  ", r"\;", r"\quad "]))


def unit_in_number(gold: str, draw: random.Random) -> str | None:
    units = (
        r" \text{ hours } ",
        r"\text{ ft }",
        " cm ",
        r"^\circ ",
        r"\% ",
        "'",
        r" \text{ dollars } ",
        r"^{\circ}",
        " m ",
    )
    return _inside(gold, draw, draw.choice(units))


def two_units(gold: str, draw: random.Random) -> str | None:
    """Write a whole number as two quantities: 530 as 5 hours 30 minutes."""
    first, second = draw.choice(
        [("hours", "minutes"), ("feet", "inches"), ("dollars", "cents"), ("m", "cm"), ("days", "hours")]
    )
    between = draw.choice([" ", r"\text{ and }", ", "])
    split = _inside(gold, draw, rf" \text{{ {first}}}{between}") if re.fullmatch(r"\d+", gold) else None
    return None if split is None else split + rf" \text{{ {second}}}"


def separator_in_number(gold: str, draw: random.Random) -> str | None:
    return _inside(
        gold,
        draw,
        draw.choice([", ", ";", ":", r" \text{ and } ", ".", "-", "+", "/", r" \cdot ", r"\times ", "^", " - "]),
    )


def currency_in_number(gold: str, draw: random.Random) -> str | None:
    split = (
        _inside(gold, draw, draw.choice([r" \$", r" \text{ and } \$", r", \$", r"\$"]))
        if re.fullmatch(r"\d+", gold)
        else None
    )
    return None if split is None else rf"\${split}"


def brackets_in_number(gold: str, draw: random.Random) -> str | None:
    """5(3) is a product, (5,3) a pair. A product is never equal to the number, because a times b is below 10a + b."""
    split = _inside(gold, draw, "\0") if re.fullmatch(r"\d+", gold) else None
    if split is None:
        return None
    left, right = split.split("\0")
    return draw.choice(
        [f"{left}({right})", f"({left})({right})", f"({left},{right})", f"[{left} {right}]", f"({left} {right})"]
    )


def comma_removed(gold: str, draw: random.Random) -> str | None:
    """Join two elements of a list, a tuple or an interval."""
    places = [m for m in re.finditer(r"(?<=\w),\s*(?=[-\w\\])", gold)]
    if (
        not places
        or re.search(r"\d,(?:\\!)?\s*\d{3}(?!\d)", gold)
        or re.search(r"[a-z]{5}", re.sub(r"\\[a-z]+", "", gold))
    ):
        return None
    place = draw.choice(places)
    return gold[: place.start()] + draw.choice(["", " ", "+", r"\cdot "]) + gold[place.end() :]


def comma_moved(gold: str, draw: random.Random) -> str | None:
    """12,3 becomes 1,23."""
    places = list(re.finditer(r"(\d), ?(?=\d)", gold))
    places = [m for m in places if m.start() > 0 and gold[m.start() - 1].isdigit()]
    if not places or re.search(r"\d,\d{3}(?!\d)", gold):
        return None
    place = draw.choice(places)
    return f"{gold[: place.start()]}, {place[1]}{gold[place.end() :]}"


def sign_inserted(gold: str, draw: random.Random) -> str | None:
    """Add a minus to one number other than 0, outside powers, bounds at infinity and even functions."""
    if re.search(r"\^|\\pm|infty|cos|\|", gold):
        return None
    places = [m for m in re.finditer(r"(?<![\d.\w_])(?=\.?\d)", gold) if re.match(r"\.?\d*[1-9]", gold[m.start() :])]
    places = [m for m in places if not re.search(r"-\s*$|[_\^]\{?$", gold[: m.start()])]
    if not places or re.search(r"\d,\\!|text|mbox", gold) or re.search(r"\d,\d{3}(?!\d)", gold):
        return None
    place = draw.choice(places).start()
    return gold[:place] + "-" + gold[place:]


def sign_removed(gold: str, draw: random.Random) -> str | None:
    """Remove an operator between two terms, or the sign of an element, with or without its blank."""
    places = list(re.finditer(r"(?<=[\d\w)}]) ?[-+] ?(?=\d)", gold))
    places = [m for m in places if not re.search(r"\d[eE]$|\{$", gold[: m.start()])]
    if not places:
        return None
    place = draw.choice(places)
    return gold[: place.start()] + draw.choice([" ", ""]) + gold[place.end() :]


def digits_swapped(gold: str, draw: random.Random) -> str | None:
    places = [
        run.start() + i for run in _RUN.finditer(gold) for i in range(len(run[0]) - 1) if run[0][i] != run[0][i + 1]
    ]
    if not places:
        return None
    i = draw.choice(places)
    return gold[:i] + gold[i + 1] + gold[i] + gold[i + 2 :]


def tuple_as_set(gold: str, draw: random.Random) -> str | None:
    match = _TUPLE.fullmatch(gold)
    if match is None or "," not in match[2] or ")" in match[2] or "infty" in gold:
        return None
    return draw.choice([r"\{%s\}", "[%s]", r"\left\{%s\right\}"]) % match[2]


def brackets_removed(gold: str, draw: random.Random) -> str | None:
    """Remove the brackets of a sum that is a factor."""
    places = list(
        re.finditer(r"(?<=[\w)}])\s?\(([^()]*[^()^{\s][-+][^()]*)\)|\(([^()]*[\w)}]\s?[-+][^()]*)\)(?=[\w(\\])", gold)
    )
    if not places or re.search(r"[fghpINMut]\(|\\(?:sin|cos|log|ln|left)", gold):
        return None
    place = draw.choice(places)
    return gold[: place.start()] + (place[1] or place[2]) + gold[place.end() :]


def unit_exchanged(gold: str, draw: random.Random) -> str | None:
    for old, new in (
        ("cm", "m"),
        ("inches", "feet"),
        ("cents", "dollars"),
        (r"^\circ", r"\text{ radians}"),
        (r"\circ", r"\%"),
    ):
        if old in gold:
            return gold.replace(old, new)
    return gold.replace(r"\$", "") + r" \text{ cents}" if r"\$" in gold else None


def percent_added(gold: str, draw: random.Random) -> str | None:
    return gold + draw.choice([r"\%", "%", r" \text{ percent}"]) if re.fullmatch(r"-?[1-9]\d*", gold) else None


EQUAL: tuple[Edit, ...] = (
    blank_around_operator, blank_after_comma, blank_at_edge, groups_of_three, unit_added, dollar_added, unit_removed,
    degrees_in_words, plus_added, two_signs, brackets_added, list_reordered, list_separator, matrix_brackets,
)  # fmt: skip
DIFFERENT: tuple[Edit, ...] = (
    blank_in_number, unit_in_number, two_units, separator_in_number, currency_in_number, brackets_in_number,
    comma_removed, comma_moved, sign_inserted, sign_removed, digits_swapped, tuple_as_set, brackets_removed,
    unit_exchanged, percent_added,
)  # fmt: skip
EDITS: Mapping[str, tuple[bool, Edit]] = {
    **{edit.__name__: (True, edit) for edit in EQUAL},
    **{edit.__name__: (False, edit) for edit in DIFFERENT},
}


def make_edits(
    golds: Mapping[str, str], seed: int, *, per_kind: int | None = None, kinds: Iterable[str] = EDITS
) -> list[Pair]:
    """One pair per gold and edit, in the order of EDITS; at most `per_kind` of a kind, drawn by the seed."""
    return [pair for kind in kinds for pair in _of_kind(kind, golds, seed, per_kind)]


def _of_kind(kind: str, golds: Mapping[str, str], seed: int, limit: int | None) -> Iterable[Pair]:
    label, edit = EDITS[kind]
    order = sorted(golds)
    random.Random(f"{seed} {kind}").shuffle(order)
    made = ((edit(gold, random.Random(f"{seed} {kind} {gold}")), gold) for gold in order)
    pairs = [
        Pair(kind, label, answer, gold, golds[gold]) for answer, gold in made if answer is not None and answer != gold
    ]
    return pairs[:limit]
