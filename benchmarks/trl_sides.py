"""What both sides of the comparison with TRL share: the setting of a point, what a step measured, the timed reward."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from winnow.records import Group, Prompt, Rollout


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One shape of a step. A reward of None is `token_hash`."""

    prompts: int
    rollouts: int  # n, per prompt
    keep: int | None = None  # m of PODS, winnow's side only; None trains on all n
    max_new_tokens: int
    fixed: bool = False  # every rollout is exactly max_new_tokens long
    reward: str | None = None
    learning_rate: float = 1e-6  # so small that both sides keep sampling from the base policy
    eps: float = 1e-8
    problems: int = 4096  # of the default task; as many as `prompts` gives every step the same ones

    @property
    def total(self) -> int:
        return self.prompts * self.rollouts

    @property
    def lengths(self) -> str:
        return f"{self.max_new_tokens} exactly" if self.fixed else f"natural, at most {self.max_new_tokens}"

    def but(self, **changes: Any) -> Setting:
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One training step of one side."""

    seconds: float
    phases: dict[str, float]  # seconds; they add up to `seconds`
    reward: float
    tokens: float  # completion tokens sampled
    length_mean: float
    length_max: float
    trained: int  # rollouts that reached the update


def token_hash(tokens: Sequence[int] | np.ndarray) -> float:
    """In [0, 1) by steps of 2^-16, exact in TRL's float32; microseconds to compute, and hardly ever flat in a group."""
    return (zlib.crc32(np.asarray(tokens, dtype=np.int64).tobytes()) >> 16) / 2**16


def hash_reward(prompt: Prompt, rollout: Rollout) -> float:
    """`token_hash` as winnow's reward."""
    return token_hash(rollout.tokens)


def completions(groups: Sequence[Group]) -> list[list[int]]:
    """Every rollout's tokens, group after group: the order in which TRL keeps them."""
    return [rollout.tokens.tolist() for group in groups for rollout in group.rollouts]
