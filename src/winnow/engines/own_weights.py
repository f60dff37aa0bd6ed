"""Weights of an engine's own copy of the policy."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from winnow.engines.base import check_names

if TYPE_CHECKING:
    from transformers import PreTrainedModel


# The largest gap to be expected between the log-probs of an engine and the policy, by the precision of its weights.
# A sharp policy's rarest tokens set it: in float32 1.2e-4 is the largest gap of four runs of 120 steps.
TOLERANCES = {torch.float64: 1e-3, torch.float32: 1e-3, torch.float16: 0.03, torch.bfloat16: 0.2}


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
