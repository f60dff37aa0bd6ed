"""How much smaller is the gradient's variance under GVM's allocation than under a uniform one, at equal rollouts?

    python benchmarks/gvm_variance.py

It uses the bundled policy, prompts that it solves at least once in 64 rollouts, the advantage `raft` and the weighting
`unbiased`. Pass rates p and gradient norms G come from those 64 rollouts, gradients from further rollouts (the pool).
The gradient of log P of every accepted rollout of the pool is exact, with respect to all parameters, and is stored as
inner products with the other ones.

An allocation n draws n_i rollouts of prompt i from the pool, with replacement. Draws are independent, so the trace of
the covariance of the gradient estimate sum_ij a_ij g_ij / (G n_i p_i) over all such resamplings has a closed form,
which replaces a simulation: sum_i (E |a g|^2 - |E a g|^2) / (G p_i)^2 / n_i. Intervals: bootstrap over
prompts and, within each, over the pool; the allocation is recomputed for every resample.

A prompt without rollouts adds no variance but biases the gradient. The mean squared error to the gradient that uniform
allocation estimates without bias is therefore reported too. The same is reported for three uses of a probe of N' = 8
rollouts, drawn from the 64: its counts alone; its counts, with 2 rollouts for every prompt that it did not solve; and
its counts, with its pass rates in the weights as well. Writes
benchmarks/results/<date>_gvm_variance.json.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import frame
import numpy as np
import torch

from winnow.budget.allocators import gvm
from winnow.config_file import load
from winnow.core.run import Run
from winnow.learner.learner import Learner
from winnow.recipes import recipe_paths
from winnow.records import Batch, FloatArray, Group, IntArray, PromptStats, TrainingSequence
from winnow.seeds import generator
from winnow.training.build import build
from winnow.training.resolve import resolve_members

CONFIG = recipe_paths()["gvm_raft_plus_plus"]


@dataclass(frozen=True)
class Measured:
    """K prompts."""

    correct: list[FloatArray]  # K x [64] 0 or 1
    norms: list[FloatArray]  # K x [64] gradient norms, 0 where not correct
    grams: list[FloatArray]  # K x [A, A] inner products of the gradients of the pool's accepted rollouts
    means: FloatArray  # [K, K] inner products of the prompts' mean gradients E[a g] over the pool
    pool: int  # rollouts per prompt in the pool

    @property
    def stats(self) -> PromptStats:
        return stats_of(np.stack(self.correct), np.stack(self.norms))


def main() -> None:
    options = _options()
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="winnow-variance-") as folder:
        sets = [f"seed={options.seed}", "verify.workers=0"]
        run = build(
            resolve_members(load(CONFIG, sets), CONFIG.parent), folder=Path(folder), device=torch.device("cpu")
        ).run
        measured = measure(run, options)
    report = {
        "gradients": "exact, all parameters, per rollout",
        "parameters": sum(p.numel() for p in run.learner.parameters.values()),
        "prompts": len(measured.grams),
        "pass_rate": quartiles(measured.stats.pass_rate),
        "gradient_norm": quartiles(measured.stats.gradient_norm),
        "measured": {n: compare(measured, n, options) for n in options.rollouts},
        "probed": {n: probed(measured, n, options) for n in options.rollouts},
        "seconds": round(time.perf_counter() - begin, 1),
    }
    frame.finish("gvm_variance", report, options, show=("prompts", "measured", "probed", "seconds"))


def _options() -> argparse.Namespace:
    parser = frame.parser(
        __doc__, prompts=64, measure=64, pool=96, probe=8, probes=200, resamples=1000, threads=1, seed=0
    )
    parser.add_argument("--rollouts", type=int, nargs="+", default=[4, 8, 16], metavar="N", help="per prompt")
    return frame.parse(parser)


def measure(run: Run, options: argparse.Namespace) -> Measured:
    """Sample, keep the solved prompts, and compute the gradient of every rollout with advantage 1."""
    prompts = run.prompts.prompts[: options.prompts]
    sizes = {"measure": options.measure, "pool": options.pool}
    first, pool = (
        run.verifiers.collect(run.engine.generate(prompts, [size] * len(prompts), run.sampling, seed=(run.seed, name)))
        for name, size in sizes.items()
    )
    kept = [(a, b) for a, b in zip(first, pool, strict=True) if a.correct.any() and b.correct.any()]
    grams, means = [], []
    for _, group in kept:
        gradients = torch.stack([gradient(run.learner, row) for row in accepted(group)])
        grams.append((gradients @ gradients.T).double().numpy())
        means.append(gradients.sum(0) / len(group.rollouts))
    together = torch.stack(means).double()
    return Measured(
        correct=[group.correct.astype(np.float64) for group, _ in kept],
        norms=[norms_of(run.learner, group) for group, _ in kept],
        grams=grams,
        means=(together @ together.T).numpy(),
        pool=options.pool,
    )


def accepted(group: Group) -> list[TrainingSequence]:
    return [
        TrainingSequence(prompt=group.prompt, rollout=rollout, group=0, advantage=1.0, weight=1.0)
        for rollout, correct in zip(group.rollouts, group.correct, strict=True)
        if correct
    ]


def norms_of(learner: Learner, group: Group) -> FloatArray:
    """[N] gradient norms, as the configuration's probe measures them."""
    norms = np.zeros(len(group.rollouts))
    norms[group.correct] = learner.gradient_norms(accepted(group), of="embedding")
    return norms


