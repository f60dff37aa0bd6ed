"""What do corrections do to the gradient and to learning, on a policy that is small enough to enumerate?

    python benchmarks/off_policy.py               a few minutes on one core

The policy of tests/oracle/test_enumeration.py writes 3 tokens of 3, so it has 27 rollouts with known probabilities.
Corrections and losses are winnow's.

gradients   by enumeration, without sampling. A rollout is correct if its tokens add up to 3. The policy follows the
            exact gradient, and rollouts are those of the policy `lag` updates earlier; or, at the same version, those
            of an engine whose logits are rounded. For each correction:
              bias        |E[g] - exact| / |exact|
              turned      the angle between E[g] and the exact gradient in degrees
              length      of E[g] along the exact gradient, as a share of it
              noise       standard deviation of the gradient of one rollout, over |exact|
              masked      share of the tokens with importance 0, under the engine's distribution
            and for each lag the divergence per rollout, KL(engine || policy), and the effective sample size
learning    from sampled rollouts of the policy `lag` updates earlier: E[reward] (exact) over the last half of the
            updates, as mean, standard error and worst over seeds. All tokens have the same distribution, and a rollout
            is correct if its tokens add up to 2. The best policy earns 4 / 9, so a bias has a price at the end

Writes benchmarks/results/<date>_off_policy.json.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import frame
import numpy as np
import torch
from torch import Tensor

from winnow.algos.loss import clip, reinforce
from winnow.algos.objective import Objective
from winnow.records import MicroBatch, PolicyOutput
from winnow.registry import members

ROLLOUTS = torch.tensor(list(itertools.product(range(3), repeat=3)))  # [27, 3]
PREFIXES = [prefix for n in range(3) for prefix in itertools.product(range(3), repeat=n)]
ROWS = torch.tensor([[PREFIXES.index(tuple(r[:t].tolist())) for t in range(3)] for r in ROLLOUTS])  # [27, 3]
SUMS = ROLLOUTS.sum(dim=1)


@dataclass(frozen=True)
class Toy:
    """A policy's first logits, one row per prefix or one for all, and the reward of each rollout."""

    start: Tensor  # [13, 3] or [1, 3]
    rewards: Tensor  # [27]


FREE = Toy(torch.from_numpy(np.random.default_rng(7).normal(size=(len(PREFIXES), 3))), (SUMS == 3).double())
# The tokens of a rollout are independent draws, so no policy is right more often than in 4 / 9 of the rollouts
TIED = Toy(torch.zeros(1, 3, dtype=torch.float64), (SUMS == 2).double())
WIDE = functools.partial(clip, clip_low=1.0, clip_high=1e9)  # no clip: the loss is -ratio A
OBJECTIVES: dict[str, Objective] = {
    **{
        name: Objective(reinforce, correction=None if name == "none" else entry.function)
        for name, entry in members("correction").items()
        if entry.origin == "winnow" and name != "dppo"
    },
    "dppo": Objective(WIDE, correction=members("correction")["dppo"].function),
    "old = engine, clip": Objective(clip, old="engine"),
    "token_truncate, no bound": Objective(
        reinforce, correction=functools.partial(members("correction")["token_truncate"].function, most=1e300)
    ),
    "sequence_truncate, no bound": Objective(
        reinforce, correction=functools.partial(members("correction")["sequence_truncate"].function, most=1e300)
    ),
}


def main() -> None:
    options = _options()
    report = {
        "gradients": {name: _gradients(*pair) for name, pair in _pairs(options).items()},
        "learning": {
            f"rate {rate:g}, lag {lag}": {
                name: _learning(objective, lag, rate, options) for name, objective in OBJECTIVES.items()
            }
            for rate in options.rates
            for lag in options.lags
        },
    }
    print(json.dumps(report, indent=1))
    frame.finish("off_policy", report, options, packages=("winnow-rl", "torch", "numpy"))


def _options() -> argparse.Namespace:
    parser = frame.parser(
        __doc__,
        threads=1,
        seeds=8,
        updates=(60, "of a run that learns from sampled rollouts"),
        rollouts=(64, "of an update"),
    )
    parser.add_argument("--lags", type=int, nargs="+", default=[0, 1, 4], help="updates by which rollouts are older")
    parser.add_argument("--rate", type=float, default=2.0, help="the step size of the exact updates")
    parser.add_argument("--rates", type=float, nargs="+", default=[1.0, 2.0], help="step sizes of learning")
    parser.add_argument("--grid", type=float, default=0.5, help="to which the logits of a rounding engine are rounded")
    return frame.parse(parser)


def _pairs(options: argparse.Namespace) -> Mapping[str, tuple[Tensor, Tensor]]:
    """Logits of policy and engine: after `lag` exact updates, and before them; and of an engine that rounds."""
    after = [FREE.start]
    for _ in range(max(options.lags)):
        after.append(after[-1] + options.rate * _exact(FREE, after[-1]))
    rounded = (FREE.start / options.grid).round() * options.grid
    return {**{f"lag {lag}": (after[lag], FREE.start) for lag in options.lags}, "rounded": (FREE.start, rounded)}


