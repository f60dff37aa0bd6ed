"""A reward for text of a certain form. It does not compare the answer: use it as a part beside a reward that does."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from winnow.errors import ConfigError
from winnow.records import Outcome, Prompt, Rollout
from winnow.registry import register


def _check(options: Mapping[str, Any]) -> None:
    pattern = options["pattern"]
    if not pattern:
        raise ConfigError(
            "pattern is empty: every text would match it",
            remedy="set it to a regular expression",
            key="pattern",
            code="config.value",
        )
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ConfigError(
            f"pattern is {pattern!r}; it is not a regular expression: {error}",
            remedy="correct it as Python's `re` requires",
            key="pattern",
            code="config.value",
        ) from error


@register(
    "reward",
    "pattern",
    example=lambda gold: f"Answer: {gold}.",
    example_options={"pattern": r"Answer: .+\."},
    check=_check,
    instead_of={"regex": "1 where a regular expression matches", "regexp": "1 where a regular expression matches"},
)
def matches(prompt: Prompt, rollout: Rollout, *, pattern: str, whole: bool = False) -> Outcome:
    r"""1 where the regular expression `pattern` (Python's `re`) matches anywhere in the completion, else 0.

    `whole`: the completion has to match from its first character to its last. Upper and lower case differ and `.` does
    not match a line break, unless the pattern begins with `(?i)` or `(?s)`. The text is the completion alone, as it
    was written. A pattern such as `(a+)+b` can take exponential time on some texts: the verdict then fails after
    verify.timeout_seconds, provided that a worker judges it (verify.workers is not 0).
    """
    matched = (re.fullmatch if whole else re.search)(pattern, rollout.text) is not None
    return Outcome(reward=float(matched), correct=matched, kind="correct" if matched else "wrong")
