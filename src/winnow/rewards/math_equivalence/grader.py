r"""The `math` grader: mathematical equality, decided exactly where possible and by computer algebra elsewhere.

readable and not empty -> options, times of day -> notations, dressings -> for each reading of a text:
    spelling, units, words, bases, signs -> elements -> exact evaluation -> math-verify, checked

Some decisions are debatable; test_math_classes.py has a case of each. Accepted are fractions in any terms, exact
decimals, functions as programs write them (`exp(16)`), `3.8e5`, and `2I` for `2i`. So are a name on the left of a
value, an omitted unit, and both signs of `\pm` as a list in any order. Refused are rounded values (without a
tolerance), another or a converted unit, an added percent sign, letters in another case, and a bare `\log` for a log
with a base. So are other brackets (but a set for a bare list is accepted), a condition for a set, and prose. The files
signs.py, names.py, sets.py, notations.py, dressings.py, choices.py and times.py have the bounds of what else is read.

Numbers side by side are separate: `7 8` is not 78, `-5 -3` is not -8, `5 hours 30 minutes` is not 530. Blanks inside a
number separate groups of three digits. A ratio is not a fraction, and two ratios are compared part by part: `1:2` may
be odds, which are 1/3, and `2:30` may be a time. A text that is too large for `algebra.py` is compared by the exact
rules only.
"""

from __future__ import annotations

import re

from winnow.rewards.math_equivalence import algebra, choices, dressings, exact, notations, times
from winnow.rewards.math_equivalence.latex import tidied
from winnow.rewards.math_equivalence.names import same_word, with_one_parameter, without_tuples_of_names
from winnow.rewards.math_equivalence.sets import as_intervals

_DRESSED = re.compile(r"[a-zA-Z*=:]")  # a text of digits and signs is compared as it is


def equal(answer: str, gold: str) -> bool:
    """True when `answer` means `gold`. Empty or oversized text equals nothing.

    The exact rules take milliseconds, and the input of computer algebra is bounded. Raises MemoryError.
    """
    texts = tidied(answer, gold)
    if texts is None:
        return False
    if not any(map(_DRESSED.search, texts)):
        return _same(*texts)
    option = choices.letter_and_value(texts[1], gold)
    if option is not None:
        letter, value = option
        return choices.compare(texts[0], letter, answer) is True or _undressed(texts[0], value)
    whole = (same_word(answer, gold), choices.compare(*texts, answer), times.compare(*texts))
    verdict = next((known for known in whole if known is not None), None)
    return _undressed(*texts) if verdict is None else verdict


def _undressed(answer: str, gold: str) -> bool:
    """True when the texts are equal in one notation, without what may be written around a value."""
    answer, gold = with_one_parameter(answer, dressings.with_noun(gold, answer))
    texts = without_tuples_of_names(*notations.common(answer, gold))
    if texts is None:
        return False
    answer, gold = (as_intervals(dressings.before_approximation(text)) for text in texts)
    mine, theirs = dressings.readings(answer, _same), dressings.readings(gold, _same)
    pairs = [(a, g) for g in theirs for a in mine]
    if all(map(dressings.is_named, (answer, gold))):
        pairs = [pair for pair in pairs if all("=" in text for text in pair)]  # `a+b=5` is not `c+d=5`
    else:
        pairs += [(dressings.value(answer, _same), g) for g in theirs if "=" not in g]
    return any(_same(*pair) for pair in dict.fromkeys(pairs))


def _same(answer: str, gold: str) -> bool:
    return exact.compare(answer, gold, algebra.equal) is True
