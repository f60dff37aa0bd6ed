"""Whether an engine has stale weights: what it refuses to load, and what a step refuses to train on.

The weights after n steps have version n. Every rollout says which version sampled it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from winnow.errors import EngineError
from winnow.records import Group


def check_newer(version: int, *, than: int) -> None:
    """Refuse weights that are not newer than those an engine has. Raises EngineError."""
    if version <= than:
        raise EngineError(f"the engine already has weights of version {than}; version {version} would make it stale")


def check_names(weights: Collection[str], *, own: Collection[str], trained: Collection[str]) -> None:
    """Raise EngineError unless the weights are a model's `own`, and all that are `trained` are among them."""
    if unknown := [name for name in weights if name not in own]:
        raise EngineError(f"the engine's model has no weight {unknown[0]!r} ({len(unknown)} such names)")
    if missing := [name for name in trained if name not in weights]:
        raise EngineError(f"the weights lack {missing[0]!r} ({len(missing)} such names); it would stay stale")


def check_fresh(groups: Sequence[Group], step: int) -> None:
    """Rollouts of other weights than this step's would be trained with wrong ratios."""
    for rollout in (rollout for group in groups for rollout in group.rollouts):
        if rollout.version != step:
            raise EngineError(f"step {step} got a rollout sampled by the weights of version {rollout.version}")
