"""Environments answer the policy turn by turn, and return the reward of a rollout."""
