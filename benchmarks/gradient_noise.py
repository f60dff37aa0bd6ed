"""How large is the noise of one rollout's gradient against the signal that the planner maximises?

    python benchmarks/gradient_noise.py
    python benchmarks/gradient_noise.py --config arithmetic --model RUN/checkpoints/step-000040

For each prompt with right and wrong rollouts, delta is the mean gradient of log P of its right rollouts minus that of
its wrong ones. By docs/planner.md it is the gradient of the log-odds of a right answer. The rollouts are split into two
halves, so that no product below contains the product of a rollout's noise with itself.

    signal   |mean delta|^2: the mean product of deltas of two different prompts
    between  (mean |delta|^2 - signal) / signal: how much prompts differ
    noise    the trace of the covariance of one rollout's gradient within its kind, divided by the signal

The last two are the planner's numbers `between` and `noise`. Intervals: bootstrap over prompts.

`spread` is the share of the trained weights that AdamW's eps acts on. A weight with the share w^2 of the squared
gradient changes the objective by w^2 / (norm w + eps). The spread is the number of weights with equal shares that would
change it equally, divided by the number of all weights. It uses the configuration's eps and a gradient of norm 0.45, as
in runs of this policy. Writes
benchmarks/results/<date>_gradient_noise.json.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import frame
import numpy as np
import torch

from winnow.config_file import load
from winnow.core.run import Run
from winnow.learner.learner import Learner
from winnow.recipes import find_config, recipe_paths
from winnow.records import Batch, FloatArray, Group, TrainingSequence
from winnow.seeds import generator
from winnow.training.build import build
from winnow.training.resolve import resolve_members

CONFIG = recipe_paths()["arithmetic"]
NORM = 0.45  # norm of an update's gradient in runs of this policy
FEWEST = 4  # rollouts of each kind, two for each half


@dataclass(frozen=True)
class Measured:
    """K prompts with at least FEWEST rollouts of each kind."""

    rates: FloatArray  # [K] share of right rollouts
    products: FloatArray  # [K, K] products of deltas; the diagonal contains those of the two halves
    noise: FloatArray  # [K] trace of the covariance of one rollout's gradient within its kind
    spread: float  # share of the weights


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory(prefix="winnow-noise-") as folder:
        model = [] if options.model is None else [f"model.path={options.model}"]
        config = load(options.config, [f"seed={options.seed}", "verify.workers=0", *model])
        members = resolve_members(config, options.config.parent)
        run = build(members, folder=Path(folder), device=torch.device("cpu")).run
        measured = measure(run, options)
    report = {
        "parameters": sum(p.numel() for p in run.learner.parameters.values()),
        "prompts": len(measured.rates),
        "spread": measured.spread,
        "pass_rates": np.quantile(measured.rates, [0, 0.25, 0.5, 0.75, 1]).round(3).tolist(),
        **summary(measured, options.resamples),
    }
    frame.finish(
        "gradient_noise", report, options, show=("prompts", "spread", "signal", "between", "noise", "by_pass_rate")
    )


def _options() -> argparse.Namespace:
    parser = frame.parser(__doc__, prompts=64, rollouts=32, resamples=1000, threads=1, seed=0)
    parser.add_argument("--config", type=find_config, default=CONFIG)
    parser.add_argument("--model", help="the policy; by default the configuration's")
    return frame.parse(parser)


def measure(run: Run, options: argparse.Namespace) -> Measured:
    """Sample, and compute the gradient of every rollout of prompts with enough of both kinds."""
    prompts = run.prompts.prompts[: options.prompts]
    sampled = run.engine.generate(prompts, [options.rollouts] * len(prompts), run.sampling, seed=(run.seed, "noise"))
    groups = [g for g in run.verifiers.collect(sampled) if min(g.correct.sum(), (~g.correct).sum()) >= FEWEST]
    rates, halves, noise = [], [], []
    for group in groups:
        gradients = torch.stack([gradient(run.learner, row) for row in _rows(group)])  # [N, D]
        kinds = [gradients[torch.from_numpy(np.flatnonzero(group.correct == kind))] for kind in (True, False)]
        halves.append(torch.stack([kinds[0][h::2].mean(0) - kinds[1][h::2].mean(0) for h in (0, 1)]))
        share = float(group.correct.mean())
        rates.append(share)
        # A balanced subset has equally many of each kind, so both count equally.
        noise.append(np.mean([float(kind.var(dim=0, correction=1).sum()) for kind in kinds]))
    one, two = (torch.stack([half[h] for half in halves]).double() for h in (0, 1))
    both = (one + two) / 2
    products = (both @ both.T).numpy()
    np.fill_diagonal(products, (one * two).sum(1).numpy())
    eps = run.members.config.optimizer.eps
    return Measured(np.array(rates), products, np.array(noise), spread((both**2).sum(0).numpy(), eps))


def spread(energy: FloatArray, eps: float) -> float:
    """[D] squared gradients -> the share of weights that would change the objective equally with equal shares."""
    share = energy / energy.sum()
    moved = float((share / (NORM * np.sqrt(share) + eps)).sum())
    root = (1 / moved - eps) / NORM
    return 1 / (root**2 * len(energy))


def _rows(group: Group) -> list[TrainingSequence]:
    return [
        TrainingSequence(prompt=group.prompt, rollout=rollout, group=0, advantage=1.0, weight=1.0)
        for rollout in group.rollouts
    ]


def gradient(learner: Learner, row: TrainingSequence) -> torch.Tensor:
    """[D] the gradient of log P(rollout | prompt), summed over its tokens."""
    (mb,) = learner.micro_batches(Batch(epoch=0, sequences=(row,)))
    parts = torch.autograd.grad(learner.forward(mb).logprobs.sum(), list(learner.parameters.values()))
    return torch.cat([part.flatten() for part in parts])


def numbers(measured: Measured, chosen: np.ndarray[Any, Any]) -> tuple[float, float, float]:
    """(signal, between, noise) of a sample of prompts; a prompt that is drawn twice forms no pair with itself."""
    products = measured.products[np.ix_(chosen, chosen)]
    other = chosen[:, None] != chosen[None, :]
    signal = float(products[other].mean())
    own = float(np.diag(measured.products)[chosen].mean())
    return signal, own / signal - 1, float(measured.noise[chosen].mean()) / signal


def summary(measured: Measured, resamples: int) -> dict[str, Any]:
    """The three numbers with 95% intervals, and |delta|^2 in thirds of the pass rate."""
    count = len(measured.rates)
    rng = generator("noise", "bootstrap")
    drawn = np.array([numbers(measured, rng.integers(count, size=count)) for _ in range(resamples)])
    found = numbers(measured, np.arange(count))
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    order = np.argsort(measured.rates)
    thirds = [
        {
            "pass_rates": [round(float(measured.rates[p].min()), 3), round(float(measured.rates[p].max()), 3)],
            "squared_delta": float(np.diag(measured.products)[p].mean()),
            "with_all": float((measured.products[p].sum(1) - np.diag(measured.products)[p]).mean() / (count - 1)),
            "noise": float(measured.noise[p].mean()),
        }
        for p in np.array_split(order, 3)
    ]
    return {
        **{
            name: {"value": value, "interval_95": [a, b]}
            for name, value, a, b in zip(
                ("signal", "between", "noise"), found, low.tolist(), high.tolist(), strict=True
            )
        },
        "by_pass_rate": thirds,
    }


if __name__ == "__main__":
    main()
