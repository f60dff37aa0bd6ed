r"""The `math` grader: mathematical equality, decided exactly where possible and by computer algebra elsewhere.

readable and not empty -> spelling, units, words, bases -> elements -> exact evaluation -> math-verify, checked

Some decisions are debatable; test_math_classes.py has a case of each. Accepted are fractions in any terms, exact
decimals, functions as programs write them (`exp(16)`), `3.8e5`, and `2I` for `2i`. So are a name on the left of a
value, an omitted unit, and both signs of `\pm` as a list in any order. Refused are rounded values (without a
tolerance), another or a converted unit, an added percent sign, letters in another case, and a bare `\log` for a log
with a base. So are other brackets (but a set for a bare list is accepted), a condition for a set, and prose.

Numbers side by side are separate: `7 8` is not 78, `-5 -3` is not -8, `5 hours 30 minutes` is not 530. Blanks inside a
number separate groups of three digits. A ratio is not a fraction, and two ratios are compared part by part: `1:2` may
be odds, which are 1/3, and `2:30` may be a time. A text that is too large for `algebra.py` is compared by the exact
rules only.
"""

from __future__ import annotations

from winnow.rewards.math_equivalence import algebra, exact
from winnow.rewards.math_equivalence.latex import tidied


def equal(answer: str, gold: str) -> bool:
    """True when `answer` means `gold`. Empty or oversized text equals nothing.

    The exact rules take milliseconds, and the input of computer algebra is bounded. Raises MemoryError.
    """
    texts = tidied(answer, gold)
    return texts is not None and exact.compare(*texts, algebra.equal) is True
