"""Rewards are pure functions: (prompt, rollout) -> outcome. Importing this package registers winnow's rewards."""

from winnow.rewards import answers, gym, length, pattern, tags

__all__ = ["answers", "gym", "length", "pattern", "tags"]
