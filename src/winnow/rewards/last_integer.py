"""A reward for short answers of models that follow instructions: one integer, in a response that ends by itself."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from winnow.errors import ConfigError
from winnow.records import Outcome, Prompt, Rollout
from winnow.registry import register
from winnow.rewards.graders import golds
from winnow.rewards.outcomes import judged

_INTEGER = re.compile(r"(?<!\w)-?\d+", re.ASCII)
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))", re.ASCII)


def _check_ended(options: Mapping[str, Any]) -> None:
    if not 0 <= options["ended"] < 1 or not math.isfinite(options["ended"]):
        raise ConfigError(
            f"ended is {options['ended']!r}",
            remedy="set it to a number of at least 0 and below 1, the reward of a right answer",
            key="ended",
            code="config.value",
        )


@register("reward", example=lambda gold: f"The answer is {gold}.", best=1.1, check=_check_ended)
def last_integer(prompt: Prompt, rollout: Rollout, *, ended: float = 0.1) -> Outcome:
    """1 if the last integer is the gold and the response ended by itself, plus `ended` for any response that did.

    A response that max_new_tokens cut off is wrong: its last integer is a matter of luck. Commas between thousands are
    removed, and a sign counts if it follows no letter or digit (3-5 ends with 5). The part `ended` gives a policy
    that never stops something to learn from; without it, set 0. Parts: answer, ended.
    """
    by_itself = rollout.finish == "stop"
    numbers = _INTEGER.findall(_THOUSANDS.sub("", rollout.text))
    parts = {"answer": 0.0, "ended": ended * by_itself}
    if not numbers:
        return Outcome(reward=parts["ended"], correct=False, kind="unparsable", parts=parts)
    correct = by_itself and numbers[-1] in [gold.strip() for gold in golds(prompt.answer)]
    parts["answer"] = float(correct)
    return judged(correct, sum(parts.values()), parts=parts, answer=numbers[-1])
