"""The `math` grader: mathematically the same answer, decided exactly where possible and by computer algebra where not.

readable and not empty -> spelling, units, words, bases -> parts -> exact evaluation -> math-verify, doubted
"""

from __future__ import annotations

from winnow.rewards import algebra, exact
from winnow.rewards.latex import readable, tidy


def equal(answer: str, gold: str) -> bool:
    """True when `answer` means `gold`. Empty or oversized text equals nothing.

    The exact rules take milliseconds; computer algebra takes what the worker's wall clock allows. Raises MemoryError.
    """
    if not (readable(answer) and readable(gold)):
        return False
    return exact.compare(tidy(answer), tidy(gold), algebra.equal) is True
