"""The graders by name, (answer, gold) -> bool, and how golds are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal

from winnow.records import Outcome
from winnow.rewards.extract import unwrap_box
from winnow.rewards.math_equivalence import algebra, grader, strict
from winnow.rewards.math_equivalence.latex import MAX_CHARACTERS
from winnow.rewards.outcomes import judged

Grader = Callable[[str, str], bool]
GraderName = Literal["strict", "math"]
GRADERS: Mapping[str, Grader] = MappingProxyType({"strict": strict.equal, "math": grader.equal})


def check_grader(options: Mapping[str, Any]) -> None:
    """Raise ConfigError for the grader "math" if math-verify is not installed."""
    if options.get("grader") == "math":
        algebra.require()


def warm_grader(options: Mapping[str, Any]) -> None:
    """Import computer algebra before the first verdict, if `grader` is "math"."""
    if options.get("grader") == "math":
        algebra.warm()


def golds(answer: Any) -> list[str]:
    """The accepted answers as text: one for a number or a text, several for a list. A gold in a box is unwrapped."""
    several = answer if isinstance(answer, (list, tuple)) else [answer]
    return [unwrap_box(gold if isinstance(gold, str) else str(gold)) for gold in several]


def verdict(answer: str | None, gold: Any, equal: Grader, **parts: float) -> Outcome:
    """1 for an answer that equals any gold, 0 for another, unparsable without one; `parts` are logged in addition."""
    if answer is None or not answer.strip() or len(answer) > MAX_CHARACTERS:
        return unparsable(**parts)
    correct = any(equal(answer, accepted) for accepted in golds(gold))
    return judged(correct, parts={"answer": float(correct), **parts}, answer=answer.strip())


def unparsable(**parts: float) -> Outcome:
    """Reward 0: no answer could be read."""
    return Outcome(reward=0.0, correct=False, kind="unparsable", parts={"answer": 0.0, **parts})