def gradient(learner: Learner, row: TrainingSequence) -> torch.Tensor:
    """[P] the gradient of log P(rollout | prompt), summed over its tokens."""
    (mb,) = learner.micro_batches(Batch(epoch=0, sequences=(row,)))
    parts = torch.autograd.grad(learner.forward(mb).logprobs.sum(), list(learner.parameters.values()))
    return torch.cat([part.flatten() for part in parts])


def stats_of(correct: FloatArray, norms: FloatArray) -> PromptStats:
    """Pass rates and gradient norms from [K, n] verdicts and norms."""
    solved = correct.sum(axis=1)
    return PromptStats(
        ids=tuple(map(str, range(len(correct)))),
        pass_rate=correct.mean(axis=1),
        gradient_norm=(norms * correct).sum(axis=1) / np.maximum(solved, 1),
        trials=np.full(len(correct), float(correct.shape[1])),
        correct=solved,
    )


def covariances(measured: Measured, copies: Sequence[IntArray] | None = None) -> FloatArray:
    """[K] or [K, R] trace of the covariance of one rollout's a g, of the pool or of R resamples [R, A] of it."""
    m = measured.pool
    found = []
    for k, gram in enumerate(measured.grams):
        times = np.ones((1, len(gram))) if copies is None else copies[k]
        square = times @ np.diag(gram) / m
        mean = np.einsum("ra,ra->r", times @ gram, times) / m**2
        found.append(square - mean)
    return np.array(found).squeeze()


def variance(traces: FloatArray, rates: FloatArray, counts: IntArray) -> float:
    """Variance of the gradient estimate, without prompts that have no rollouts or an unknown pass rate."""
    used = (counts > 0) & (rates > 0)
    return float((traces[used] / rates[used] ** 2 / counts[used]).sum() / len(counts) ** 2)


def allocate(stats: PromptStats, n: int) -> IntArray:
    return gvm(stats, n * len(stats.ids))


