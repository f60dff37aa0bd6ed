r"""The `math` grader: mathematically the same answer, decided exactly where possible and by computer algebra where not.

readable and not empty -> spelling, units, words, bases -> elements -> exact evaluation -> math-verify, checked

Decisions where a person might disagree (test_math_classes.py has a case of each). Accepted: fractions
in any terms and exact decimals, `exp(16)` and other functions as programs write them, `3.8e5`, `2I` for `2i`, a name on
the left of a value, a unit left out, both signs of `\pm` as a list in any order. Refused: rounded values (unless a
tolerance is given), another unit or one converted, an added percent sign, letters in another case, a bare `\log` for a
log with a base, other brackets (a set for a bare list is accepted), a condition for a set, prose.

Numbers side by side are separate: `7 8` is not 78, `-5 -3` is not -8, `5 hours 30 minutes` is not 530. Blanks inside a
number separate groups of three digits. A ratio is not a fraction, and two ratios are equal part by part: `1:2` may be
odds, which are 1/3, and `2:30` may be a time. A text beyond the bounds of `bounds.py` is equal only to what the exact
rules accept.
"""

from __future__ import annotations

from winnow.rewards.math_equivalence import algebra, exact
from winnow.rewards.math_equivalence.latex import tidied


def equal(answer: str, gold: str) -> bool:
    """True when `answer` means `gold`. Empty or oversized text equals nothing.

    The exact rules take milliseconds; what computer algebra is given is bounded. Raises MemoryError.
    """
    texts = tidied(answer, gold)
    return texts is not None and exact.compare(*texts, algebra.equal) is True
