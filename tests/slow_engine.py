"""An engine for runs at rollout.ahead = 1: native on a copy of the weights, in a thread, slowed by random sleeps."""

from __future__ import annotations

import dataclasses
import os
import random
import time
from typing import Any

import winnow
from winnow.engines.base import EngineContext
from winnow.engines.native.sampler import Native

SLEEPS = "WINNOW_SLEEPS"  # the seed of the sleeps; not set: none
LONGEST = 0.05  # seconds of a sleep


def accept(config: Any) -> None:
    """It may sample while the policy is trained: it has a copy of the weights."""


class Slow:
    """Sleeps before a request, and whenever a rollout is finished."""

    def __init__(self, engine: Native) -> None:
        self._engine = engine
        seed = os.environ.get(SLEEPS)
        self._sleeps = random.Random(seed) if seed else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def generate(self, prompts: Any, counts: Any, sampling: Any, *, seed: Any, on_rollout: Any = None) -> Any:
        def slowed(prompt: Any, rollout: Any) -> None:
            self._sleep()
            if on_rollout is not None:
                on_rollout(prompt, rollout)

        self._sleep()
        return self._engine.generate(prompts, counts, sampling, seed=seed, on_rollout=slowed)

    def _sleep(self) -> None:
        if self._sleeps is not None:
            time.sleep(self._sleeps.uniform(0, LONGEST))


@winnow.register("engine", "slow", ahead=accept)
def slow(context: EngineContext, *, folder: str = "") -> Any:
    """Native on a copy of the policy; `folder` is not read."""
    return Slow(Native(dataclasses.replace(context, sharded=True)))
