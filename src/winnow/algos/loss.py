"""Per-token losses of policy and value model: (outputs, micro-batch) -> [T], with diagnostics {name: [T]}.

A loss never divides, never masks and never gets a masked token: weights come from `weighting.py`, and `objective.py`
passes only trained tokens. Without `mb.old_logprobs` the step has one update, and the ratio is 1. Under
`correction.old = "engine"` they are the log-probs that the engine sampled with. Above e^20 a ratio is continued by its
tangent, so that losses and gradients are finite in float32.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from winnow.metrics import VALUE_CLIP
from winnow.records import MicroBatch, PolicyOutput
from winnow.registry import register

Loss = tuple[Tensor, dict[str, Tensor]]
Width = Annotated[float, Field(ge=0.0)]  # how far a ratio may be from 1
Dual = Annotated[float, Field(gt=1.0)]

LARGEST = 20.0  # the logarithm of the largest exact ratio, 4.9e8; verl clamps logarithms of ratios at the same number


@register("loss", policy_gradient=True, aliases={"no_baseline": {"advantage": "raw"}, "reinforce_with_baseline": {}})
def reinforce(out: PolicyOutput, mb: MicroBatch) -> Loss:
    """-A log p (Williams 1992)."""
    return -mb.advantages * out.logprobs, {}


@register("loss", policy_gradient=True, aliases={"grpo_clip": {}})
def clip(
    out: PolicyOutput, mb: MicroBatch, *, clip_low: Width = 0.2, clip_high: Width = 0.2, dual: Dual | None = None
) -> Loss:
    """-min(ratio A, clamp(ratio, 1 - clip_low, 1 + clip_high) A), ratio = p / p_old.

    PPO's clipped surrogate (Schulman et al. 2017, arXiv 1707.06347, eq. 7) with separate bounds (clip-higher: DAPO, Yu
    et al. 2025, arXiv 2503.14476, section 3.1). With `dual`, the loss of a negative advantage stops growing at ratio
    `dual` (dual clip: Ye et al. 2020, arXiv 1912.09729, eq. 5; 3 there).
    """
    ratio = probability_ratio(out, mb)
    free = ratio * mb.advantages
    gain = torch.minimum(free, ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * mb.advantages)
    if dual is not None:
        gain = torch.where(mb.advantages < 0, torch.maximum(gain, dual * mb.advantages), gain)
    return -gain, {"ratio": ratio.detach(), "clip_fraction": (gain != free).detach()}


@register("loss", policy_gradient="positive")
def raft_plus_plus(out: PolicyOutput, mb: MicroBatch, *, clip_low: Width = 0.2, clip_high: Width = 0.28) -> Loss:
    """-min(ratio, clamp(ratio, 1 - clip_low, 1 + clip_high)) A where A > 0, else 0: RAFT with a ratio and a clip.

    RAFT++ (Xiong et al. 2025, arXiv 2504.11343), as in GVM (arXiv 2505.02391, eq. 8) with the indicator of a correct
    rollout in place of A: use it with the advantage `raft`. The scripts released with GVM never pass clip-higher on.
    """
    positive = dataclasses.replace(mb, advantages=mb.advantages.clamp(min=0.0))
    return clip(out, positive, clip_low=clip_low, clip_high=clip_high)


@register("loss", policy_gradient=True)
def cispo(out: PolicyOutput, mb: MicroBatch, *, clip_low: Width = 1.0, clip_high: Width = 4.0) -> Loss:
    """-sg(clamp(ratio, 1 - clip_low, 1 + clip_high)) A log p: the weight of a token is clipped, its gradient never.

    MiniMax-M1 (2025, arXiv 2506.13585, eq. 4). By default only the upper bound has an effect, at a ratio of 5.
    """
    ratio = probability_ratio(out, mb).detach()
    weight = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    return -weight * mb.advantages * out.logprobs, {"ratio": ratio, "clip_fraction": weight != ratio}


@register("loss", policy_gradient=True)
def gspo(out: PolicyOutput, mb: MicroBatch, *, clip_low: Width = 3e-4, clip_high: Width = 4e-4) -> Loss:
    """-min(s A, clamp(s, 1 - clip_low, 1 + clip_high) A) with one ratio per rollout: s = exp(mean_t log(p / p_old)).

    GSPO (Zheng et al. 2025, arXiv 2507.18071), in its token form (eq. 13), whose gradient is that of the sequence form
    (eq. 5) when the advantage is the same at every token. Use it with the `sequence` weighting.
    """
    log_ratio = out.logprobs - _old(out, mb)
    # The mean of the logarithms, as the product of single ratios would overflow. Its gradient is replaced: every token
    # has that of its own log-prob (eq. 14).
    mean = of_rollouts(log_ratio.detach(), mb, mean=True)
    sequence_ratio = continued_exp(mean + (log_ratio - log_ratio.detach()))
    free = sequence_ratio * mb.advantages
    gain = torch.minimum(free, sequence_ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * mb.advantages)
    return -gain, {"ratio": sequence_ratio.detach(), "clip_fraction": (gain != free).detach()}


def probability_ratio(out: PolicyOutput, mb: MicroBatch) -> Tensor:
    """[T] p_now / p_old; exactly 1, with a gradient, in a step of one update."""
    return continued_exp(out.logprobs - _old(out, mb))


def _old(out: PolicyOutput, mb: MicroBatch) -> Tensor:
    """[T] log p_old; that of the present policy in a step of one update."""
    return out.logprobs.detach() if mb.old_logprobs is None else mb.old_logprobs


def continued_exp(x: Tensor) -> Tensor:
    """e^x up to x = 20, and its tangent e^20 (x - 19) above.

    In float32, e^x is infinite from x = 88.8 on. A clip then passes on a gradient of 0 times infinity, which is NaN.
    The tangent keeps value and slope finite and the slope's sign, where a clamp would remove the gradient.

    >>> (continued_exp(torch.tensor([20.0, 100.0])) / math.exp(20)).round()
    tensor([ 1., 81.])
    """
    within = x.clamp(max=LARGEST).exp()
    return within * (1.0 + (x - LARGEST).clamp(min=0.0))


def of_rollouts(values: Tensor, mb: MicroBatch, *, mean: bool = False) -> Tensor:
    """[T] at each token, the sum or the mean of [T] values over its rollout's tokens."""
    # Not bincount, whose size would be read from the device
    nothing = values.new_zeros(len(mb.sequences))
    tokens = nothing.index_add(0, mb.sequence_index, torch.ones_like(values))
    sums = nothing.index_add(0, mb.sequence_index, values)
    return (sums / tokens if mean else sums)[mb.sequence_index]


