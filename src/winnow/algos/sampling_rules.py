"""Rules of sampling: which prompts a step takes, when a prompt has enough rollouts, and which rollouts are cut.

    family `sampler`   (table of P prompts, state, rng, count) -> `count` different rows, and the next state
    family `round`     (rollouts so far) -> [G] how many more each prompt gets
    family `cut`       (rollouts of a round) -> [R] tokens that each of them gets

The members are the functions of `winnow.budget` (sampling.py, rounds.py, cuts.py), which contain the formulas, their
sources, and the ranges of their options. Only `adarft` has a further option here: the field of the data with the label.

Every sampler visits all prompts again and again: after `patience` epochs without a draw, a prompt is drawn with any
results. An epoch is as many draws of single prompts as the task has prompts.
"""

from __future__ import annotations

from winnow.bounds import AtLeastOne, Natural, Positive, ZeroToOne
from winnow.budget import cuts, rounds, sampling
from winnow.budget.sampling import Drawn, PromptTable, State, Streams
from winnow.registry import register

register("sampler", source="none", probability="equal")(sampling.uniform)
register("sampler", probability="known")(sampling.greso)
register("sampler")(sampling.mopps)
register("sampler", probability="known")(sampling.cures)
register("sampler")(sampling.replay)
register("sampler")(sampling.retire)


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
register("round")(rounds.balanced)
register("round")(rounds.positive)
register("round")(rounds.pilot_commit)
register("round")(rounds.screening)

register("cut", cuts=False)(cuts.none)
register("cut")(cuts.token_budget)
register("cut")(cuts.stragglers)
register("cut", reads=("logprobs",))(cuts.unlikely)
