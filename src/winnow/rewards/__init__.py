"""Rewards: pure functions (prompt, rollout) -> outcome. Importing this package registers winnow's own."""

from winnow.rewards import answers, tags

__all__ = ["answers", "tags"]
