"""Checks against stale weights, when an engine loads weights and when a step trains on rollouts.

The weights after n steps have version n. Every rollout contains the version of the weights that sampled it. That of a
step's rollouts follows from the configuration alone: see `sampling_version`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from winnow.errors import EngineError
from winnow.records import Group


def check_newer(version: int, *, than: int) -> None:
    """Raise EngineError for weights that are not newer than the engine's."""
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


def sampling_version(step: int, ahead: int) -> int:
    """The version of the weights that sample a step's rollouts; with `rollout.ahead = 1`, steps 0 and 1 share version
    0.
    """
    return max(step - ahead, 0)


def check_fresh(groups: Sequence[Group], version: int) -> None:
    """Raise EngineError for rollouts whose weights are not of `version`: their importance ratios would be
    wrong.
    """
    for rollout in (rollout for group in groups for rollout in group.rollouts):
        if rollout.version != version:
            raise EngineError(
                f"rollouts of version {version} are due, and one was sampled with the weights of version "
                f"{rollout.version}",
                remedy="have the engine sample with the weights that it loaded last, and set `version` of each rollout",
                code="engine.stale_weights",
            )
