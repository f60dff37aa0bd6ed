"""Data for trackers that is read from the run folder, not from events: earlier metrics, rollouts, a picture."""

from __future__ import annotations

import functools
import io
import json
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from winnow.installed import is_installed
from winnow.metrics import is_step
from winnow.state.log import METRICS, rows
from winnow.state.logbook import read_metrics
from winnow.state.rollout_files import ROLLOUTS, StepFile, path_of
from winnow.state.saved_runs import manifest_of
from winnow.trackers.interface import ROLLOUT
from winnow.view.text import encodable, one_line

Rows = list[dict[str, Any]]


def finite_or_nan(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """Metrics as in metrics.jsonl, which stores numbers that are not finite as null; here they are NaN."""
    return {name: v if v is not None and math.isfinite(v) else math.nan for name, v in metrics.items()}


def logged(folder: Path, size: int, since: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """(step, metrics) of each row in the first `size` bytes of metrics.jsonl, from `since` on. Raises DataError."""
    for _, row in rows(folder / METRICS, size):
        step = int(row.pop("step"))
        if step >= since:
            yield step, row


class SharedData:
    """Rollouts and pictures from the run folder, read or drawn once for all trackers that request the same."""

    def __init__(self, folder: Path) -> None:
        # Shared by the trackers' threads, and never held while a tracker is called
        self._reading, self._drawing = threading.Lock(), threading.Lock()
        self._sample = functools.lru_cache(maxsize=1)(functools.partial(_sample, folder))
        self._draw = functools.lru_cache(maxsize=1)(functools.partial(_drawn, folder))

    def rollouts(self, step: int, limit: int) -> Rows:
        """At most `limit` rollouts, in the log's order, with the columns of `ROLLOUT`; none if the step has no file or
        no texts.

        Groups are chosen whole, those with the widest spread of rewards first, as a group baseline learns from such
        differences. Of the last group, which may not fit, the best and the worst rollouts are chosen in turn.
        """
        with self._reading:
            return self._sample(step, limit)

    def picture(self, step: int) -> bytes | None:
        """The plot of the rows up to `step` as PNG; None without matplotlib or a finished step."""
        with self._drawing:
            return self._draw(step)


def _sample(folder: Path, step: int, limit: int) -> Rows:
    """Read the texts of the chosen rollouts alone: all texts of a step may take hundreds of megabytes."""
    path = path_of(folder / ROLLOUTS, step)
    if limit == 0 or not path.exists():
        return []
    file = StepFile(path)
    rewards = file.rows(0, file.parts[-1][1] if file.parts else 0, ("prompt_id", "reward", "keep"))
    # With log.rollouts = "kept" other rollouts have no text: the second pass then chooses among the kept ones
    for places in (range(len(rewards)), [place for place, row in enumerate(rewards) if row["keep"]]):
        chosen = chosen_of([(rewards[place]["prompt_id"], rewards[place]["reward"]) for place in places], limit)
        rows = [row for place in chosen for row in file.rows(places[place], places[place] + 1, ROLLOUT)]
        if all(row["text"] is not None for row in rows):
            return [{name: plain(row[name]) for name in ROLLOUT} for row in rows]
    return []


def chosen_of(rewards: Sequence[tuple[str, float]], limit: int) -> list[int]:
    """Places of at most `limit` (prompt, reward) pairs by the rule of `SharedData.rollouts`.

    A prompt's pairs must be adjacent. A reward of NaN counts as the group's lowest.
    """
    groups = [list(group) for _, group in groupby(range(len(rewards)), key=lambda place: rewards[place][0])]
    value = [-math.inf if math.isnan(reward) else reward for _, reward in rewards]

    def spread(group: list[int]) -> float:
        known = [value[place] for place in group if math.isfinite(value[place])]
        return max(known) - min(known) if known else 0.0

    chosen: list[int] = []
    for group in sorted(groups, key=spread, reverse=True):  # stable: equal spreads keep the log's order
        by_reward = sorted(group, key=lambda place: value[place])
        both_ends = [by_reward[-1 - turn // 2] if turn % 2 == 0 else by_reward[turn // 2] for turn in range(len(group))]
        chosen += both_ends[: limit - len(chosen)]
    return sorted(chosen)


def _drawn(folder: Path, step: int) -> bytes | None:
    if not is_installed("matplotlib"):
        return None
    from winnow.run_view.configuration import evaluations
    from winnow.run_view.plot import draw

    rows = [row for row in read_metrics(folder) if row["step"] <= step]
    name = encodable(one_line(folder.absolute().name), "ascii")  # every font has these characters
    if not any(map(is_step, rows)):
        return None
    figure = draw(rows, title=name, evaluated=evaluations(manifest_of(folder).data))
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=100)
    return drawn.getvalue()


def plain(value: Any) -> Any:
    """The value as a number, a truth value, None or a text; any other value becomes JSON. In a text, a lone surrogate,
    which UTF-8 cannot encode, becomes an escape.
    """
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return plain(json.dumps(value, default=str))
