"""A run that was logged, as a replay reads it: the same form for every program that can have written it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from winnow.records import BoolArray, FloatArray, Group


@dataclass(frozen=True, kw_only=True)
class SampledGroup:
    """One prompt's rollouts of one step."""

    group: Group  # with outcomes
    kept: BoolArray  # [N] as the run itself selected
    tokens: FloatArray  # [N] completion tokens; estimates in some logs, NaN where even that is impossible


@dataclass(frozen=True, kw_only=True)
class SampledStep:
    """The groups of one step whose rollouts are logged."""

    step: int
    groups: tuple[SampledGroup, ...]


@dataclass(kw_only=True)
class LoggedRun:
    """A run's log. `steps` can be read once; `notes` is complete after that."""

    program: str
    seed: int  # of the run; with it, winnow's selectors draw the same random numbers again
    steps: Iterator[SampledStep]
    estimated: bool  # whether tokens are estimates
    notes: list[str]  # what was omitted or not read, in sentences
