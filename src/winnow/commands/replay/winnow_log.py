"""A run folder of winnow as a `LoggedRun`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from winnow.commands.replay.logged import LoggedRun, SampledGroup, SampledStep
from winnow.records import Group, Outcome, Prompt, Rollout
from winnow.state.logbook import read_rows

COLUMNS = (
    "step", "seed", "prompt_id", "index", "length", "finish", "version", "reward", "correct", "kind", "cause", "keep",
)  # fmt: skip


def read_winnow(path: Path) -> LoggedRun:
    """The run of a folder. Raises DataError where it has no rollouts, or damaged ones."""
    rows = read_rows(path, columns=COLUMNS)
    first = next(rows, None)
    seed = 0 if first is None else int(first["seed"])
    rows = itertools.chain([] if first is None else [first], rows)
    return LoggedRun(program="winnow", seed=seed, steps=_steps(rows), estimated=False, notes=[])


def _steps(rows: Iterator[dict[str, Any]]) -> Iterator[SampledStep]:
    for step, of_step in itertools.groupby(rows, key=lambda row: int(row["step"])):
        groups = itertools.groupby(of_step, key=lambda row: str(row["prompt_id"]))
        yield SampledStep(step=step, groups=tuple(_group(prompt, list(own)) for prompt, own in groups))


def _group(prompt: str, rows: list[dict[str, Any]]) -> SampledGroup:
    group = Group(
        prompt=Prompt(id=prompt, tokens=np.zeros(0, np.int64), text="", answer=None, task=""),
        rollouts=tuple(_rollout(row) for row in rows),
        outcomes=tuple(
            Outcome(reward=row["reward"], correct=row["correct"], kind=row["kind"], cause=row["cause"]) for row in rows
        ),
    )
    return SampledGroup(
        group=group, kept=np.array([row["keep"] for row in rows], dtype=np.bool_), tokens=group.lengths.astype(float)
    )


def _rollout(row: dict[str, Any]) -> Rollout:
    """A rollout of the logged length without its tokens, which no selector of winnow reads."""
    length = (int(row["length"]),)
    return Rollout(
        index=int(row["index"]),
        tokens=np.broadcast_to(np.int64(0), length),
        logprobs=np.broadcast_to(np.float64(np.nan), length),
        text="",
        finish=row["finish"],
        version=int(row["version"]),
    )
