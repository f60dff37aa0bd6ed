"""Rewards are pure functions: (prompt, rollout) -> outcome. Importing this package registers winnow's rewards."""

from winnow.rewards import answers, format, gym, last_integer, verifiable

__all__ = ["answers", "format", "gym", "last_integer", "verifiable"]