def compare(measured: Measured, n: int, options: argparse.Namespace) -> dict[str, Any]:
    """GVM over uniform with p and G as measured."""
    stats, traces = measured.stats, covariances(measured)
    counts = allocate(stats, n)
    flat = variance(traces, stats.pass_rate, np.full(len(traces), n))
    value = variance(traces, stats.pass_rate, counts)
    lost = bias(measured, np.where(counts > 0, 0.0, -1.0))
    low, high = np.quantile(bootstrap(measured, n, options), [0.025, 0.975])
    return {
        "variance_ratio": round(value / flat, 4),
        "interval_95": [round(float(low), 4), round(float(high), 4)],
        "below_1": bool(high < 1),
        "error_ratio": round((value + lost) / flat, 4),
        "left_out": int((counts == 0).sum()),
        "counts": quartiles(counts),
    }


def bootstrap(measured: Measured, n: int, options: argparse.Namespace) -> FloatArray:
    """[R] ratios over resampled prompts, each with a resampled pool."""
    rng, stats, k = generator("variance", n), measured.stats, len(measured.grams)
    chance = np.full(measured.pool, 1.0 / measured.pool)
    copies = [rng.multinomial(measured.pool, chance, size=options.resamples)[:, : len(g)] for g in measured.grams]
    traces = covariances(measured, copies)
    ratios = []
    for r in range(options.resamples):
        chosen = rng.integers(k, size=k)
        there = PromptStats(
            ids=tuple(map(str, range(k))),
            pass_rate=stats.pass_rate[chosen],
            gradient_norm=stats.gradient_norm[chosen],
            trials=stats.trials[chosen],
            correct=stats.correct[chosen],
        )
        of = traces[chosen, r], there.pass_rate
        ratios.append(variance(*of, allocate(there, n)) / variance(*of, np.full(k, n)))
    return np.array(ratios)


def probed(measured: Measured, n: int, options: argparse.Namespace) -> dict[str, Any]:
    """GVM with a small probe over uniform with the measured pass rates, averaged over probes."""
    rng, truth, traces = generator("probe", n), measured.stats, covariances(measured)
    correct, norms = np.stack(measured.correct), np.stack(measured.norms)
    found: dict[str, list[tuple[float, float, int]]] = {name: [] for name in PROBED}
    for _ in range(options.probes):
        drawn = rng.integers(options.measure, size=(len(traces), options.probe))
        stats = stats_of(np.take_along_axis(correct, drawn, 1), np.take_along_axis(norms, drawn, 1))
        for name, (exploration, own_rates) in PROBED.items():
            counts = gvm(stats, n * len(traces), exploration=exploration)
            rates = stats.pass_rate if own_rates else truth.pass_rate
            used = (counts > 0) & (rates > 0)
            shares = np.where(used, truth.pass_rate / np.where(used, rates, 1.0), 0.0)
            value = variance(traces, rates, counts)
            found[name].append((value, value + bias(measured, shares - 1.0), int((~used).sum())))
    flat = variance(traces, truth.pass_rate, np.full(len(traces), n))
    return {name: _ratios(rows, flat) for name, rows in found.items()}


# Use of a probe -> rollouts for prompts that it did not solve, and whether its pass rates are in the weights.
PROBED = {"counts": (0, False), "counts_with_exploration_2": (2, False), "counts_and_weights": (0, True)}


def _ratios(rows: Sequence[tuple[float, float, int]], flat: float) -> dict[str, float]:
    value, error, left_out = np.mean(rows, axis=0).tolist()
    ratios = {"variance_ratio": value / flat, "error_ratio": error / flat, "left_out": left_out}
    return {key: round(number, 4) for key, number in ratios.items()}


def bias(measured: Measured, shares: FloatArray) -> float:
    """|sum_i shares_i E[a g]_i / (G p_i)|^2: the squared bias if prompt i counts 1 + shares_i times."""
    scaled = shares / measured.stats.pass_rate / len(shares)
    return float(scaled @ measured.means @ scaled)


def quartiles(values: Sequence[float] | FloatArray | IntArray) -> list[float]:
    """Smallest, quartiles, largest."""
    return [round(float(v), 4) for v in np.quantile(values, [0, 0.25, 0.5, 0.75, 1])]


if __name__ == "__main__":
    main()
