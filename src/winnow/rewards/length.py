"""A reward for stopping in time. It does not read the answer: use it as a part beside a reward that does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from winnow.errors import ConfigError
from winnow.records import Outcome, Prompt, Rollout
from winnow.registry import register


def _check(options: Mapping[str, Any]) -> None:
    limit, slope = options["limit_tokens"], options["slope_tokens"]
    if not 0 <= slope <= limit:
        raise ConfigError(f"slope_tokens is {slope} and limit_tokens {limit}: it must be 0 <= slope <= limit")


@register("reward", example=lambda gold: str(gold), check=_check)
def length(prompt: Prompt, rollout: Rollout, *, limit_tokens: int = 1024, slope_tokens: int = 256) -> Outcome:
    """1 up to limit - slope tokens, falling in a straight line to 0 at the limit, and 0 beyond.

    The soft overlong punishment of DAPO (Yu et al., 2025, arXiv 2503.14476, eq. 13) plus 1, so that rewards stay
    non-negative: with weight w and a constant -w elsewhere it is theirs. Without a slope: 1 within the limit.
    Tokens are counted as sampled, the stop token included.
    """
    over = len(rollout.tokens) - (limit_tokens - slope_tokens)
    score = 1.0 if over <= 0 else max(0.0, 1.0 - over / slope_tokens) if slope_tokens else 0.0
    return Outcome(reward=score, correct=score == 1.0, kind="correct" if score == 1.0 else "wrong")
