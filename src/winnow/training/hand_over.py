"""Sync the learner's weights to the engine, after the updates of a step and at a resume."""

from __future__ import annotations

from winnow import ranks
from winnow.engines.base import Engine
from winnow.learner.learner import Learner
from winnow.learner.sharding import GatheredWeights


def sync_weights(learner: Learner, engine: Engine, *, version: int) -> None:
    """Load the present weights into the engine of every rank, which samples them as `version` from then on.

    Where one engine fails, all ranks raise.
    """
    weights = learner.weights()
    with ranks.together("syncing the weights"):
        try:
            engine.load(weights, version=version)
        finally:
            if isinstance(weights, GatheredWeights):
                # Each read of a sharded tensor is a collective of all ranks: without the rest, the others would hang
                weights.finish()
