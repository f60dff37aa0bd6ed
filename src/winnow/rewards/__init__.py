"""Rewards are pure functions: (prompt, rollout) -> outcome. Importing this package registers winnow's rewards."""

from winnow.rewards import answers, format, gym, instructions, last_integer

__all__ = ["answers", "format", "gym", "instructions", "last_integer"]
