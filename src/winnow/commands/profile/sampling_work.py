"""The work of a sampling point: concurrent rollouts, all of the maximum length that the configuration allows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from winnow.commands.profile.points import Work, split_evenly
from winnow.engines.base import make_engine
from winnow.models.load import Loaded
from winnow.records import Prompt
from winnow.training.build import engine_context
from winnow.training.members import Members
from winnow.training.prompts import training_sampling

NO_BOUND = 2**50  # bytes of keys and values, more than any machine has


@contextmanager
def sampling_work(
    members: Members, policy: Loaded, prompts: Sequence[Prompt], rollouts: int
) -> Iterator[Callable[[int], Work]]:
    """A function that calls the engine once; its argument is part of the seed.

    Every rollout has `rollout.max_new_tokens` tokens, so that points differ only in the number of rollouts. Keys and
    values are not bounded: all rollouts run concurrently, or the point runs out of memory.
    """
    config = members.config
    counts = split_evenly(rollouts, per_prompt=config.rollout.rollouts_per_prompt, prompts=len(prompts))
    context = dataclasses.replace(
        engine_context(config, policy, NO_BOUND), stop_tokens=(), max_rollouts_at_once=rollouts
    )
    sampling = dataclasses.replace(training_sampling(config), stop=())
    engine = make_engine(members.engine, context, name=config.rollout.engine.label)

    def sample(number: int) -> Work:
        groups = engine.generate(prompts[: len(counts)], counts, sampling, seed=(config.seed, "profile", number))
        return Work(tokens=sum(int(group.lengths.sum()) for group in groups))

    try:
        yield sample
    finally:
        engine.close()
