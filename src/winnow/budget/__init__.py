"""The rollout budget as functions of numpy arrays: allocation, rounds of sampling, selection, pass rates.

    from winnow.budget import allocation, pass_rates, rounds, selection

It imports numpy and the standard library alone, so that any trainer can use it (docs/budget-library.md). winnow's
members of the families `allocator`, `round` and `selector` are these functions with checked options. G is the number
of prompts of a step, and N the number of rollouts of one prompt. Nothing here reads a clock or draws a random number:
where ties have to be broken, the caller passes numbers that break them. An argument that does not fit raises
ValueError.
"""

from winnow.budget import allocation, pass_rates, rounds, selection

__all__ = ["allocation", "pass_rates", "rounds", "selection"]
