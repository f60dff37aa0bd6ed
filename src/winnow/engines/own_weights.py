"""Weights of an engine's own copy of the policy."""

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


# By the precision of an engine's weights. They leave room for larger models than the one that was measured
# (docs/engines.md): in float32 a mean of 2.4e-7 and a tail of 5e-6, in float16 of 3e-4 and 0.01, in bfloat16 of 0.002
# and 0.08.
_EXACT = Tolerance(mean=1e-4, tail=1e-3)
TOLERANCES = {
    torch.float64: _EXACT,
    torch.float32: _EXACT,
    torch.float16: Tolerance(mean=2e-3, tail=0.05),
    torch.bfloat16: Tolerance(mean=0.02, tail=0.3),
}


class OwnWeights:
    """A copy of the policy's module, and how it takes new weights."""

    def __init__(self, policy: PreTrainedModel, dtype: torch.dtype | None = None) -> None:
        """`dtype` None: the policy's own."""
        self.model: PreTrainedModel = copy.deepcopy(policy).eval()
        self._trained = [name for name, weight in self.model.named_parameters() if weight.requires_grad]
        self.model.requires_grad_(False)
        if dtype is not None:
            for parameter in self.model.parameters():  # and no table: rotary frequencies stay as exact as they are
                parameter.data = parameter.data.to(dtype)

    def copy(self, weights: Mapping[str, Tensor]) -> None:
        """Copy by name, in place. Raises EngineError unless every trained parameter is among them, and nothing else."""
        own = self.model.state_dict()
        check_names(weights, own=own, trained=self._trained)
        with torch.no_grad():
            for name, weight in weights.items():
                own[name].copy_(weight)
