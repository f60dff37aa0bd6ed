"""The loss of a value model, per token: (values, micro-batch with old values and returns) -> [T]."""

from __future__ import annotations

import torch
from torch import Tensor

from winnow.metrics import VALUE_CLIP
from winnow.records import MicroBatch


def value_loss(values: Tensor, mb: MicroBatch, *, clip_range: float) -> tuple[Tensor, dict[str, Tensor]]:
    """0.5 max((V - R)^2, (V_near - R)^2) of values [T], V_near = clamp(V, V_old - c, V_old + c), c = `clip_range`; and
    where the clip removed the gradient.

    The squared error of PPO (Schulman et al. 2017, arXiv 1707.06347, eq. 9), with the half and the clip of its authors'
    code (Dhariwal et al. 2017, openai/baselines, ppo2; Huang et al. 2022, "The 37 Implementation Details of PPO", 9).
    At `clip_range` 0 it is 0.5 (V - R)^2.
    """
    before, returns = mb.values, mb.returns
    assert before is not None, "the schedule fills it where there is a value model"
    assert returns is not None, "the schedule fills it where there is a value model"
    error = (values - returns).square()
    if clip_range == 0.0:
        return 0.5 * error, {VALUE_CLIP: torch.zeros_like(error)}
    # Clamp V itself: V_old + clamp(V - V_old) would round values within the bounds and count them as clipped.
    near = (values.clamp(before - clip_range, before + clip_range) - returns).square()
    return 0.5 * torch.maximum(error, near), {VALUE_CLIP: (near > error).detach()}
