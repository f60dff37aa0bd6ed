"""Reading a run's rollouts: what was asked, what was answered, what it earned, and whether it was trained on."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from winnow.errors import DataError
from winnow.records import Outcome
from winnow.report.text import one_line, quoted
from winnow.state.log_rows import LoggedGroup
from winnow.state.logbook import read_metrics, read_rollouts

QUESTION = 400
TEXT = 600


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which rollouts to show."""

    step: int | None = None  # None: the last step; every step when `failed` or `prompt` is asked for
    worst: int | None = None  # groups with the lowest mean reward
    best: int | None = None  # groups with the highest
    dropped: bool = False  # only rollouts that were not trained on
    failed: bool = False  # only rollouts without a verdict
    prompt: str | None = None  # only prompts whose id begins so
    full: bool = False  # whole texts


def show(path: Path, choice: Choice) -> Iterator[str]:
    """One block of text per group of a run folder, or of its rollouts file. Raises DataError for what is not there."""
    step = choice.step
    if step is None and not (choice.failed or choice.prompt):
        step = last_step(path)
    found = False
    for logged in _ranked(_asked(path, step, choice), choice):
        found = True
        yield _block(logged, choice)
    if not found:
        where = "" if step is None else f" in step {step}"
        raise DataError(f"{path} holds no such rollouts{where}; leave out an option, or name another step")


def last_step(path: Path) -> int:
    """The newest step whose rollouts are complete. Raises DataError when there is none."""
    if not path.exists():
        raise DataError(f"cannot read {path}: there is no such file or folder; name a run folder or its rollouts.jsonl")
    folder = path if path.is_dir() else path.parent
    steps = [int(row["step"]) for row in read_metrics(folder) if "budget/rollouts" in row]
    if not steps:
        raise DataError(f"{folder} has not finished a step yet")
    return steps[-1]


def _asked(path: Path, step: int | None, choice: Choice) -> Iterator[LoggedGroup]:
    for logged in read_rollouts(path, step):
        if logged.group.prompt.id.startswith(choice.prompt or "") and _places(logged, choice):
            yield logged


def _ranked(groups: Iterable[LoggedGroup], choice: Choice) -> Iterable[LoggedGroup]:
    """Only the worst or best where asked for; a group without any verdict is neither."""
    if choice.worst is None and choice.best is None:
        return groups
    judged = (logged for logged in groups if logged.group.valid.any())
    pick: Callable[..., list[LoggedGroup]] = heapq.nsmallest if choice.worst is not None else heapq.nlargest
    return pick(choice.worst or choice.best or 0, judged, key=_mean_reward)


def _mean_reward(logged: LoggedGroup) -> float:
    return float(np.nanmean(logged.group.rewards))


def _places(logged: LoggedGroup, choice: Choice) -> list[int]:
    outcomes = logged.group.outcomes or ()
    return [
        place
        for place, (outcome, reason) in enumerate(zip(outcomes, logged.reasons, strict=True))
        if (outcome.failed or not choice.failed) and (reason != "kept" or not choice.dropped)
    ]


def _block(logged: LoggedGroup, choice: Choice) -> str:
    group = logged.group
    kept, count = logged.reasons.count("kept"), len(group.rollouts)
    mean = f"{_mean_reward(logged):.3f}" if group.valid.any() else "none"
    lines = [
        f"step {logged.step}  {one_line(group.prompt.id)}  trained on {kept} of {count} rollouts  mean reward {mean}",
        quoted(group.prompt.text, limit=None if choice.full else QUESTION, indent="  "),
        f"  gold: {one_line(str(group.prompt.answer))}",
    ]
    return "\n".join([*lines, *(_rollout(logged, place, choice) for place in _places(logged, choice)), ""])


def _rollout(logged: LoggedGroup, place: int, choice: Choice) -> str:
    group = logged.group
    assert group.outcomes is not None, "a logged group is filled"
    assert group.advantages is not None, "a logged group is filled"
    rollout, outcome = group.rollouts[place], group.outcomes[place]
    weight = logged.weights[place]
    numbers = [
        f"  #{rollout.index} {_verdict(outcome)}",
        f"advantage {float(np.mean(group.advantages[place])) if len(rollout.tokens) else 0.0:+.3f}",
        *([] if weight is None else [f"weight {weight:.3g}"]),
        f"{len(rollout.tokens)} tokens, {_ENDED[rollout.finish]}",
        one_line(logged.reasons[place]),
    ]
    lines = ["  ".join(numbers), quoted(rollout.text, limit=None if choice.full else TEXT, indent="    ")]
    if outcome.answer is not None:
        lines.append(f"    answer read: {one_line(outcome.answer)}")
    if outcome.detail:
        lines.append(quoted(outcome.detail, limit=None, indent="    "))
    return "\n".join(lines)


_ENDED = {"stop": "ended", "length": "cut off"}


def _verdict(outcome: Outcome) -> str:
    return f"failed ({outcome.cause})" if outcome.failed else f"{outcome.kind}  reward {outcome.reward:.3f}"
