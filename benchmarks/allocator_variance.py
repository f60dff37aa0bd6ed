"""The variance of the gradient per generated token under each allocator, at the same budget of rollouts.

    python benchmarks/allocator_variance.py

It uses the bundled policy, the advantage `rloo`, equal weights of the prompts, and prompts of which some rollouts are
right and some wrong. The gradient of log P of every rollout of a pool is exact, with respect to all parameters, and is
stored as inner products with those of the same prompt. Statistics come from other rollouts: `measure` of each prompt,
or a probe of 8 of these.

An allocation n draws n_i rollouts of prompt i from the pool, with replacement. Under `rloo` the estimate of a prompt is
a U-statistic of two rollouts, with the kernel (r_1 - r_2) (g_1 - g_2) / 2. So the trace of its covariance over all such
draws has a closed form (Hoeffding 1948): (4 (n - 2) z_1 + 2 z_2) / (n (n - 1)). Here z_2 is the variance of the kernel,
and z_1 that of its mean given one rollout.

`efficiency` is the variance times the mean generated tokens, relative to uniform counts: below 1, fewer tokens reach
the same variance. `error` is the same for the mean squared error, as a prompt with fewer than 2 rollouts has no
gradient. `best` allocates by the pool's own z_1 and z_2, which no allocator gets. Intervals: bootstrap over prompts.
Writes benchmarks/results/<date>_allocator_variance.json.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import frame
import numpy as np
import torch
from gvm_variance import gradient, norms_of, quartiles, stats_of

from winnow.budget.allocation import MEAN, PromptValue, allocate_greedily, cures_variance
from winnow.budget.allocators import cures, gvm, knapsack, uniform, vip_dr_grpo, vip_rloo
from winnow.config_file import load
from winnow.core.run import Run
from winnow.recipes import recipe_paths
from winnow.records import FloatArray, Group, IntArray, PromptStats, TrainingSequence
from winnow.seeds import generator
from winnow.training.build import build
from winnow.training.resolve import resolve_members

CONFIG = recipe_paths()["gvm_raft_plus_plus"]
Allocator = Callable[[PromptStats, int], IntArray]
ALLOCATORS: Mapping[str, Allocator] = {
    "uniform": uniform,
    "gvm": lambda stats, budget: gvm(stats, budget, minimum=2),
    "knapsack": knapsack,
    "vip_rloo": vip_rloo,
    "vip_dr_grpo": vip_dr_grpo,
    "cures": lambda stats, budget: cures(stats, budget, minimum=2),
}


@dataclass(frozen=True)
class Pool:
    """K prompts: what the variance of a gradient estimate depends on."""

    correct: FloatArray  # [K, measure] 0 or 1
    norms: FloatArray  # [K, measure] gradient norms, 0 where not correct
    of_one: FloatArray  # [K] z_1
    of_two: FloatArray  # [K] z_2
    means: FloatArray  # [K, K] inner products of the prompts' mean gradients
    tokens: FloatArray  # [K] mean tokens of a rollout
    centred: FloatArray  # [K] CurES's variance from the norms of all rollouts of the pool


def u_statistic(rewards: FloatArray, gram: FloatArray) -> tuple[float, float]:
    """(z_1, z_2) of the kernel over draws from a pool: rewards [N], inner products [N, N] of gradients."""
    n, d = len(rewards), rewards - rewards.mean()
    lengths = np.diag(gram) - 2 * gram.mean(axis=1) + gram.mean()  # squared, of the centred gradients
    squared_mean = float(d @ gram @ d) / n**2
    of_one = float((d**2 * lengths).mean() - squared_mean) / 4
    distances = np.diag(gram)[:, None] + np.diag(gram)[None, :] - 2 * gram
    of_two = float(((rewards[:, None] - rewards[None, :]) ** 2 * distances).mean()) / 4 - squared_mean
    return of_one, of_two


def variances(of_one: FloatArray, of_two: FloatArray, counts: IntArray) -> FloatArray:
    """[K] variances of the prompts' estimates; 0 where there are fewer than 2 rollouts, hence no estimate."""
    n = np.maximum(counts, 2)
    return np.where(counts < 2, 0.0, (4 * (n - 2) * of_one + 2 * of_two) / (n * (n - 1)))


def measure(run: Run, options: Any) -> Pool:
    """Sample twice, and compute the gradient of every rollout of the pool."""
    prompts = run.prompts.prompts[: options.prompts]
    sizes = {"measure": options.measure, "pool": options.pool}
    first, pool = (
        run.verifiers.collect(run.engine.generate(prompts, [size] * len(prompts), run.sampling, seed=(run.seed, name)))
        for name, size in sizes.items()
    )
    mixed = [(a, b) for a, b in zip(first, pool, strict=True) if a.correct.any() and 0 < b.correct.mean() < 1]
    terms, centred, means = [], [], []
    for _, group in mixed:
        gradients = torch.stack([gradient(run.learner, row) for row in every(group)])
        gram, right = (gradients @ gradients.T).double().numpy(), group.correct
        terms.append(u_statistic(right.astype(np.float64), gram))
        means.append(torch.from_numpy(right - right.mean()).to(gradients.dtype) @ gradients / len(right))
        centred.append(cures_of(right, np.sqrt(np.diag(gram))))
    of_one, of_two = np.array(terms).T
    together = torch.stack(means).double()
    return Pool(
        correct=np.stack([group.correct.astype(np.float64) for group, _ in mixed]),
        norms=np.stack([norms_of(run.learner, group) for group, _ in mixed]),
        of_one=of_one,
        of_two=of_two,
        means=(together @ together.T).numpy(),
        tokens=np.array([group.lengths.mean() for _, group in mixed]),
        centred=np.array(centred),
    )


