"""A run as every rank computes it, and the gradients that it made."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from winnow.config_file import validate
from winnow.core import collect
from winnow.learner.optimizer import Optimizer
from winnow.learner.sharding import gather_whole
from winnow.records import Group
from winnow.training.fit import fit
from winnow.training.resolve import resolve_members


@dataclasses.dataclass(frozen=True)
class Ran:
    """What a rank knows of a run at its end."""

    model: Path | None
    steps: int
    gradients: list[dict[str, np.ndarray]]  # whole, of every update that had sequences
    rollouts: list[tuple[str, int, list[int]]]  # prompt, index and tokens, those of probes and evaluations included
    logprobs: list[np.ndarray]  # of each as it was sampled; the log has them in float32


def ran(config: Mapping[str, Any], *, resume: bool = False) -> Ran:
    members = resolve_members(validate(config), Path.cwd())
    with gradients_seen() as gradients, groups_seen() as groups:
        result = fit(members, resume=resume)
    rollouts = [(group.prompt.id, rollout) for group in groups for rollout in group.rollouts]
    return Ran(
        model=result.model,
        steps=result.steps,
        gradients=gradients,
        rollouts=[(prompt, rollout.index, rollout.tokens.tolist()) for prompt, rollout in rollouts],
        logprobs=[rollout.logprobs for _, rollout in rollouts],
    )


@contextlib.contextmanager
def groups_seen() -> Iterator[list[Group]]:
    """All that this rank is given of what all have sampled."""
    seen, gather = list[Group](), collect.gather_groups

    def gather_and_note(*given: Any) -> list[Group]:
        groups = gather(*given)
        seen.extend(groups)
        return groups

    collect.gather_groups = gather_and_note
    try:
        yield seen
    finally:
        collect.gather_groups = gather


@contextlib.contextmanager
def gradients_seen() -> Iterator[list[dict[str, np.ndarray]]]:
    """Of each update as the optimizer is given them, before it clips."""
    seen, step = list[dict[str, np.ndarray]](), Optimizer.step

    def note_and_step(optimizer: Optimizer) -> Any:
        found = [gather_whole(gradient).detach() for gradient in optimizer.gradients()]
        seen.append({str(place): one.to(torch.float64).numpy().copy() for place, one in enumerate(found)})
        return step(optimizer)

    Optimizer.step = note_and_step  # type: ignore[method-assign, assignment]
    try:
        yield seen
    finally:
        Optimizer.step = step  # type: ignore[method-assign]
