"""Selects and allocates again among logged rollouts, and counts what would have been trained on.

A replay changes neither policy nor rollouts. It repeats the decisions of a step on what the step sampled. So it is
exact for one step of a run, and hypothetical for a whole run: after one other update, the next rollouts would differ.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from winnow.algos.advantage import is_flat
from winnow.algos.plain_groups import CORRECT_AT, Use, allocator_of, plain_stats, selector_of, takes_keep, uses_of
from winnow.algos.selectors import Selector
from winnow.errors import ConfigError, DataError
from winnow.families import AllocatorTraits
from winnow.options import Bound
from winnow.records import BoolArray, FloatArray, Group, IntArray, Outcome, Prompt, Rollout
from winnow.seeds import Rng
from winnow.state.logbook import log_notes, read_rows
from winnow.state.saved_runs import manifest_of

COLUMNS = (
    "step", "seed", "prompt_id", "index", "length", "trainable", "finish", "version", "reward", "correct", "kind",
    "cause", "keep",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SampledGroup:
    """One prompt's rollouts of one step."""

    group: Group  # with outcomes
    kept: BoolArray  # [N] as the run itself selected
    tokens: FloatArray  # [N] tokens of the policy; estimates in some logs, NaN where even that is impossible


@dataclass(frozen=True, kw_only=True)
class SampledStep:
    """The groups of one step whose rollouts are logged."""

    step: int
    seed: int  # of the run; with it, winnow's selectors draw the same random numbers again
    shows_ends: bool  # whether the log shows which rollouts were cut off
    groups: tuple[SampledGroup, ...]


def sampled_steps(path: Path) -> Iterator[SampledStep]:
    """The steps of a folder. Raises DataError if it has no rollouts, or damaged ones."""
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
    tokens = np.where([row["length"] is None for row in rows], math.nan, group.lengths)
    return SampledGroup(group=group, kept=np.array([row["keep"] for row in rows], dtype=np.bool_), tokens=tokens)


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
        trainable=row["trainable"],
    )


@dataclass
class Share:
    """Rollouts of a run: all that were sampled, those that the run kept, or those that the replay keeps."""

    rollouts: int = 0
    tokens: float = 0.0  # of completions
    variances: list[float] = field(default_factory=list)  # of the rewards of each prompt with at least one (ddof 0)

    def add(self, rewards: FloatArray, tokens: FloatArray, mask: BoolArray) -> None:
        """Add the rollouts of one prompt that the mask selects. A rollout without a reward counts in the first two."""
        self.rollouts += int(mask.sum())
        self.tokens += float(tokens[mask].sum())
        judged = rewards[mask & ~np.isnan(rewards)]
        if len(judged):
            self.variances.append(float(np.var(judged)))

    @property
    def variance(self) -> float:
        """The mean over prompts; NaN without any."""
        return float(np.mean(self.variances)) if self.variances else float("nan")


@dataclass
class Moved:
    """What an allocator would have changed."""

    name: str
    budget: int = 0  # rollouts
    lacking: int = 0  # rollouts that it adds to some prompts, which the log therefore lacks
    left_out: int = 0  # groups that get none
    counts: list[int] = field(default_factory=list)  # of each group


@dataclass
class Replay:
    """The result for a run."""

    path: Path
    program: str
    select: str  # the names of the selectors
    keep: int
    steps: list[int] = field(default_factory=list)
    groups: int = 0
    largest: int = 0  # rollouts of the largest group
    flat: int = 0  # groups whose rewards are all equal, so that a baseline over the group leaves no gradient
    not_judged: int = 0  # rollouts without a reward
    sampled: Share = field(default_factory=Share)
    kept_by_run: Share = field(default_factory=Share)
    kept: Share = field(default_factory=Share)
    moved: Moved | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def tokens_saved(self) -> float:
        """Tokens of updates: those that the run kept, less those that the replay keeps."""
        return self.kept_by_run.tokens - self.kept.tokens


