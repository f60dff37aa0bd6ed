"""Memory of an engine's forward passes on a transformers model in the trainer's process."""

from __future__ import annotations

from collections.abc import Iterator

from winnow.memory import footprint
from winnow.memory.demand import Demand
from winnow.memory.plan import MemoryPart

# Per logit: the logit, its quotient by the temperature, that minus the maximum, its exponential, and a padded copy
SAMPLED_BYTES = 24
SORTED_BYTES = 40  # with top_p < 1, in addition: the sorted logit, its index, and two cumulative sums
USE_NATIVE = ("use rollout.engine = 'native'",)  # the remedy for a copy of the weights
# The remedy where the policy is sharded, because every engine in the trainer's process then needs a copy
USE_VLLM = ("use rollout.engine = 'vllm', on separate devices or with sleep = true",)


def forward_parts(demand: Demand, *, read: int, rows: int) -> Iterator[MemoryPart]:
    """The memory of reading `read` tokens of prompts, and of sampling tokens from `rows` rows of logits."""
    model, device, remedy = demand.model, demand.device, fewer_at_once(demand)
    yield MemoryPart("reading prompts", footprint.forward_bytes(model, read), "generate", device, remedy)
    vocabulary = footprint.head(model).shape[0]
    each = SAMPLED_BYTES if demand.config.evaluate.top_p == 1 else SORTED_BYTES
    yield MemoryPart("sampling", rows * vocabulary * each, "generate", device, remedy)


def fewer_at_once(demand: Demand) -> tuple[str, ...]:
    """The remedy for memory that grows with the rollouts sampled at once."""
    return (f"lower rollout.max_rollouts_at_once, now {demand.config.rollout.max_rollouts_at_once}",)
