r"""Dressings of a right answer: units and money, option letters, named tuples, left sides, vectors, times, sets.

A dressing makes two pairs of a gold: a right one, which must be accepted, and its wrong twin, which must be refused
(another unit, another letter, a permuted tuple, a.m. for p.m.). Each is (answer, gold), because some dressings, such
as a gold with a unit, change the gold. The labels follow from the construction, and nothing of the grader is imported.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from math_pairs import Pair

Made = tuple[str, str] | None  # (answer, gold); None if the dressing does not fit the gold
LETTERS = "ABCDEFGHIJ"
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?|-?\\frac\{\d+\}\{\d+\}|\d*\\sqrt\{\d+\}|\d*\\pi")
_WHOLE = re.compile(r"\d{1,9}")
_TUPLE = re.compile(r"\(([^()\[\],]+),([^()\[\],]+)\)")
_POLYNOMIAL = re.compile(r"(?=.*[a-z])(?!.*(?:[a-z]{2}|e))[\da-z+\- ^{}]+")
_INTERVAL = re.compile(r"(?P<open>[(\[]) ?(?P<low>-?\d+) ?, ?(?P<high>-?\d+) ?(?P<close>[)\]])")


@dataclass(frozen=True)
class Dressing:
    """Both functions take the gold."""

    right: Callable[[str], Made]
    wrong: Callable[[str], Made]


def _fits(pattern: re.Pattern[str], gold: str) -> bool:
    return pattern.fullmatch(gold) is not None


def put(answer: str, gold: str = "{}", fits: re.Pattern[str] = _NUMBER) -> Callable[[str], Made]:
    """Both texts with the gold in place of each {}."""
    return lambda found: (answer.replace("{}", found), gold.replace("{}", found)) if _fits(fits, found) else None


def both(answer: str, gold: str, wrong: str, fits: re.Pattern[str] = _NUMBER) -> Dressing:
    """A right and a wrong answer to the same gold."""
    return Dressing(put(answer, gold, fits), put(wrong, gold, fits))


def added(unit: str, other: str, fits: re.Pattern[str] = _NUMBER) -> Dressing:
    """The right answer has a unit and its gold has none; the wrong one has another unit than its gold."""
    return Dressing(put(unit, fits=fits), put(other, unit, fits))


def _of_whole(make: Callable[[int], tuple[str, str]]) -> Callable[[str], Made]:
    return lambda gold: make(int(gold)) if _fits(_WHOLE, gold) else None


def _option(spelled: str) -> Dressing:
    """The gold is an option letter, drawn from a whole gold."""

    def made(step: int) -> Callable[[int], tuple[str, str]]:
        return lambda n: (spelled.replace("{}", LETTERS[(n + step) % 10]), LETTERS[n % 10])

    return Dressing(_of_whole(made(0)), _of_whole(made(1)))


def _entries(gold: str) -> tuple[str, str] | None:
    """The two different entries of a pair of numbers."""
    match = _TUPLE.fullmatch(re.sub(r"\\(?:left|right)", "", gold))
    entries = (match[1].strip(), match[2].strip()) if match else ("", "")
    return entries if entries[0] != entries[1] and all(_fits(_NUMBER, entry) for entry in entries) else None


def _named(gold: str, names: str) -> Made:
    return (f"({names})={gold}", gold) if _entries(gold) else None


def _vector(gold: str, order: int) -> Made:
    entries = _entries(gold)
    if entries is None or any("\\" in entry for entry in entries):
        return None
    first, second = entries[::order]
    return rf"{first}\mathbf{{i}}{'' if second.startswith('-') else '+'}{second}\mathbf{{j}}", gold


def _sympy(gold: str, change: str) -> Made:
    """The gold as sympy prints it, and the polynomial as it was, or with another term."""
    if not _fits(_POLYNOMIAL, gold):
        return None
    printed = re.sub(r"(?<=[\da-z}]) ?(?=[a-z])", "*", re.sub(r"\{(\d+)\}", r"\1", gold)).replace("^", "**")
    return (gold + change, printed) if not re.search(r"[{}]|\d \d|[a-z] ?\d", printed) else None


def _builder(gold: str, members: str) -> Made:
    match = _INTERVAL.fullmatch(re.sub(r"\\(?:left|right)", "", gold))
    if match is None or match["open"] + match["close"] == "()" or not int(match["low"]) + 1 < int(match["high"]):
        return None  # (1,2) may be a pair
    low, high = (r"\le" if bracket in "[]" else "<" for bracket in (match["open"], match["close"]))
    return rf"\{{x{members} \mid {match['low']} {low} x {high} {match['high']}\}}", gold


def _time(n: int, half: str) -> tuple[str, str]:
    return rf"{n % 11 + 1}:{n % 60:02} \text{{ {half}.}}", f"{n % 11 + 13}:{n % 60:02}"


UNITS: Mapping[str, Dressing] = {
    "metres": added(r"{} \text{ m}", r"{} \text{ s}"),
    "speed": added(r"{}\,\mathrm{m/s}", r"{} \text{ km/h}"),
    "negative power": both(r"{} \text{ m s}^{-1}", r"{} \text{ m/s}", r"{} \text{ m s}^{-2}"),
    "unit as a fraction": both(
        r"{} \frac{\text{m}}{\text{s}}", "{} meters per second", r"{} \frac{\text{s}}{\text{m}}"
    ),
    "cubic": added(r"{} \text{ m}^3", r"{} \text{ m}^2"),
    "square in words": both("{} square centimeters", r"{} \text{ cm}^2", "{} centimeters"),
    "kilo": both("{}", r"{} \text{ km}", r"{}000 \text{ m}", _WHOLE),
    "case of a prefix": added(r"{} \text{ MW}", r"{} \text{ mW}"),
    "bare name": added("{} cm", "{} m"),
    "rpm": added(r"{} \text{ rpm}", r"{} \text{ Hz}"),
    "micro": both(r"{}\,\mu\mathrm{m}", "{} micrometers", r"{}\,\mathrm{m}"),
    "yuan": both("{}", r"{} \text{ yuan}", r"{} \text{ yen}"),
    "sign of money": added("£{}", "€{}", _WHOLE),
    "name of money": both("USD {}", r"\${}", "EUR {}", _WHOLE),
    "counted": added("{} apples", "{} people", _WHOLE),
    "counted in brackets": both("{}", "{} (apples)", "{} (pears)", _WHOLE),
    "square units": both(r"{} \text{ square units}", r"{} \text{ units}^2", r"{} \text{ units}"),
    "per": both(r"{} \text{ miles/hour}", "{} mph", "{} miles"),
}
FORMS: Mapping[str, Dressing] = {
    "option and bracket": _option("{})"),
    "option in brackets": _option("({})"),
    "option in bold": _option(r"\textbf{({}) } 12"),
    "option in words": _option(r"\text{Option {}}"),
    "option and text": _option(r"\text{{}: a polygon}"),
    "named tuple": Dressing(lambda gold: _named(gold, "x,y"), lambda gold: _named(gold, "y,x")),
    "sum on the left": both("m+n = {}", "{}", "2x = {}", _WHOLE),
    "number on the left": Dressing(
        _of_whole(lambda n: (f"{n + 20}-20 = {n}", str(n))), _of_whole(lambda n: (f"{n + 21}-20 = {n}", str(n)))
    ),
    "chain as gold": Dressing(
        _of_whole(lambda n: (str(n), f"{n + 20}-20 = {n}")), _of_whole(lambda n: (str(n + 20), f"{n + 20}-20 = {n}"))
    ),
    "gold of sympy": Dressing(lambda gold: _sympy(gold, ""), lambda gold: _sympy(gold, "+1")),
    "vector": Dressing(lambda gold: _vector(gold, 1), lambda gold: _vector(gold, -1)),
    "time of day": Dressing(_of_whole(lambda n: _time(n, "p.m")), _of_whole(lambda n: _time(n, "a.m"))),
    "set builder": Dressing(lambda gold: _builder(gold, ""), lambda gold: _builder(gold, r" \in \mathbb{Z}")),
    "choose": Dressing(
        _of_whole(lambda n: (rf"\binom{{{n % 20 + 5}}}{{2}}", f"C_{{{n % 20 + 5}}}^{{2}}")),
        _of_whole(lambda n: (rf"\binom{{{n % 20 + 5}}}{{3}}", f"C_{{{n % 20 + 6}}}^{{2}}")),
    ),
}
DRESSINGS: Mapping[str, Dressing] = {**UNITS, **FORMS}


def make_dressings(
    golds: Mapping[str, str], seed: int, *, per_kind: int | None = None, kinds: Iterable[str] = DRESSINGS
) -> list[Pair]:
    """The right and the wrong pair of each gold and dressing; at most `per_kind` golds of a dressing, drawn by seed."""
    return [pair for kind in kinds for pair in _of_kind(kind, golds, seed, per_kind)]


def _of_kind(kind: str, golds: Mapping[str, str], seed: int, limit: int | None) -> list[Pair]:
    order = sorted(golds)
    random.Random(f"{seed} {kind}").shuffle(order)
    dressing, found = DRESSINGS[kind], list[Pair]()
    for gold in order:
        right, wrong = dressing.right(gold), dressing.wrong(gold)
        if right is not None and wrong is not None:
            found += [Pair(kind, True, *right, golds[gold]), Pair(kind, False, *wrong, golds[gold])]
        if limit is not None and len(found) >= 2 * limit:
            break
    return found
