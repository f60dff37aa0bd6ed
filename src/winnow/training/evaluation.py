"""How good is the policy on problems it never trained on? The same engine and verifiers, and no learner."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from winnow.algos.estimators import pass_at_k, standard_error
from winnow.engines.base import Engine
from winnow.records import Group, Prompt, Sampling
from winnow.seeds import SeedName
from winnow.training.collect import collect
from winnow.verify import Verifiers


@dataclass(frozen=True)
class Evaluation:
    """The metrics of one evaluation, and the rollouts behind them."""

    metrics: dict[str, float]
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
) -> Evaluation:
    """Sample each problem `rollouts_per_prompt` times, and once at temperature 0 if asked.

    The random numbers depend on (seed, problem, index) alone, so two evaluations of one run differ by the weights only.
    Raises VerifierError when too many verdicts failed, those of the greedy rollouts included.
    """
    begin = time.perf_counter()

    def judged(sampling: Sampling, count: int) -> tuple[Group, ...]:
        return tuple(collect(engine, verifiers, prompts, [count] * len(prompts), sampling, seed=seed))

    sampled = judged(sampling, rollouts_per_prompt)
    best = judged(greedily(sampling), 1) if greedy else ()
    verifiers.check_evaluation([*sampled, *best])
    metrics = {**_sampled_metrics(sampled), **_pass_at(sampled, rollouts_per_prompt), **_greedy_metrics(best)}
    metrics["eval/timed_out"] = float(sum(int(g.timed_out.sum()) for g in (*sampled, *best)))
    return Evaluation({**metrics, "eval/seconds": time.perf_counter() - begin}, sampled, best)


def greedily(sampling: Sampling) -> Sampling:
    """The same limits at temperature 0."""
    return Sampling(max_new_tokens=sampling.max_new_tokens, temperature=0.0, stop=sampling.stop)


def _sampled_metrics(groups: Sequence[Group]) -> dict[str, float]:
    judged = [g for g in groups if g.valid.any()]
    rollouts = [r for g in groups for r in g.rollouts]
    metrics = {
        "eval/length_mean": float(np.mean([len(r.tokens) for r in rollouts])),
        "eval/truncated": float(np.mean([r.finish == "length" for r in rollouts])),
        "eval/failed": float(sum(int((~g.valid).sum()) for g in groups)),
    }
    if not judged:
        return metrics
    correct = np.array([g.correct.sum() for g in judged])
    verified = np.array([g.valid.sum() for g in judged])
    accuracy = correct / verified
    return metrics | {
        "eval/accuracy_sampled": float(accuracy.mean()),
        "eval/accuracy_sampled_sem": standard_error(accuracy),
        "eval/reward_mean": float(np.mean(np.concatenate([g.rewards[g.valid] for g in judged]))),
    }


def _pass_at(groups: Sequence[Group], k: int) -> dict[str, float]:
    """Over the problems with k verdicts: a verifier that failed costs its problem, and does not change the metric."""
    complete = [g for g in groups if g.valid.sum() >= k]
    if not complete:
        return {}
    correct = np.array([g.correct.sum() for g in complete])
    verified = np.array([g.valid.sum() for g in complete])
    return {f"eval/pass_at_{k}": float(pass_at_k(correct, verified, k).mean())}


def _greedy_metrics(groups: Sequence[Group]) -> dict[str, float]:
    judged = [g for g in groups if g.valid.any()]
    return {"eval/accuracy_greedy": float(np.mean([g.correct.all() for g in judged]))} if judged else {}
