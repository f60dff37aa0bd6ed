r"""Metamorphic pairs: real golds rewritten so that they must, or must not, be equal to themselves.

A kind is a function from a gold to its rewritings, which are equal to the gold, or different from it, by construction.
If the construction is wrong for a gold, the pair is kept, and LABEL_NOISE contains it with the reason.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

from winnow.rewards.extract import hashes, last_boxed
from winnow.rewards.math_equivalence.latex import brackets, split_top

LABELS = Path(__file__).parents[3] / "fixtures" / "math_labels.tsv"


@dataclass(frozen=True)
class Pair:
    kind: str
    equal: bool  # the label
    answer: str
    gold: str
    source: str  # file name of the gold

    @property
    def key(self) -> tuple[str, str, str]:
        return self.kind, self.answer, self.gold


def _gsm8k(row: dict[str, Any]) -> list[str]:
    return [(hashes(row["answer"]) or "").replace(",", "")]


def _olympiad(row: dict[str, Any]) -> list[str]:
    return [str(answer) for answer in row["answer"]]


FILES: dict[str, Callable[[dict[str, Any]], list[str]]] = {
    "math500": lambda row: [row["answer"]],
    "olympiad_bench": _olympiad,
    "minerva_math": lambda row: [last_boxed(row["answer"]) or ""],
    "aime24": lambda row: [str(row["answer"])],
    "amc23": lambda row: [str(row["answer"]).removesuffix(".0")],
    "gsm8k_test": _gsm8k,
    "gsm8k_train": _gsm8k,
}


def read_golds(folder: Path) -> dict[str, str]:
    """Every distinct gold with the first file that contains it, without dollar signs around mathematics."""
    found: dict[str, str] = {}
    for name, answers in FILES.items():
        for line in (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
            for gold in answers(json.loads(line)):
                found.setdefault(re.sub(r"(?<!\\)\$", "", gold).strip(), name)
    found.pop("", None)
    return found


def read_labels(path: Path = LABELS) -> list[Pair]:
    """The pairs that a person labelled before a grader was run on them: label, kind, gold, answer in each line."""
    lines = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    return [Pair(kind, label == "equal", answer, gold, "labelled by hand") for label, kind, gold, answer in lines]


def make_pairs(folder: Path) -> list[Pair]:
    """All pairs of all golds, each once."""
    pairs = {
        pair.key: pair
        for gold, source in read_golds(folder).items()
        for kind, (equal, rewrite) in KINDS.items()
        for answer in rewrite(gold)
        if (pair := Pair(kind, equal, answer, gold, source))
    }
    return list(pairs.values())


# ------------------------------------------------------------------------------------------ equal by construction

_INTEGER = re.compile(r"-?\d+")
_DECIMAL = re.compile(r"-?\d+\.\d+")
_FRACTION = re.compile(r"(-?)\\[dt]?frac\{(-?\d+)\}\{(\d+)\}")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_WORD = re.compile(r"\\text\{([a-zA-Z]+)\}")
_NOT_ONE_VALUE = re.compile(
    r"[=,]|\\pm|\\text|\\mbox|\\in(?![a-z])|\\cup|\\begin|\\[lg]e|[<>]|^[\[(]|^\\left[\[(]|\\\{|[a-z]{5}"
)


def identity(gold: str) -> Iterator[str]:
    yield gold


def dfrac(gold: str) -> Iterator[str]:
    if re.search(r"\\[dt]?frac", gold):
        for macro in (r"\\dfrac", r"\\tfrac", r"\\frac"):
            other = re.sub(r"\\[dt]?frac(?![a-z])", macro, gold)
            if other != gold:
                yield other


def left_right(gold: str) -> Iterator[str]:
    if re.search(r"[(\[]", gold) and r"\left" not in gold and "rt[" not in gold and r"\frac[" not in gold:
        sized = re.sub(r"(?<!\\)([(\[])", r"\\left\1", gold)
        yield re.sub(r"(?<!\\)([)\]])", r"\\right\1", sized)


def point_zero(gold: str) -> Iterator[str]:
    if _INTEGER.fullmatch(gold):
        yield f"{gold}.0"


def text(gold: str) -> Iterator[str]:
    word = _WORD.fullmatch(gold)
    if word:
        yield word[1]
    elif re.fullmatch(r"[a-zA-Z]+|-?\d+", gold):
        yield rf"\text{{{gold}}}"


def thousands(gold: str) -> Iterator[str]:
    if _INTEGER.fullmatch(gold) and abs(int(gold)) >= 1000 and not gold.startswith("0"):
        yield f"{int(gold):,}"
        yield f"{int(gold):,}".replace(",", "{,}")
        yield f"{int(gold):,}".replace(",", r",\!")


def slash(gold: str) -> Iterator[str]:
    if match := _FRACTION.fullmatch(gold):
        yield f"{match[1]}{match[2]}/{match[3]}".replace("--", "")
    elif match := re.fullmatch(r"\\d?frac\{([^{}]+)\}\{([^{}]+)\}", gold):
        yield f"({match[1]})/({match[2]})"


def unreduced(gold: str) -> Iterator[str]:
    if match := _FRACTION.fullmatch(gold):
        for factor in (2, 3, 10):
            yield rf"{match[1]}\frac{{{factor * int(match[2])}}}{{{factor * int(match[3])}}}"


def decimal(gold: str) -> Iterator[str]:
    """Write a terminating fraction as a decimal, or a decimal as a fraction."""
    if match := _FRACTION.fullmatch(gold):
        value = Fraction(int(match[1] + "1") * int(match[2]), int(match[3]))
        if 10**12 % value.denominator == 0:
            yield format(Decimal(value.numerator) / Decimal(value.denominator), "f")
    elif _DECIMAL.fullmatch(gold):
        value = Fraction(gold)
        yield rf"{'-' if value < 0 else ''}\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


def x_equals(gold: str) -> Iterator[str]:
    if not _NOT_ONE_VALUE.search(gold):
        letter = next(letter for letter in "xyzuvw" if letter not in gold)
        yield f"{letter} = {gold}"


# -------------------------------------------------------------------------------------- different by construction


def _with_last_number(gold: str, change: Callable[[Decimal], Decimal]) -> Iterator[str]:
    *_, last = [None, *_NUMBER.finditer(gold)]
    if last is not None and change(Decimal(last[0])) != Decimal(last[0]):
        yield gold[: last.start()] + format(change(Decimal(last[0])), "f") + gold[last.end() :]


def plus_one(gold: str) -> Iterator[str]:
    return _with_last_number(gold, lambda number: number + 1)


def times_ten(gold: str) -> Iterator[str]:
    return _with_last_number(gold, lambda number: number * 10)


def one_percent(gold: str) -> Iterator[str]:
    return _with_last_number(gold, lambda number: number * Decimal("1.01"))


def sign(gold: str) -> Iterator[str]:
    if not _NOT_ONE_VALUE.search(gold) and re.search(r"[1-9a-z]", gold):
        yield gold.removeprefix("-") if gold.startswith("-") else f"-{gold}"


def swap(gold: str) -> Iterator[str]:
    """Swap the first and last entry of a tuple, an interval or a column; for a list, of each tuple in turn."""
    if match := re.fullmatch(r"(\\begin\{pmatrix\})([^&]*)(\\end\{pmatrix\})", gold):
        inside = _exchanged(re.split(r"\\\\", match[2]), r" \\ ")
        yield from (match[1] + changed + match[3] for changed in inside)
        return
    tuples = split_top(re.sub(r"\\(?:left|right)(?![a-z])", "", gold))
    for i, one in enumerate(tuples):
        opening, inside, closing = brackets(one)
        if opening in ("(", "["):
            for changed in _exchanged(split_top(inside), ","):
                yield ",".join([*tuples[:i], opening + changed + closing, *tuples[i + 1 :]])


def _exchanged(entries: list[str], separator: str) -> Iterator[str]:
    if len(entries) > 1 and entries[0].strip() != entries[-1].strip():
        yield separator.join([entries[-1], *entries[1:-1], entries[0]])


def inverted(gold: str) -> Iterator[str]:
    match = _FRACTION.fullmatch(gold)
    if match and abs(int(match[2])) != int(match[3]) and int(match[2]) != 0:
        top, bottom = int(match[1] + "1") * int(match[2]), int(match[3])
        yield rf"{'-' if top < 0 else ''}\frac{{{bottom}}}{{{abs(top)}}}"


def bracket(gold: str) -> Iterator[str]:
    """Replace the brackets of a pair or an interval by each other kind."""
    plain = re.sub(r"\\(?:left|right)(?![a-z])", "", gold)
    opening, inside, closing = brackets(plain)
    if opening in ("(", "[") and len(split_top(inside)) == 2:
        for pair in ("()", "[]", "(]", "[)"):
            if pair != opening + closing:
                yield pair[0] + inside + pair[1]


Rewrite = Callable[[str], Iterator[str]]
EQUAL: tuple[Rewrite, ...] = (
    identity, dfrac, left_right, point_zero, text, thousands, slash, unreduced, decimal, x_equals,
)  # fmt: skip
DIFFERENT: tuple[Rewrite, ...] = (plus_one, times_ten, sign, swap, inverted, bracket, one_percent)
KINDS: dict[str, tuple[bool, Rewrite]] = {
    **{rewrite.__name__: (True, rewrite) for rewrite in EQUAL},
    **{rewrite.__name__: (False, rewrite) for rewrite in DIFFERENT},
}

# (kind, answer, gold) -> why the label is wrong. These are counted separately, and not removed.
_AT_INFINITY = "infinity is never a member, so this is the same set in a sloppy notation"
LABEL_NOISE: dict[tuple[str, str, str], str] = {
    ("bracket", r"(2,\infty]", r"(2,\infty)"): _AT_INFINITY,
    ("bracket", r"(5,\infty]", r"(5,\infty)"): _AT_INFINITY,
    ("bracket", r"[-\infty, 0]", r"(-\infty, 0]"): _AT_INFINITY,
    ("bracket", r"[-\infty,-5)", r"(-\infty,-5)"): _AT_INFINITY,
    ("times_ten", ".356250", ".35625"): "the number found starts after the point, where a last zero changes nothing",
}


def counts(pairs: Iterable[Pair]) -> dict[str, int]:
    """Pairs per kind, in the order of KINDS."""
    found = Counter(pair.kind for pair in pairs)
    return {kind: found[kind] for kind in KINDS}