def every(group: Group) -> list[TrainingSequence]:
    return [
        TrainingSequence(prompt=group.prompt, rollout=rollout, group=0, advantage=1.0, weight=1.0)
        for rollout in group.rollouts
    ]


def cures_of(right: Any, norms: FloatArray) -> float:
    """CurES's variance of one prompt, from the norms of right and of wrong rollouts."""
    of = {"right": norms[right], "wrong": norms[~right]}
    (variance,) = cures_variance(
        np.array([right.mean()]),
        *(np.array([own.mean()]) for own in of.values()),
        **{f"{kind}_square": np.array([(own**2).mean()]) for kind, own in of.items()},
    )
    return float(variance)


def efficiency(pool: Pool, counts: IntArray, chosen: IntArray) -> tuple[float, float]:
    """(variance, mean squared error) of the mean gradient of the `chosen` prompts, each times the tokens."""
    own = variances(pool.of_one[chosen], pool.of_two[chosen], counts)
    without = (counts < 2).astype(np.float64)
    lost = float(without @ pool.means[np.ix_(chosen, chosen)] @ without)
    tokens = float((counts * pool.tokens[chosen]).sum())
    return float(own.sum()) * tokens, (float(own.sum()) + lost) * tokens


def plans(pool: Pool, stats: PromptStats, chosen: IntArray, n: int) -> dict[str, IntArray]:
    """The counts of every allocator for the `chosen` prompts, whose statistics are `stats`."""
    budget = n * len(chosen)
    of_pool = np.stack([pool.of_one[chosen], pool.of_two[chosen]], axis=1)
    best = PromptValue(total=lambda n, z: -variances(z[:, 0], z[:, 1], n), least=2)
    return {
        **{name: allocator(stats, budget) for name, allocator in ALLOCATORS.items()},
        "cures_with_all_norms": allocate_greedily(MEAN, pool.centred[chosen], budget, minimum=2),
        "best": allocate_greedily(best, of_pool, budget, minimum=2),
    }


def compared(pool: Pool, n: int, options: Any, *, probe: int = 0) -> dict[str, dict[str, Any]]:
    """Each allocator over uniform: all prompts, and the 95% interval over resampled prompts.

    With a `probe`, statistics come from that many rollouts per prompt, drawn anew in each resample.
    """
    rng, k = generator("allocator_variance", n, probe), len(pool.tokens)
    found: dict[str, list[tuple[float, float]]] = {}
    for resample in range(options.resamples + 1):
        chosen = rng.integers(k, size=k) if resample else np.arange(k)
        correct, norms = pool.correct[chosen], pool.norms[chosen]
        if probe:
            drawn = rng.integers(correct.shape[1], size=(k, probe))
            correct, norms = np.take_along_axis(correct, drawn, 1), np.take_along_axis(norms, drawn, 1)
        counts = plans(pool, stats_of(correct, norms), chosen, n)
        flat = efficiency(pool, counts["uniform"], chosen)
        for name, own in counts.items():
            variance, error = efficiency(pool, own, chosen)
            found.setdefault(name, []).append((variance / flat[0], error / flat[1]))
    return {name: _summary(np.array(ratios), probed=probe > 0) for name, ratios in found.items() if name != "uniform"}


def _summary(ratios: FloatArray, *, probed: bool) -> dict[str, Any]:
    """The value of all prompts (with a probe: the median, as one probe is one of many), and the intervals."""
    middle = np.median(ratios[1:], axis=0) if probed else ratios[0]
    low, high = np.quantile(ratios[1:], [0.025, 0.975], axis=0)
    return {
        name: {"ratio": round(float(middle[i]), 4), "interval_95": [round(float(low[i]), 4), round(float(high[i]), 4)]}
        for i, name in enumerate(("efficiency", "error"))
    }


def main() -> None:
    parser = frame.parser(__doc__, prompts=40, measure=64, pool=48, probe=8, resamples=300, threads=1, seed=0)
    parser.add_argument("--rollouts", type=int, nargs="+", default=[8, 16], metavar="N", help="per prompt")
    options = frame.parse(parser)
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="winnow-variance-") as folder:
        sets = [f"seed={options.seed}", "verify.workers=0"]
        members = resolve_members(load(CONFIG, sets), CONFIG.parent)
        pool = measure(build(members, folder=Path(folder), device=torch.device("cpu")).run, options)
    report = {
        "gradients": "exact, all parameters, per rollout",
        "prompts": len(pool.tokens),
        "pass_rate": quartiles(pool.correct.mean(axis=1)),
        "tokens": quartiles(pool.tokens),
        "z_2 over z_1": quartiles(pool.of_two / pool.of_one),
        "measured": {n: compared(pool, n, options) for n in options.rollouts},
        "probed": {n: compared(pool, n, options, probe=options.probe) for n in options.rollouts},
        "seconds": round(time.perf_counter() - begin, 1),
    }
    frame.finish("allocator_variance", report, options, show=("prompts", "measured", "probed", "seconds"))


if __name__ == "__main__":
    main()
