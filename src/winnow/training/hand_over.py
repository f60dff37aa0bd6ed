"""From the learner to the engine, after an update and at a resume."""

from __future__ import annotations

from winnow import ranks
from winnow.engines.base import Engine
from winnow.learner.learner import Learner
from winnow.learner.sharding import GatheredWeights


def hand_over(learner: Learner, engine: Engine, *, version: int) -> None:
    """Give the engine of every rank the weights as they are now, from which on it samples `version`. Where one engine
    fails, all ranks raise.
    """
    weights = learner.weights()
    with ranks.together("handing over the weights"):
        try:
            engine.load(weights, version=version)
        finally:
            if isinstance(weights, GatheredWeights):  # the other ranks wait for what one has not read
                weights.finish()
