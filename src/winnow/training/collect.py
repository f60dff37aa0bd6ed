"""Prompts in, judged groups out: what a step, a probe and an evaluation have in common.

Among several ranks each samples and judges the prompts that it is dealt, and all get all groups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from winnow import ranks
from winnow.algos.dealing import deal
from winnow.engines.base import Engine
from winnow.engines.weight_versions import check_fresh
from winnow.records import Group, Prompt, Rollout, Sampling
from winnow.seeds import SeedName
from winnow.training.gathering import gather_groups
from winnow.verify import Verifiers

Phase = Callable[[str], AbstractContextManager[Any]]
Told = Callable[[Rollout], None]


def collect(
    engine: Engine,
    verifiers: Verifiers,
    prompts: Sequence[Prompt],
    counts: Sequence[int],
    sampling: Sampling,
    *,
    seed: tuple[SeedName, ...],
    phase: Phase = nullcontext,
    version: int | None = None,
    told: Told | None = None,
) -> list[Group]:
    """Sample `counts[i]` rollouts of each prompt and fill in their outcomes; [G] in the order of the prompts.

    A rollout is judged as soon as it is finished, while later ones are sampled. `phase` times "generate" (sampling,
    with the judging that overlaps it) and "verify" (waiting for verdicts afterwards). `told` is called with every
    rollout that is finished, and that this rank samples. Raises EngineError for rollouts of other weights than those of
    `version`, where one is given, before it waits for verdicts; and RankError where another rank has raised.
    """
    own = deal(counts, ranks.count())[ranks.rank()]  # the largest counts first

    def finished(prompt: Prompt, rollout: Rollout) -> None:
        verifiers.submit(prompt, rollout)
        if told is not None:
            told(rollout)

    with ranks.announced("sampling and judging"):
        with phase("generate"):
            asked, each = [prompts[place] for place in own], [counts[place] for place in own]
            groups = engine.generate(asked, each, sampling, seed=seed, on_rollout=finished) if own else []
            if version is not None:
                check_fresh(groups, version)
        with phase("verify"):
            groups = verifiers.collect(groups)
    with phase("gather") if ranks.count() > 1 else nullcontext():
        return gather_groups(prompts, own, groups)
