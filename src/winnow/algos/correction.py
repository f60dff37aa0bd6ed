"""Corrections for rollouts that another policy sampled: (outputs, micro-batch) -> importance [T], acted [T].

The engine samples with other kernels, in another precision, or with older weights than the policy that is trained. The
importance of a token multiplies its loss, and never a term. `acted` marks the tokens whose importance was truncated or
masked (set to 0). In the equations rho = p_old / p_engine, where p_old is the policy before the step's first update. No
gradient passes through rho.

A rollout is never divided between micro-batches, so a correction per rollout sees all of its trained tokens.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from winnow.algos.loss import of_rollouts
from winnow.records import MicroBatch, PolicyOutput
from winnow.registry import register

Corrected = tuple[Tensor, Tensor]
Most = Annotated[float, Field(ge=1.0, allow_inf_nan=False)]  # below 1, it would act where policy and engine agree
Least = Annotated[float, Field(ge=0.0, le=1.0)]
Divergence = Annotated[float, Field(gt=0.0, lt=1.0)]


@register("correction", "none")
def uncorrected(out: PolicyOutput, mb: MicroBatch) -> Corrected:
    """1: the policy gradient is biased by what engine and policy differ in. The metrics measure the difference."""
    return torch.ones_like(mb.advantages), torch.zeros_like(mb.advantages, dtype=torch.bool)


@register("correction", compares="old")
def token_truncate(out: PolicyOutput, mb: MicroBatch, *, most: Most = 2.0) -> Corrected:
    """min(rho_t, most): truncated importance sampling per token, which bounds the variance at the price of a bias.

    Ionides 2008, "Truncated Importance Sampling"; per token as in Yao et al. 2025, "Your Efficient RL Framework
    Secretly Brings You Off-Policy RL Training" (a note without arXiv id), whose objective of PPO has this factor beside
    the clipped ratio p_now / p_old. Two rollouts that differ early visit other prefixes, which no factor per token
    corrects: biased even without truncation.
    """
    ratio = log_ratio(out, mb).exp()
    return ratio.clamp(max=most), ratio > most


@register("correction", compares="old")
def sequence_truncate(out: PolicyOutput, mb: MicroBatch, *, most: Most = 2.0) -> Corrected:
    """min(product over t of rho_t, most) at every token of a rollout: unbiased where nothing is truncated.

    Liu, Li, Fu, Wang, Liu and Shen 2025, "When Speed Kills Stability: Demystifying RL Collapse from the
    Training-Inference Mismatch" (a note without arXiv id), section 4.2.1. The product grows or shrinks with the length.
    """
    ratio = of_rollouts(log_ratio(out, mb), mb).exp()
    return ratio.clamp(max=most), ratio > most


@register("correction", compares="old")
def sequence_mask(out: PolicyOutput, mb: MicroBatch, *, most: Most = 3.0) -> Corrected:
    """The product over t of rho_t if it is at most `most`, else 0 for the whole rollout: masked importance sampling.

    Liu et al. 2025 (see `sequence_truncate`), section 4.2.1: rho 1{rho <= C}. TRL 1.16 has the same as its default,
    with C = 3.
    """
    ratio = of_rollouts(log_ratio(out, mb), mb).exp()
    return _kept(ratio, ratio <= most)


@register("correction", compares="old")
def geometric_mask(out: PolicyOutput, mb: MicroBatch, *, least: Least = 0.99, most: Most = 1.01) -> Corrected:
    """1 if `least` <= exp(mean over t of log rho_t) <= `most`, else 0 for the whole rollout.

    Li and Liu 2025, part 3 of "When Speed Kills Stability", on trust regions by sequence masking (a note, read in
    others' descriptions; verl's documentation of rollout correction, section 3.3.3, has the equation). The mean does
    not grow with the length. The mask is a trust region and no weight: within the bounds nothing is corrected. The
    bounds are SkyRL's advice. verl's page has 0.999 and 1.001 since January 2026; before, it had 1.0001 to 1.001 as the
    upper bound alone.
    """
    ratio = of_rollouts(log_ratio(out, mb), mb, mean=True).exp()
    return _kept(torch.ones_like(ratio), (ratio >= least) & (ratio <= most))


@register("correction", compares="old")
def icepop(out: PolicyOutput, mb: MicroBatch, *, least: Least = 0.5, most: Most = 5.0) -> Corrected:
    """rho_t if `least` <= rho_t <= `most`, else 0: tokens on which policy and engine disagree are not trained on.

    IcePop (Ling Team 2025, "Every Step Evolves", arXiv 2510.18855, the masking function M(k) of its section on
    IcePop), with the bounds of its reasoning stage.
    """
    ratio = log_ratio(out, mb).exp()
    return _kept(ratio, (ratio >= least) & (ratio <= most))


@register("correction", compares="present")
def dppo(out: PolicyOutput, mb: MicroBatch, *, most: Divergence = 0.2, truncate: Most = 10.0) -> Corrected:
    """rho_t, but 0 if an update would move p_now further from p_engine than `most` allows, and at most `truncate`.

    The mask of DPPO (Qi et al. 2026, "Rethinking the Trust Region in LLM Reinforcement Learning", arXiv 2602.04879, eq.
    12 by the number in others' code) with its binary total variation D = |p_now - p_engine| of the sampled token: 0
    where D > most, and A > 0 and p_now > p_engine, or A < 0 and p_now < p_engine. It takes the place of a ratio's clip,
    whose bounds are then to be wide. 0.2 is prime-rl's bound. The loss's ratio p_now / p_old times rho is the paper's
    p_now / p_engine.

    The mask bounds no ratio: a token that the engine sampled with a probability of 1e-6 and that has 0.15 now has a D
    of 0.15 and a ratio of 150,000. So its authors' code truncates p_now / p_engine at 10 by default (sail-sg/Stable-RL,
    verl/trainer/ppo/core_algos.py), and verl's dppo_tv at 20. Ours bounds both the importance and its product with the
    loss's ratio: min(rho, truncate / max(1, p_now / p_old)). In a step of one update that is theirs. Later it is less
    where rho is above the bound and p_now below p_old.
    """
    now, engine = out.logprobs.detach().double(), mb.behaviour_logprobs.double()
    away = (now.exp() - engine.exp()) * mb.advantages.sign() > most
    log_rho = log_ratio(out, mb)
    bound = math.log(truncate) - (now - engine - log_rho).clamp(min=0.0)
    ratio = torch.minimum(log_rho, bound).exp()
    return torch.where(away, 0.0, ratio), away | (log_rho > bound)


def log_ratio(out: PolicyOutput, mb: MicroBatch) -> Tensor:
    """[T] log(p_old / p_engine) in float64, without a gradient.

    Without `mb.old_logprobs` the step has one update, and p_old is the policy's output.
    """
    old = out.logprobs.detach() if mb.old_logprobs is None else mb.old_logprobs
    return torch.sub(old.double(), mb.behaviour_logprobs.double())


def _kept(ratio: Tensor, within: Tensor) -> Corrected:
    return torch.where(within, ratio, 0.0), ~within