def _logprobs(logits: Tensor) -> Tensor:
    """[27, 3] log-probs of every rollout's tokens."""
    return logits.log_softmax(dim=1)[ROWS.clamp(max=len(logits) - 1), ROLLOUTS]


def _expected_reward(toy: Toy, logits: Tensor) -> Tensor:
    return (_logprobs(logits).sum(dim=1).exp() * toy.rewards).sum()


def _exact(toy: Toy, logits: Tensor) -> Tensor:
    """The gradient of the expected reward."""
    parameter = logits.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(_expected_reward(toy, parameter), parameter)
    return gradient


def _gradient(
    toy: Toy, objective: Objective, policy: Tensor, engine: Tensor, which: Tensor, weights: Tensor, baseline: float
) -> tuple[Tensor, Tensor]:
    """Minus the gradient of the objective over rollouts `which` [B] with a weight [B] each; and importance [B, 3]."""
    parameter, rewards = policy.clone().requires_grad_(), toy.rewards[which]
    mb = MicroBatch(
        sequences=(None,) * len(which),  # type: ignore[arg-type]  # only their number is read
        sequence_index=torch.arange(len(which)).repeat_interleave(3),
        advantages=(rewards - baseline).repeat_interleave(3),
        weights=weights.repeat_interleave(3),
        behaviour_logprobs=_logprobs(engine)[which].flatten(),
    )
    value = objective(PolicyOutput(logprobs=_logprobs(parameter)[which].flatten()), mb)
    (gradient,) = torch.autograd.grad(value.total, parameter)
    ones = torch.ones(3 * len(which), dtype=torch.float64)
    return -gradient, (ones if value.importance is None else value.importance).view(-1, 3)


def _gradients(policy: Tensor, engine: Tensor) -> dict[str, Any]:
    """The expected gradient under each correction, with the mean reward of the engine's rollouts as the baseline."""
    chances = _logprobs(engine).sum(dim=1).exp()
    log_ratio = (_logprobs(policy) - _logprobs(engine)).sum(dim=1)
    exact, baseline = _exact(FREE, policy), float(_expected_reward(FREE, engine))
    found = {
        "kl": float(-(chances * log_ratio).sum()),
        "effective_sample_size": float(1 / (chances * (2 * log_ratio).exp()).sum()),
        "reward": [round(float(_expected_reward(FREE, logits)), 4) for logits in (engine, policy)],
    }
    return {**found, **{name: _compared(o, policy, engine, chances, exact, baseline) for name, o in OBJECTIVES.items()}}


def _compared(
    objective: Objective, policy: Tensor, engine: Tensor, chances: Tensor, exact: Tensor, baseline: float
) -> dict[str, float | None]:
    every = torch.arange(len(ROLLOUTS))
    mean, importance = _gradient(FREE, objective, policy, engine, every, chances, baseline)
    one = torch.ones(1, dtype=torch.float64)
    each = torch.stack([_gradient(FREE, objective, policy, engine, i[None], one, baseline)[0] for i in every])
    variance = (chances * each.square().sum(dim=(1, 2))).sum() - mean.square().sum()
    size, along = float(exact.norm()), float((mean * exact).sum() / exact.square().sum())
    cosine = float((mean * exact).sum() / max(float(mean.norm()) * size, 1e-300))
    return {
        "bias": round(float((mean - exact).norm()) / size, 4),
        "turned": round(math.degrees(math.acos(min(1.0, cosine))), 1) if mean.any() else None,
        "length": round(along, 4),
        "noise": round(math.sqrt(max(float(variance), 0.0)) / size, 3),
        "masked": round(float((chances[:, None] * (importance == 0)).sum() / 3), 4),
    }


def _learning(objective: Objective, lag: int, rate: float, options: argparse.Namespace) -> dict[str, float]:
    """The expected reward over the last half of the updates, over the seeds: of rollouts sampled `lag` updates
    earlier.
    """
    rewards = np.array([_run(objective, lag, rate, seed, options) for seed in range(options.seeds)])
    return {
        "reward": round(float(rewards.mean()), 4),
        "standard_error": round(float(rewards.std(ddof=1) / math.sqrt(len(rewards))), 4),
        "worst": round(float(rewards.min()), 4),
    }


def _run(objective: Objective, lag: int, rate: float, seed: int, options: argparse.Namespace) -> float:
    draw: Callable[..., Tensor] = functools.partial(
        torch.multinomial, replacement=True, generator=torch.Generator().manual_seed(seed)
    )
    history, rewards = [TIED.start], list[float]()
    weights = torch.full((options.rollouts,), 1 / options.rollouts, dtype=torch.float64)
    for _ in range(options.updates):
        engine = history[max(0, len(history) - 1 - lag)]
        which = draw(_logprobs(engine).sum(dim=1).exp(), options.rollouts)
        baseline = float(TIED.rewards[which].mean())
        gradient, _ = _gradient(TIED, objective, history[-1], engine, which, weights, baseline)
        history.append(history[-1] + rate * gradient)
        rewards.append(float(_expected_reward(TIED, history[-1])))
    return float(np.mean(rewards[len(rewards) // 2 :]))


if __name__ == "__main__":
    main()
