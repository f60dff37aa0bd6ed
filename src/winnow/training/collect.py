"""Samples and judges the rollouts of a list of prompts, for a step, a probe and an evaluation.

With several ranks, each samples and judges its share of the prompts, and every rank gets all groups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from winnow import ranks
from winnow.algos.division import deal
from winnow.engines.base import Engine
from winnow.engines.weights import check_fresh
from winnow.records import Group, Prompt, Rollout, Sampling
from winnow.seeds import SeedName
from winnow.training.gathering import gather_groups
from winnow.verify import Verifiers

Phase = Callable[[str], AbstractContextManager[Any]]
OnRollout = Callable[[Rollout], None]


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
    on_rollout: OnRollout | None = None,
) -> list[Group]:
    """Sample `counts[i]` rollouts of each prompt and fill in their outcomes; [G] in the order of the prompts.

    A finished rollout is judged while later ones are sampled. `phase` times "generate" (sampling, with the judging that
    overlaps it) and "verify" (waiting for verdicts afterwards). `on_rollout` is called with every finished rollout of
    this rank.

    Raises EngineError, before the wait for verdicts, for rollouts of other weights than those of `version` (if given).
    Raises RankError where another rank raised.
    """
    places = deal(counts, ranks.count())[ranks.rank()]  # of this rank's prompts; the largest counts are dealt first

    def finish(prompt: Prompt, rollout: Rollout) -> None:
        verifiers.submit(prompt, rollout)
        if on_rollout is not None:
            on_rollout(rollout)

    with ranks.announced("sampling and judging"):
        with phase("generate"):
            own_prompts, own_counts = [prompts[place] for place in places], [counts[place] for place in places]
            groups = engine.generate(own_prompts, own_counts, sampling, seed=seed, on_rollout=finish) if places else []
            if version is not None:
                check_fresh(groups, version)
        with phase("verify"):
            groups = verifiers.collect(groups)
    with phase("gather") if ranks.count() > 1 else nullcontext():
        return gather_groups(prompts, places, groups)