def value_loss(values: Tensor, mb: MicroBatch, *, clip_range: float) -> tuple[Tensor, dict[str, Tensor]]:
    """0.5 max((V - R)^2, (V_near - R)^2) of values [T], V_near = clamp(V, V_old - c, V_old + c), c = `clip_range`; and
    where the clip removed the gradient.

    The squared error of PPO (Schulman et al. 2017, arXiv 1707.06347, eq. 9), with the half and the clip of its authors'
    code (Dhariwal et al. 2017, openai/baselines, ppo2; Huang et al. 2022, "The 37 Implementation Details of PPO", 9).
    At `clip_range` 0 it is 0.5 (V - R)^2.
    """
    before, returns = mb.values, mb.returns
    assert before is not None, "`make_batches` fills it where there is a value model"
    assert returns is not None, "`make_batches` fills it where there is a value model"
    error = (values - returns).square()
    if clip_range == 0.0:
        return 0.5 * error, {VALUE_CLIP: torch.zeros_like(error)}
    # Clamp V itself: V_old + clamp(V - V_old) would round values within the bounds and count them as clipped.
    near = (values.clamp(before - clip_range, before + clip_range) - returns).square()
    return 0.5 * torch.maximum(error, near), {VALUE_CLIP: (near > error).detach()}
