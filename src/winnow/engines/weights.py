"""The weights that an engine samples with: its own copy, their version, and the memory of a pass through them.

The weights after n steps have version n. Every rollout contains the version of the weights that sampled it. Stale
weights are refused when an engine loads weights and when a step trains on rollouts.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from winnow.engines.base import Tolerance
from winnow.errors import EngineError
from winnow.memory import footprint
from winnow.memory.demand import Demand
from winnow.memory.plan import MemoryPart
from winnow.records import Group

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def check_newer(version: int, *, than: int) -> None:
    """Raise EngineError for weights that are not newer than those of the engine."""
    if version <= than:
        raise EngineError(
            f"the engine already has weights of version {than}, and version {version} is not newer",
            remedy="load each step's weights once, in the order of the steps",
            code="engine.stale_weights",
        )


def check_names(weights: Collection[str], *, known: Collection[str], trained: Collection[str]) -> None:
    """Raise EngineError unless all weights are `known` to the model, and all `trained` ones are among them."""
    if unknown := [name for name in weights if name not in known]:
        raise EngineError(
            f"the engine's model has no weight {unknown[0]!r} ({len(unknown)} such names)",
            remedy="pass the weights of the policy that the engine was made for",
            code="engine.contract",
        )
    if missing := [name for name in trained if name not in weights]:
        raise EngineError(
            f"the weights lack {missing[0]!r} ({len(missing)} such names)",
            remedy="pass every trained weight: any other would stay stale",
            code="engine.contract",
        )


def check_fresh(groups: Sequence[Group], step: int) -> None:
    """Raise EngineError for rollouts of other weights than this step's: their importance ratios would be wrong."""
    for rollout in (rollout for group in groups for rollout in group.rollouts):
        if rollout.version != step:
            raise EngineError(
                f"step {step} received a rollout sampled with the weights of version {rollout.version}",
                remedy="have the engine sample with the weights that it loaded last, and set `version` of each rollout",
                code="engine.stale_weights",
            )


# By the precision of an engine's weights. The gaps measured on one model (docs/engines.md) are smaller: in float32 a
# mean of 2.4e-7 and a tail of 5e-6, in float16 3e-4 and 0.01, in bfloat16 0.002 and 0.08. The margin is for larger
# models.
_EXACT = Tolerance(mean=1e-4, tail=1e-3)
TOLERANCES = {
    torch.float64: _EXACT,
    torch.float32: _EXACT,
    torch.float16: Tolerance(mean=2e-3, tail=0.05),
    torch.bfloat16: Tolerance(mean=0.02, tail=0.3),
}


class PolicyCopy:
    """A copy of the policy's module that loads new weights."""

    def __init__(self, policy: PreTrainedModel, dtype: torch.dtype | None = None) -> None:
        """`dtype` is the precision of the copy; None: the policy's."""
        self.model: PreTrainedModel = copy.deepcopy(policy).eval()
        self._trained = [name for name, weight in self.model.named_parameters() if weight.requires_grad]
        self.model.requires_grad_(False)
        if dtype is not None:
            # Parameters only: buffers such as rotary frequencies keep their precision, or late positions would be off
            for parameter in self.model.parameters():
                parameter.data = parameter.data.to(dtype)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Copy weights by name, in place. Raises EngineError for an unknown name and a missing trained parameter."""
        state = self.model.state_dict()
        check_names(weights, known=state, trained=self._trained)
        with torch.no_grad():
            for name, weight in weights.items():
                state[name].copy_(weight)


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
