"""How good is the policy on problems it never trained on? The same engine and verifiers, and no learner."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from winnow.engines.base import Engine
from winnow.records import Group, Prompt, Sampling
from winnow.seeds import SeedName
from winnow.training.collect import Told, collect
from winnow.training.evaluation_metrics import greedy_metrics, per_problem, sampled_metrics, votes
from winnow.training.judged import judged
from winnow.verify import Verifiers


@dataclass(frozen=True)
class Evaluation:
    """The metrics of one evaluation, and the rollouts behind them."""

    metrics: dict[str, float]
    seconds: float
    sampled: tuple[Group, ...]
    greedy: tuple[Group, ...]


def evaluate(
    engine: Engine,
    verifiers: Verifiers,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    *,
    rollouts_per_prompt: int,
    greedy: bool,
    seed: tuple[SeedName, ...],
    of: str | None = None,
    told: Told | None = None,
) -> Evaluation:
    """Sample each problem `rollouts_per_prompt` times, and once at temperature 0 if asked.

    The random numbers depend on (seed, problem, index) alone, so two evaluations of one run differ by the weights only.
    Metrics are eval/..., or, `of` a further task, eval/task/.... `told` is called with every rollout.
    Raises VerifierError when too many verdicts failed, those of the greedy rollouts included.
    """
    begin = time.perf_counter()
    sampled = answered(engine, verifiers, prompts, sampling, rollouts_per_prompt, seed=seed, told=told)
    best = answered(engine, verifiers, prompts, greedily(sampling), 1, seed=seed, told=told) if greedy else ()
    verifiers.check_evaluation([*sampled, *best])
    problems = [judged(group) for group in sampled]
    values = per_problem(problems, [votes(problem) for problem in problems], rollouts_per_prompt)
    found = {
        **sampled_metrics(problems, values),
        **greedy_metrics([judged(group) for group in best]),
        "timed_out": float(sum(int(g.timed_out.sum()) for g in (*sampled, *best))),
    }
    seconds = time.perf_counter() - begin
    return Evaluation(named({**found, "seconds": seconds}, of), seconds, sampled, best)


def answered(
    engine: Engine,
    verifiers: Verifiers,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    count: int,
    *,
    seed: tuple[SeedName, ...],
    told: Told | None = None,
) -> tuple[Group, ...]:
    """`count` judged rollouts of each prompt."""
    return tuple(collect(engine, verifiers, prompts, [count] * len(prompts), sampling, seed=seed, told=told))


def greedily(sampling: Sampling) -> Sampling:
    """The same limits at temperature 0."""
    return Sampling(max_new_tokens=sampling.max_new_tokens, temperature=0.0, stop=sampling.stop)


def named(metrics: dict[str, float], of: str | None) -> dict[str, float]:
    """Metrics under their names in a log."""
    prefix = "eval/" if of is None else f"eval/{of}/"
    return {f"{prefix}{name}": value for name, value in metrics.items()}
