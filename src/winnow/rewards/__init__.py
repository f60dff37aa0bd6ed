"""Rewards: pure functions (prompt, rollout) -> outcome. Importing this package registers winnow's rewards."""

from winnow.rewards import answers, gym, length, tags

__all__ = ["answers", "gym", "length", "tags"]
