"""Rewards are pure functions: (prompt, rollout) -> outcome."""
