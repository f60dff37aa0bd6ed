"""Rewards: pure functions (prompt, rollout) -> outcome. Importing this package registers winnow's own."""

from winnow.rewards import answers, length, tags

__all__ = ["answers", "length", "tags"]
