r"""The `math` grader: mathematically the same answer, decided exactly where possible and by computer algebra where not.

readable and not empty -> spelling, units, words, bases -> elements -> exact evaluation -> math-verify, checked

Decisions where a person might disagree (test_math_classes.py has a case of each). Accepted: fractions
in any terms and exact decimals, `exp(16)` and other functions as programs write them, `3.8e5`, `2I` for `2i`, a name on
the left of a value, a unit left out, both signs of `\pm` as a list in any order. Refused: rounded values (unless a
tolerance is given), another unit or one converted, an added percent sign, letters in another case, a bare `\log` for a
log with a base, other brackets, a condition for a set, prose.
"""

from __future__ import annotations

from winnow.rewards.math_equivalence import algebra, exact
from winnow.rewards.math_equivalence.latex import tidied


def equal(answer: str, gold: str) -> bool:
    """True when `answer` means `gold`. Empty or oversized text equals nothing.

    The exact rules take milliseconds; computer algebra takes what the worker's wall clock allows. Raises MemoryError.
    """
    texts = tidied(answer, gold)
    return texts is not None and exact.compare(*texts, algebra.equal) is True
