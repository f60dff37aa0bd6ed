"""Checks against stale weights, when an engine loads weights and when a step trains on rollouts.

The weights after n steps have version n. Every rollout contains the version of the weights that sampled it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from winnow.errors import EngineError
from winnow.records import Group


def check_newer(version: int, *, than: int) -> None:
    """Raise EngineError for weights that are not newer than those of the engine."""
    if version <= than:
        raise EngineError(
            f"the engine already has weights of version {than}, and version {version} is not newer",
            remedy="load each step's weights once, in the order of the steps",
            code="engine.stale_weights",
        )


def check_names(weights: Collection[str], *, known: Collection[str], trained: Collection[str]) -> None:
    """Raise EngineError unless all weights are `known` to the model, and all `trained` ones are among them."""
    if unknown := [name for name in weights if name not in known]:
        raise EngineError(
            f"the engine's model has no weight {unknown[0]!r} ({len(unknown)} such names)",
            remedy="pass the weights of the policy that the engine was made for",
            code="engine.contract",
        )
    if missing := [name for name in trained if name not in weights]:
        raise EngineError(
            f"the weights lack {missing[0]!r} ({len(missing)} such names)",
            remedy="pass every trained weight: any other would stay stale",
            code="engine.contract",
        )


def check_fresh(groups: Sequence[Group], step: int) -> None:
    """Raise EngineError for rollouts of other weights than this step's: their importance ratios would be wrong."""
    for rollout in (rollout for group in groups for rollout in group.rollouts):
        if rollout.version != step:
            raise EngineError(
                f"step {step} received a rollout sampled with the weights of version {rollout.version}",
                remedy="have the engine sample with the weights that it loaded last, and set `version` of each rollout",
                code="engine.stale_weights",
            )
