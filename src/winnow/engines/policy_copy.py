"""The weights that an engine samples with: its own copy of the policy, and the memory of a pass through it and of its
cache of keys and values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from winnow.engines.base import Tolerance
from winnow.engines.freshness import check_names
from winnow.memory import footprint
from winnow.memory.demand import Demand
from winnow.memory.plan import MemoryPart

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from winnow.models.meta import MetaModel


# By the precision of an engine's weights: in 16 bits about twice the gaps of SmolLM2-135M, which are up to 22 times
# those of the bundled policy (docs/engines.md). A format rounds logits, which are larger in larger models, and a token
# that is almost certain hardly changes: so the gaps of a model depend on its logits and its entropy too.
_EXACT = Tolerance(mean=1e-4, tail=1e-3)
TOLERANCES = {
    torch.float64: _EXACT,
    torch.float32: _EXACT,
    torch.float16: Tolerance(mean=0.01, tail=0.1),  # 3 bits more than bfloat16
    torch.bfloat16: Tolerance(mean=0.08, tail=0.8),
}


@dataclass(frozen=True, slots=True)
class KVCacheSpec:
    """The cache of one token: in every layer, keys and values of `heads` heads of `width` numbers."""

    layers: int
    heads: int  # key-value heads; several query heads may share one
    width: int  # numbers per head
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, model: MetaModel, dtype: torch.dtype | None = None) -> Self:
        """The cache of a model, in its weights' precision or in `dtype`."""
        config = model.config.get_text_config()
        heads = config.num_attention_heads
        return cls(
            layers=config.num_hidden_layers,
            heads=getattr(config, "num_key_value_heads", None) or heads,
            width=getattr(config, "head_dim", None) or config.hidden_size // heads,
            dtype=dtype or model.dtype,
            device=model.device,
        )

    @property
    def bytes_per_token(self) -> int:
        return 2 * self.layers * self.heads * self.width * self.dtype.itemsize


class PolicyCopy:
    """A copy of the policy's module that loads new weights."""

    def __init__(self, copied: PreTrainedModel, dtype: torch.dtype | None = None) -> None:
        """`copied` is the module of `EngineContext.copy_model`. `dtype` is the precision of the copy; None: the
        policy's.
        """
        self.model = copied.eval()
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
