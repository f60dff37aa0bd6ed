"""Terms that are added to the policy loss, each with a coefficient: (policy outputs, micro-batch) -> [T].

A term is minimised. It is never multiplied by the importance correction, and it applies to every kept rollout,
including those with advantage zero.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from winnow.algos.loss import continued_exp
from winnow.records import MicroBatch, PolicyOutput
from winnow.registry import register


@register("term", needs=("ref_logprobs",))
def kl(out: PolicyOutput, mb: MicroBatch, *, estimator: Literal["k1", "k2", "k3"] = "k3") -> Tensor:
    """An estimate of KL(policy || reference) from the sampled tokens, d = log p_ref - log p.

    k1 = -d, k2 = d^2 / 2, k3 = e^d - d - 1 (Schulman 2020, "Approximating KL Divergence"; k3 is GRPO's, arXiv
    2402.03300, eq. 4). Above d = 20, e^d is continued by its tangent, so k3 stays finite and convex in float32.
    k1 and k3 estimate the value without bias; as losses, k2 has the exact gradient on fresh rollouts, k1 only noise.
    """
    assert mb.ref_logprobs is not None, "compute_logprobs fills it, because the term declares the need"
    d = mb.ref_logprobs - out.logprobs
    match estimator:
        case "k1":
            return -d
        case "k2":
            return d.square() / 2
        case "k3":
            return continued_exp(d) - d - 1


@register("term", needs=("entropy",))
def entropy(out: PolicyOutput, mb: MicroBatch) -> Tensor:
    """Minus the entropy of the next token over the whole vocabulary: a positive coefficient rewards exploration."""
    assert out.entropy is not None, "forward computes it, because the term declares the need"
    return -out.entropy
