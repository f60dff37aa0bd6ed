"""The rollouts of a run, as a replay reads them: groups with verdicts, without tokens and texts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from winnow.algos.plain_groups import CORRECT_AT
from winnow.records import BoolArray, FloatArray, Group, Outcome, Prompt, Rollout
from winnow.state.logbook import read_rows

COLUMNS = (
    "step", "seed", "prompt_id", "index", "length", "finish", "version", "reward", "correct", "kind", "cause", "keep",
)  # fmt: skip


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
    seed: int  # of the run; with it, winnow's selectors draw the same random numbers again
    shows_ends: bool  # whether the log shows which rollouts were cut off
    groups: tuple[SampledGroup, ...]


def sampled_steps(path: Path) -> Iterator[SampledStep]:
    """The steps of a folder. Raises DataError where it has no rollouts, or damaged ones."""
    for step, of_step in itertools.groupby(read_rows(path, columns=COLUMNS), key=lambda row: int(row["step"])):
        rows = list(of_step)
        groups = itertools.groupby(rows, key=lambda row: str(row["prompt_id"]))
        yield SampledStep(
            step=step,
            seed=int(rows[0]["seed"]),
            shows_ends=all(row["finish"] is not None for row in rows),
            groups=tuple(_group(prompt, list(own)) for prompt, own in groups),
        )


def _group(prompt: str, rows: list[dict[str, Any]]) -> SampledGroup:
    group = Group(
        prompt=Prompt(id=prompt, tokens=np.zeros(0, np.int64), text="", answer=None, task=""),
        rollouts=tuple(_rollout(row) for row in rows),
        outcomes=tuple(_outcome(row) for row in rows),
    )
    tokens = [math.nan if row["length"] is None else float(row["length"]) for row in rows]
    return SampledGroup(
        group=group, kept=np.array([row["keep"] for row in rows], dtype=np.bool_), tokens=np.array(tokens)
    )


def _outcome(row: dict[str, Any]) -> Outcome:
    """The verdict; where the log has a reward and none, a rollout counts as correct from a reward of CORRECT_AT on."""
    correct, kind = row["correct"], row["kind"]
    if kind is None:
        correct = row["reward"] >= CORRECT_AT
        kind = "correct" if correct else "wrong"
    return Outcome(reward=row["reward"], correct=correct, kind=kind, cause=row["cause"])


def _rollout(row: dict[str, Any]) -> Rollout:
    """A rollout of the logged length (0: unknown) without its tokens, which no selector of winnow reads."""
    length = (int(row["length"] or 0),)
    return Rollout(
        index=int(row["index"]),
        tokens=np.broadcast_to(np.int64(0), length),
        logprobs=np.broadcast_to(np.float64(np.nan), length),
        text="",
        finish=row["finish"] or "stop",
        version=int(row["version"]),
    )
