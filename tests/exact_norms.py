"""A float64 policy that is float64 throughout."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm


@contextlib.contextmanager
def float64_norms() -> Iterator[None]:
    """transformers normalises in float32 whatever comes in, and a sum over rollouts of a prompt that is read once
    passes through that: where the cuts fall then shows at 1e-8, in one process too. Here a float64 policy is one.
    """
    forward = Qwen2RMSNorm.forward

    def normalised(norm: Any, hidden: torch.Tensor) -> torch.Tensor:
        if hidden.dtype != torch.float64:
            return forward(norm, hidden)
        return norm.weight * hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon)

    Qwen2RMSNorm.forward = normalised
    try:
        yield
    finally:
        Qwen2RMSNorm.forward = forward