def replay(
    path: Path,
    *,
    select: Use | Sequence[Use] = "max_variance",
    keep: int = 4,
    allocate: Use | None = None,
) -> Replay:
    """Replay a run folder of winnow, or that of another trainer, whose log may lack verdicts: a rollout then counts as
    correct from a reward of 1 on.

    A selector gets the rewards, verdicts, lengths and, of winnow's runs, how rollouts ended; neither tokens nor texts.
    With winnow's own runs it draws the numbers that the run drew. An allocator with statistics of a probe gets those of
    the very step that it allocates, one with a history those of earlier logged steps; gradient norms are not logged,
    and count as equal. Raises DataError, RunFolderError or ConfigError, the last also where `keep` is above
    the rollouts of every group.
    """
    chosen = selector_of(select, keep=keep, base=Path.cwd())
    names = uses_of(select)
    allocator = None if allocate is None else allocator_of(allocate, base=Path.cwd())
    if not path.exists():
        raise DataError(
            f"cannot read {path}: there is no such folder", remedy="name the folder of a run", code="data.missing"
        )
    program = str(manifest_of(path).data.get("program", "winnow"))
    shown = " then ".join(name if isinstance(name, str) else str(getattr(name, "__name__", name)) for name in names)
    result = Replay(path, program, shown, keep, notes=log_notes(path))
    result.moved = None if allocator is None else Moved(allocator.name)
    visits: dict[str, tuple[int, int]] = {}
    for step in sampled_steps(path):
        if "finished" in names and not step.shows_ends:
            raise ConfigError(
                f"{path}: {program} does not log which rollouts were cut off, and the selector 'finished' reads that",
                remedy="choose another selector",
                key="select",
                code="config.unsupported",
            )
        counts = [len(one.kept) for one in step.groups]
        if allocator is not None and result.moved is not None:
            counts = _allocated(step, allocator, visits, result.moved)
        _add(result, step, counts, chosen)
    if not result.groups:
        raise DataError(f"{path} has no logged rollouts", remedy="name another run", code="data.empty")
    if keep > result.largest and takes_keep(select, base=Path.cwd()):
        raise ConfigError(
            f"keep = {keep} is above {result.largest}, the most rollouts of a prompt in {path}: nothing would ever be "
            f"dropped",
            remedy=f"lower it to at most {result.largest} (on the command line --keep)",
            key="keep",
            code="config.combination",
        )
    return result


def _add(result: Replay, step: SampledStep, counts: Sequence[int], select: Selector) -> None:
    """Select among the first `counts` rollouts of each group (of the logged ones), and add the step to the result."""
    rng = Rng((step.seed, "select", step.step))
    result.steps.append(step.step)
    for one, count in zip(step.groups, counts, strict=True):
        rewards, valid = one.group.rewards, one.group.valid
        keep = np.zeros(len(rewards), dtype=np.bool_)
        available = np.flatnonzero(valid[: max(0, count)])
        if len(available):
            keep[available] = select(one.group.take(available), rng)
        result.groups += 1
        result.largest = max(result.largest, len(rewards))
        result.flat += bool(valid.any()) and is_flat(rewards[valid])
        result.not_judged += int((~valid).sum())
        result.sampled.add(rewards, one.tokens, np.ones(len(rewards), dtype=np.bool_))
        result.kept_by_run.add(rewards, one.tokens, one.kept)
        result.kept.add(rewards, one.tokens, keep)


def _allocated(
    step: SampledStep, allocator: Bound[AllocatorTraits], visits: dict[str, tuple[int, int]], moved: Moved
) -> list[int]:
    """[G] counts of the step's budget; `visits` is prompt id -> (correct, judged) of earlier steps, and is updated."""
    own = {one.group.prompt.id: (int(one.group.correct.sum()), int(one.group.valid.sum())) for one in step.groups}
    ids = tuple(one.group.prompt.id for one in step.groups)
    none: dict[str, tuple[int, int]] = {}
    stats = plain_stats(ids, {"probe": own, "history": visits, "none": none}[allocator.traits.source])
    logged = np.array([len(one.kept) for one in step.groups])
    counts: IntArray = np.asarray(allocator(stats, int(logged.sum())))
    for name, (right, judged) in own.items():
        before = visits.get(name, (0, 0))
        visits[name] = before[0] + right, before[1] + judged
    moved.budget += int(logged.sum())
    moved.lacking += int(np.maximum(counts - logged, 0).sum())
    moved.left_out += int((counts == 0).sum())
    moved.counts += counts.tolist()
    return [int(count) for count in counts]
