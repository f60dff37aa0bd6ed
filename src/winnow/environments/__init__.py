"""Environments answer the policy turn by turn, and return the reward of a rollout"""

from winnow.environments import calculator, guess_number, verifiers

__all__ = ["calculator", "guess_number", "verifiers"]
