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
from winnow.learner.optimizer import Optimizer
from winnow.learner.sharding import whole
from winnow.training.fit import fit
from winnow.training.resolve import resolve_members


@dataclasses.dataclass(frozen=True)
class Ran:
    """What a rank knows of a run at its end."""

    model: Path | None
    steps: int
    gradients: list[dict[str, np.ndarray]]  # whole, of every update that had sequences


def ran(config: Mapping[str, Any], *, resume: bool = False, allow_change: tuple[str, ...] = ()) -> Ran:
    members = resolve_members(validate(config), Path.cwd())
    with gradients_seen() as seen:
        result = fit(members, resume=resume, allow_change=allow_change)
    return Ran(result.model, result.steps, seen)


@contextlib.contextmanager
def gradients_seen() -> Iterator[list[dict[str, np.ndarray]]]:
    """Of each update as the optimizer is given them, before it clips."""
    seen, step = list[dict[str, np.ndarray]](), Optimizer.step

    def note_and_step(optimizer: Optimizer) -> Any:
        found = [whole(gradient).detach() for gradient in optimizer.gradients()]
        seen.append({str(place): one.to(torch.float64).numpy().copy() for place, one in enumerate(found)})
        return step(optimizer)

    Optimizer.step = note_and_step  # type: ignore[method-assign, assignment]
    try:
        yield seen
    finally:
        Optimizer.step = step  # type: ignore[method-assign]
