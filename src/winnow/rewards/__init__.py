"""Rewards: pure functions (prompt, rollout) -> outcome. Importing this package registers winnow's own."""

from winnow.rewards import answers, gym, length, tags

__all__ = ["answers", "gym", "length", "tags"]
