"""Per-token policy losses: (what the policy says, what the rollouts were) -> [T], and per-token diagnostics {name: [T]}.

A loss never divides, never masks and never sees a masked token: weights come from `weighting.py`, and `objective.py`
hands over only tokens that are trained. Where `mb.old_logprobs` is missing, the step has one update and the ratio is 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from winnow.records import MicroBatch, PolicyOutput
from winnow.registry import register

Loss = tuple[Tensor, dict[str, Tensor]]


@register("loss", policy_gradient=True, aliases={"no_baseline": {"advantage": "raw"}, "reinforce_with_baseline": {}})
def reinforce(out: PolicyOutput, mb: MicroBatch) -> Loss:
    """-A log p (Williams 1992)."""
    return -mb.advantages * out.logprobs, {}


@register("loss", policy_gradient=True, aliases={"grpo_clip": {}})
def clip(out: PolicyOutput, mb: MicroBatch, *, low: float = 0.2, high: float = 0.2) -> Loss:
    """-min(ratio A, clamp(ratio, 1 - low, 1 + high) A), ratio = p / p_old.

    PPO's clipped surrogate (Schulman et al. 2017, arXiv 1707.06347, eq. 7) with separate bounds (clip-higher: DAPO, Yu et al.
    2025, arXiv 2503.14476, section 3.1).
    """
    ratio = probability_ratio(out, mb)
    free = ratio * mb.advantages
    clipped = ratio.clamp(1.0 - low, 1.0 + high) * mb.advantages
    return -torch.minimum(free, clipped), {"ratio": ratio.detach(), "clip_fraction": (clipped < free).detach()}


def probability_ratio(out: PolicyOutput, mb: MicroBatch) -> Tensor:
    """[T] p_now / p_old; exactly 1, with a gradient, in a step of one update."""
    old = out.logprobs.detach() if mb.old_logprobs is None else mb.old_logprobs
    return torch.exp(out.logprobs - old)
