"""Which prompts a step takes: (table of P prompts, state, rng, count) -> `count` different rows, and the next state.

These members are the functions of `winnow.budget.sampling` with checked options; their formulas and sources are there.
Every member visits all prompts again and again: after `patience` epochs without a draw, a prompt is drawn with any
results. An epoch is as many draws of single prompts as the task has prompts.
"""

from __future__ import annotations

from winnow.budget import sampling
from winnow.budget.sampling import Drawn, PromptTable, State, Streams
from winnow.options import AboveZeroToOne, AtLeastOne, Natural, Positive, ZeroToOne
from winnow.registry import register


@register("sampler", source="none")
def uniform(table: PromptTable, state: State, rng: Streams, count: int) -> Drawn:
    """A new permutation of all prompts in each epoch, cut to whole steps."""
    return sampling.uniform(table, state, rng, count)


@register("sampler")
def greso(
    table: PromptTable,
    state: State,
    rng: Streams,
    count: int,
    *,
    start: ZeroToOne = 0.5,
    target: ZeroToOne = 0.25,
    change: ZeroToOne = 0.01,
    least: AboveZeroToOne = 0.01,
    patience: AtLeastOne = 10,
) -> Drawn:
    """Skip a prompt whose last visits were all right, or all wrong, with a probability that grows with their number.

    GRESO (Zheng et al. 2025, arXiv 2506.02177).
    """
    return sampling.greso(
        table, state, rng, count, start=start, target=target, change=change, least=least, patience=patience
    )


@register("sampler")
def mopps(
    table: PromptTable,
    state: State,
    rng: Streams,
    count: int,
    *,
    target: ZeroToOne = 0.5,
    candidates: AtLeastOne = 8,
    prior: Positive = 1.0,
    patience: AtLeastOne = 10,
) -> Drawn:
    """The candidates whose success rates, sampled from Beta posteriors, are nearest to `target`.

    MoPPS (Qu et al. 2025, arXiv 2507.04632). Its discount of earlier visits is `probe.decay`.
    """
    return sampling.mopps(
        table, state, rng, count, target=target, candidates=candidates, prior=prior, patience=patience
    )


@register("sampler", label="field")
def adarft(
    table: PromptTable,
    state: State,
    rng: Streams,
    count: int,
    *,
    field: str = "difficulty",
    target: ZeroToOne = 0.5,
    sensitivity: Positive = 2.0,
    step_size: Positive = 50.0,
    start: float = 0.0,
    lowest: float = 0.0,
    highest: float = 100.0,
    candidates: Natural = 0,
    patience: AtLeastOne = 10,
) -> Drawn:
    """The prompts whose labelled difficulty is nearest to a level that follows the share of right rollouts.

    AdaRFT (Shi et al. 2025, arXiv 2504.05520). The label is the number in `field` of a problem's meta.
    """
    return sampling.adarft(
        table,
        state,
        rng,
        count,
        target=target,
        sensitivity=sensitivity,
        step_size=step_size,
        start=start,
        lowest=lowest,
        highest=highest,
        candidates=candidates,
        patience=patience,
    )


@register("sampler")
def cures(
    table: PromptTable,
    state: State,
    rng: Streams,
    count: int,
    *,
    temperature: Positive = 0.1,
    prior: Positive = 1.0,
    candidates: Natural = 0,
    patience: AtLeastOne = 10,
) -> Drawn:
    """Prompts with probabilities in proportion to exp(sqrt(p (1 - p)) / temperature).

    The prompt distribution of CurES (Zeng et al. 2025, arXiv 2510.01037).
    """
    return sampling.cures(
        table, state, rng, count, temperature=temperature, prior=prior, candidates=candidates, patience=patience
    )


@register("sampler")
def replay(
    table: PromptTable,
    state: State,
    rng: Streams,
    count: int,
    *,
    share: ZeroToOne = 0.5,
    low: ZeroToOne = 0.24,
    high: ZeroToOne = 0.7,
    cooldown: Natural = 5,
    reuses: Natural = 5,
    patience: AtLeastOne = 10,
) -> Drawn:
    """Up to `share` of a step are earlier prompts with pass rates near one half; the others are those of `uniform`.

    Prompt Replay (Baroian and Berger 2026, arXiv 2603.21177).
    """
    return sampling.replay(
        table,
        state,
        rng,
        count,
        share=share,
        low=low,
        high=high,
        cooldown=cooldown,
        reuses=reuses,
        patience=patience,
    )


@register("sampler")
def retire(
    table: PromptTable,
    state: State,
    rng: Streams,
    count: int,
    *,
    above: AboveZeroToOne = 0.9,
    patience: AtLeastOne = 10,
) -> Drawn:
    """Leave out the prompts whose pass rate at their last visit was `above` or more.

    "No-Positive-Resampling" of ScaleRL (Khatri et al. 2025, arXiv 2510.13786).
    """
    return sampling.retire(table, state, rng, count, above=above, patience=patience)
