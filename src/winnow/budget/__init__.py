"""The rollout budget as functions of numpy arrays: prompts, counts, rounds, cuts and kept rollouts.

    from winnow.budget import allocation, allocators, cuts, gradients, pass_rates, rounds, sampling, selection

It imports numpy and the standard library alone, so that any trainer can use it (docs/spending-the-budget.md). winnow's
members of the families `sampler`, `allocator`, `round`, `cut` and `selector` are these functions; the range of an
option is in its annotation.
G is the number of prompts of a step, and N the number of rollouts of one prompt. Nothing here reads a clock, or draws a
random number of its own: the caller passes numbers that break ties, or a stream. An argument that does not fit raises
ValueError.
"""

from winnow.budget import allocation, allocators, cuts, gradients, pass_rates, rounds, sampling, selection

__all__ = ["allocation", "allocators", "cuts", "gradients", "pass_rates", "rounds", "sampling", "selection"]
