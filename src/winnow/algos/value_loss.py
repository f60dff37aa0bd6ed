"""The loss of a value model, per token: (values, what they were and are taught) -> [T]."""

from __future__ import annotations

import torch
from torch import Tensor

from winnow.metrics import VALUE_CLIP
from winnow.records import MicroBatch


def value_loss(values: Tensor, mb: MicroBatch, *, clip_range: float) -> tuple[Tensor, dict[str, Tensor]]:
    """0.5 max((V - R)^2, (V_clipped - R)^2) of values [T], V_clipped = V_old + clamp(V - V_old, -c, c); and where the
    clip took the gradient away.

    As PPO's reference code has it (Dhariwal et al. 2017, openai/baselines; Huang et al. 2022, "The 37 Implementation
    Details of PPO", 9), with the half of Schulman et al. 2017 (arXiv 1707.06347, eq. 9) left to the loss. At
    `clip_range` 0 it is 0.5 (V - R)^2.
    """
    before, returns = mb.values, mb.returns
    assert before is not None, "the schedule fills it where there is a value model"
    assert returns is not None, "the schedule fills it where there is a value model"
    error = (values - returns).square()
    if clip_range == 0.0:
        return 0.5 * error, {VALUE_CLIP: torch.zeros_like(error)}
    near = before + (values - before).clamp(-clip_range, clip_range)
    worse = torch.maximum(error, (near - returns).square())
    return 0.5 * worse, {VALUE_CLIP: (worse != error).detach()}
