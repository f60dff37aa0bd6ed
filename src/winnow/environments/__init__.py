"""Environments answer the policy turn by turn, and return the reward of a rollout"""

from winnow.environments import guess_number

__all__ = ["guess_number"]
