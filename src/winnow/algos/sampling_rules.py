"""Rules of sampling: which prompts a step takes, when a prompt has enough rollouts, and which rollouts are cut.

    family `sampler`   (table of P prompts, state, rng, count) -> `count` different rows, and the next state
    family `round`     (rollouts so far) -> [G] how many more each prompt gets
    family `cut`       (rollouts of a round) -> [R] tokens that each of them gets

The members are functions of `winnow.budget` (sampling.py, rounds.py, cuts.py), which contain the formulas and their
sources. Here their options get bounds.

Every sampler visits all prompts again and again: after `patience` epochs without a draw, a prompt is drawn with any
results. An epoch is as many draws of single prompts as the task has prompts.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from winnow.budget import cuts, rounds, sampling
from winnow.budget.sampling import Drawn, PromptTable, State, Streams
from winnow.options import AboveZeroToOne, AtLeastOne, Natural, Positive, ZeroToOne, bounded
from winnow.registry import register

LogProb = Annotated[float, Field(le=0)]

register("sampler", source="none", probability="equal")(sampling.uniform)
register("sampler", probability="known")(
    bounded(
        sampling.greso,
        start=ZeroToOne,
        target=ZeroToOne,
        change=ZeroToOne,
        least=AboveZeroToOne,
        patience=AtLeastOne,
    )
)
register("sampler")(
    bounded(sampling.mopps, target=ZeroToOne, candidates=AtLeastOne, prior=Positive, patience=AtLeastOne)
)
register("sampler", probability="known")(
    bounded(sampling.cures, temperature=Positive, prior=Positive, candidates=Natural, patience=AtLeastOne)
)
register("sampler")(
    bounded(
        sampling.replay,
        share=ZeroToOne,
        low=ZeroToOne,
        high=ZeroToOne,
        cooldown=Natural,
        reuses=Natural,
        patience=AtLeastOne,
    )
)
register("sampler")(bounded(sampling.retire, above=AboveZeroToOne, patience=AtLeastOne))


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


register("round", reads_verdicts=False)(rounds.single)
register("round")(bounded(rounds.balanced, right=Natural, wrong=Natural, per_round=AtLeastOne))
register("round")(bounded(rounds.positive, right=AtLeastOne, per_round=AtLeastOne))
register("round")(bounded(rounds.pilot_commit, pilot=AtLeastOne, low=ZeroToOne, high=ZeroToOne))
register("round")(bounded(rounds.screening, pilot=AtLeastOne))

register("cut", cuts=False)(cuts.none)
register("cut")(bounded(cuts.token_budget, tokens=AtLeastOne))
register("cut")(bounded(cuts.stragglers, share=AboveZeroToOne))
register("cut", reads=("logprobs",))(bounded(cuts.unlikely, after=AtLeastOne, least=LogProb))
