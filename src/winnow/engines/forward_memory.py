"""Memory of the forward passes that an engine makes on a transformers model in the trainer's process."""

from __future__ import annotations

from collections.abc import Iterator

from winnow.memory import footprint
from winnow.memory.demand import Demand
from winnow.memory.plan import MemoryPart

SAMPLED_BYTES = 24  # per logit: itself, by the temperature, less the largest, its probability, that in whole blocks
SORTED_BYTES = 40  # where top_p cuts: also sorted, its place, and the sum of the probabilities before it, twice
USE_NATIVE = ("use rollout.engine = 'native'",)  # the remedy for a copy of the weights
# And where the policy is sharded, so that every engine has a copy.
USE_VLLM = ("use rollout.engine = 'vllm', on devices of its own or with sleep = true",)


def forward_parts(demand: Demand, *, read: int, rows: int) -> Iterator[MemoryPart]:
    """What is held while `read` tokens of prompts are read, and while `rows` rows of logits become tokens."""
    model, device, remedy = demand.model, demand.device, fewer_at_once(demand)
    yield MemoryPart("reading prompts", footprint.forward_bytes(model, read), "generate", device, remedy)
    vocabulary = footprint.head(model).shape[0]
    each = SAMPLED_BYTES if demand.config.evaluate.top_p == 1 else SORTED_BYTES
    yield MemoryPart("sampling", rows * vocabulary * each, "generate", device, remedy)


def fewer_at_once(demand: Demand) -> tuple[str, ...]:
    """The remedy for what grows with the rollouts that are sampled side by side."""
    return (f"lower rollout.max_rollouts_at_once, now {demand.config.rollout.max_rollouts_at_once}",)
