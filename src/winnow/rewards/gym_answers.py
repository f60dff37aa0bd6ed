"""Which answers and items of reasoning-gym's data sets are well-formed: only those are sent to its scorers.

Nine of its scorers execute the answer (`eval`, or sympy's `parse_expr`), seven hang on a tower of powers, some reward
`nan` or any text at all. The nine, and those without a gold, have a grammar here. For the others, the item's gold
determines which words and marks an answer may have. Five scorers also execute a field of the item, and an item may
come from a file, so these fields have a grammar too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

LONGEST = 4096
LONGEST_FIELD = 1 << 16  # of an item, characters
_NUMBER_MARKS = frozenset("+-.,/ \t\n")
_CLOSED = ({"true", "false"}, {"yes", "no"}, {"even", "odd"})
_ARITHMETIC = r"(?!.*(?:\*\s*\*|/\s*/|\d{7}))[\d\s+\-*/()]+"
_POWER = r"\*\*\s*(?:\d{1,2}(?!\d)|\(\s*-?\s*\d{1,2}(?:\s*/\s*\d{1,2})?\s*\))(?!\s*\*\*)"
_LETTER = r"[a-zA-Z](?![a-zA-Z])"
_EXPONENTIAL = rf"E\s*\*\*\s*(?:{_LETTER}|\((?:[\d\s+\-/]|\*(?!\*)|{_LETTER})*\))(?!\s*\*\*)"
_FUNCTION = r"(?:sin|cos|tan|sec|csc|cot|exp|log|sqrt|asin|acos|atan|sinh|cosh|tanh|pi)(?![a-zA-Z])"
_ALGEBRA = (
    rf"(?:\s|{_EXPONENTIAL}|{_POWER}|\*(?!\*)|[-+/()]|\d{{1,64}}(?!\d)(?:\.\d{{1,64}}(?!\d))?|{_FUNCTION}|{_LETTER})+"
)
_GRAMMARS: Mapping[str, re.Pattern[str]] = {
    name: re.compile(pattern, re.ASCII if name != "propositional_logic" else 0)
    for name, pattern in {
        "binary_matrix": r"\d+(?:\s+\d+)*",
        "n_queens": r"[Q_](?:\s+[Q_])*",
        "spiral_matrix": r"-?\d+(?:\s+-?\d+)*",
        "string_insertion": r"[A-E]+",
        "countdown": _ARITHMETIC,
        "puzzle24": _ARITHMETIC,
        "polynomial_multiplication": _ALGEBRA,
        "simple_integration": _ALGEBRA,
        "intermediate_integration": _ALGEBRA,
        "propositional_logic": r"[A-Z\s()∧∨¬→↔]+",
        "rubiks_cube": r"[FRUBLDMESfrubldxyz][2']{0,2}(?:\s+[FRUBLDMESfrubldxyz][2']{0,2})*",
        "rush_hour": r"[A-Z][+-]\d(?:\s+[A-Z][+-]\d)*",
    }.items()
}
_JSON = frozenset({"boxnet", "graph_color"})
_SHIFTED = r"(?:0x[\da-f]{1,4}(?![\da-f])|(?:<<|>>)\s*0x[0-3](?![\da-f])|\*(?!\*)|[-+()\s])+"
_NUMBER = r"['\"]?-?\d+(?:\.\d+)?(?:e[+-]?\d+)?['\"]?"
_INTEGRAL = {"metadata.integrand": _ALGEBRA, "metadata.variable": "[a-zA-Z]"}
_ITEMS: Mapping[str, Mapping[str, re.Pattern[str]]] = {
    name: {field: re.compile(pattern, re.ASCII) for field, pattern in fields.items()}
    for name, fields in {
        "bitwise_arithmetic": {"metadata.problem": _SHIFTED},
        "number_sorting": {"answer": rf"\[\s*(?:{_NUMBER}(?:\s*,\s*{_NUMBER})*)?\s*\]"},
        "polynomial_multiplication": {"answer": _ALGEBRA},
        "simple_integration": _INTEGRAL,
        "intermediate_integration": _INTEGRAL,
        "composite": {"metadata.source_dataset": r"(?!)"},  # the item chooses the scorer: no item is accepted
    }.items()
}


def foreign_field(dataset: str, entry: Mapping[str, Any]) -> str | None:
    """The first field that the data set's scorer executes and its generator would not have made; None without one."""
    for field, pattern in _ITEMS.get(dataset, {}).items():
        text: Any = entry
        for name in field.split("."):
            text = text.get(name) if isinstance(text, Mapping) else None
        if not isinstance(text, str) or len(text) > LONGEST_FIELD or pattern.fullmatch(text) is None:
            return field
    return None


def admits(dataset: str, entry: Mapping[str, Any], answer: str) -> bool:
    """Whether `answer` has the form of an answer to this item."""
    gold = entry["answer"]
    longest = max(LONGEST, 2 * len(gold)) if isinstance(gold, str) else LONGEST
    if not answer.strip() or len(answer) > longest or _unprintable(answer):
        return False
    if dataset in _GRAMMARS:
        return _GRAMMARS[dataset].fullmatch(answer.strip()) is not None
    if dataset in _JSON:
        return _is_json(answer)
    return isinstance(gold, str) and _like(answer, gold, str(entry["question"]))


def _like(answer: str, gold: str, question: str) -> bool:
    """Whether it is at most about four golds long, has only the marks of gold and numbers, and passes `_words_like`."""
    if len(answer) > 4 * len(gold) + 64 or "__" in answer:
        return False
    return _marks(answer) <= _marks(gold) | _NUMBER_MARKS and _words_like(answer, gold, question)


def _words_like(answer: str, gold: str, question: str) -> bool:
    """Whether the words of an answer are acceptable.

    Accepted are no words where the gold has none, and a word of a closed pair (yes, no) where the gold is one. Where
    the gold has a word of three or more letters that the question lacks, any words are accepted. Else only the words of
    gold and question are accepted.
    """
    mine, theirs = _words(answer), _words(gold)
    for closed in _CLOSED:
        if theirs and theirs <= closed:
            return bool(mine) and mine <= closed
    given = _words(question)
    if any(len(word) > 2 for word in theirs - given):
        return True
    return not mine if not theirs else mine <= theirs | given


def _words(text: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[^\W\d_]+", text)}


def _marks(text: str) -> frozenset[str]:
    return frozenset(character for character in text if not character.isalnum())


def _unprintable(text: str) -> bool:
    return any(not character.isprintable() and character not in "\n\t" for character in text)


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), (dict, list))
    except (ValueError, RecursionError):
        return False
