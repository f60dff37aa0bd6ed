"""An engine's copy of the policy, and the tolerance of its log-probs."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from winnow.engines.base import Tolerance
from winnow.engines.weight_versions import check_names

if TYPE_CHECKING:
    from transformers import PreTrainedModel


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
