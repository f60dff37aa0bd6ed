"""Evaluation of the policy on held-out problems, with the engine and the verifiers of training."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from winnow.engines.base import Engine
from winnow.records import Group, Prompt, Sampling
from winnow.seeds import SeedName
from winnow.training.collect import OnRollout, collect
from winnow.training.evaluation_metrics import count_votes, greedy_metrics, per_problem, sampled_metrics
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
    on_rollout: OnRollout | None = None,
) -> Evaluation:
    """Sample each problem `rollouts_per_prompt` times, and with `greedy` once more at temperature 0.

    The random numbers depend on (seed, problem, index) alone, so two evaluations of one run differ by the weights only.
    Metrics are eval/... for the run's task, and eval/NAME/... where `of` is the NAME of a further task. `on_rollout` is
    called with every finished rollout of this rank. Raises VerifierError when too many verdicts failed, greedy rollouts
    included.
    """
    begin = time.perf_counter()
    sampled = collect_rollouts(
        engine, verifiers, prompts, sampling, rollouts_per_prompt, seed=seed, on_rollout=on_rollout
    )
    best = (
        collect_rollouts(engine, verifiers, prompts, greedy_sampling(sampling), 1, seed=seed, on_rollout=on_rollout)
        if greedy
        else ()
    )
    verifiers.check_evaluation([*sampled, *best])
    problems = [judged(group) for group in sampled]
    values = per_problem(problems, [count_votes(problem) for problem in problems], rollouts_per_prompt)
    metrics = {
        **sampled_metrics(problems, values),
        **greedy_metrics([judged(group) for group in best]),
        "timed_out": float(sum(int(g.timed_out.sum()) for g in (*sampled, *best))),
    }
    seconds = time.perf_counter() - begin
    return Evaluation(with_prefix({**metrics, "seconds": seconds}, of), seconds, sampled, best)


def collect_rollouts(
    engine: Engine,
    verifiers: Verifiers,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    count: int,
    *,
    seed: tuple[SeedName, ...],
    on_rollout: OnRollout | None = None,
) -> tuple[Group, ...]:
    """`count` judged rollouts of each prompt."""
    return tuple(
        collect(engine, verifiers, prompts, [count] * len(prompts), sampling, seed=seed, on_rollout=on_rollout)
    )


def greedy_sampling(sampling: Sampling) -> Sampling:
    """Sampling settings with the same limits at temperature 0."""
    return Sampling(max_new_tokens=sampling.max_new_tokens, temperature=0.0, stop=sampling.stop)


def with_prefix(metrics: dict[str, float], of: str | None) -> dict[str, float]:
    """The metrics by their names in a log: eval/..., or with `of` eval/OF/...."""
    prefix = "eval/" if of is None else f"eval/{of}/"
    return {f"{prefix}{name}": value for name, value in metrics.items()}
