"""A reward for short answers of models that follow instructions: one integer, in a response that ends by itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from winnow.errors import ConfigError
from winnow.records import Outcome, Prompt, Rollout
from winnow.registry import register
from winnow.rewards.answers import to_fraction
from winnow.rewards.extract import last_number
from winnow.rewards.graders import golds
from winnow.rewards.outcomes import judged


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
    """1 if the last number is the integer of the gold and the response ended by itself, plus `ended` for any response
    that did.

    A response that max_new_tokens cut off is wrong: its last number is a matter of luck. Commas between thousands are
    removed, and a sign counts if it follows no letter or digit (3-5 ends with 5). Decimals, fractions and powers are
    wrong: `2.5` does not end with 5. The part `ended` gives a policy that never stops something to learn from; without
    it, set 0. Parts: answer, ended.
    """
    by_itself = rollout.finish == "stop"
    last = last_number(rollout.text)
    parts = {"answer": 0.0, "ended": ended * by_itself}
    if last is None:
        return Outcome(reward=parts["ended"], correct=False, kind="unparsable", parts=parts)
    answer = last.replace(",", "").replace("$", "").removeprefix("+")
    correct = by_itself and answer in [str(to_fraction(gold)) for gold in golds(prompt.answer)]
    parts["answer"] = float(correct)
    return judged(correct, sum(parts.values()), parts=parts, answer=answer)
