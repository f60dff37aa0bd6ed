"""Rewards for short completions. They do not read the answer: use one as a part beside a reward that does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from winnow.errors import ConfigError
from winnow.records import Outcome, Prompt, Rollout
from winnow.registry import register


def _check(options: Mapping[str, Any]) -> None:
    limit, slope = options["limit_tokens"], options["slope_tokens"]
    if not 0 <= slope <= limit:
        raise ConfigError(
            f"slope_tokens is {slope} and limit_tokens {limit}",
            remedy="set 0 <= slope_tokens <= limit_tokens",
            key="slope_tokens",
            code="config.combination",
        )


@register("reward", example=lambda gold: str(gold), check=_check)
def length(prompt: Prompt, rollout: Rollout, *, limit_tokens: int = 1024, slope_tokens: int = 256) -> Outcome:
    """1 up to limit - slope tokens, falling linearly to 0 at the limit, and 0 beyond.

    It is `overlong` plus 1, so that rewards stay non-negative. Without a slope, it is 1 within the limit. Tokens are
    counted as sampled, the stop token included.
    """
    return _scored(1.0, _penalty(rollout, limit_tokens, slope_tokens))


@register(
    "reward",
    example=lambda gold: str(gold),
    best=0.0,
    check=_check,
    instead_of={"soft_overlong_punishment": "DAPO's soft overlong punishment, with slope_tokens for its cache"},
)
def overlong(prompt: Prompt, rollout: Rollout, *, limit_tokens: int = 1024, slope_tokens: int = 256) -> Outcome:
    """0 up to limit - slope tokens, falling linearly to -1 at the limit, and -1 beyond.

    The soft overlong punishment of DAPO (Yu et al., 2025, arXiv 2503.14476, eq. 13): the limit is its L_max, the slope
    its L_cache (20480 and 4096 there). A limit above rollout.max_new_tokens never punishes in full. Tokens are counted
    as sampled, the stop token included.
    """
    return _scored(0.0, _penalty(rollout, limit_tokens, slope_tokens))


def _penalty(rollout: Rollout, limit_tokens: int, slope_tokens: int) -> float:
    over = len(rollout.tokens) - (limit_tokens - slope_tokens)
    return 0.0 if over <= 0 else max(-1.0, -over / slope_tokens) if slope_tokens else -1.0


def _scored(best: float, penalty: float) -> Outcome:
    correct = penalty == 0.0
    return Outcome(reward=best + penalty, correct=correct, kind="correct" if correct else "wrong")
