"""Two models on the same problems, as data of the page: the categories, and the changed problems that fit."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from winnow.commands.report.rollouts import cut
from winnow.commands.report.strict_json import encoded
from winnow.evaluation.comparison import CATEGORIES, ChangedProblem, ComparedFolders, Comparison

ROOM = 2_000_000  # bytes of changed problems, of all comparisons of two evaluations
LONGEST = 20_000  # characters of a text
NAME = 200  # characters


def evaluation_data(name: str, compared: ComparedFolders) -> dict[str, Any]:
    """The comparisons of two evaluations, with the title `name`."""
    room = ROOM // max(1, len(compared.comparisons))
    return {
        "name": cut(name, NAME),
        "models": {"other": cut(compared.models.other, NAME), "model": cut(compared.models.model, NAME)},
        "notes": [cut(note, 5 * NAME) for note in compared.notes],
        "comparisons": [_comparison(one, room) for one in compared.comparisons],
    }


def _comparison(one: Comparison, room: int) -> dict[str, Any]:
    return {
        "task": cut(one.task, NAME),
        "mode": one.mode,
        "problems": one.problems,
        "other": one.other,
        "model": one.model,
        "interval": list(one.interval),
        "p_value": one.test.p_value,
        "won": len(one.won),
        "lost": len(one.lost),
        "categories": [{"label": CATEGORIES[of.category], **of._asdict()} for of in one.categories],
        "changes": list(_fitting(one, room)),
    }


def _fitting(one: Comparison, room: int) -> Iterator[dict[str, Any]]:
    """The problems that changed most, alternately a better and a worse one, as many as fit in `room` bytes."""
    for pair in itertools.zip_longest(one.won, one.lost):
        for better, change in zip((True, False), pair, strict=True):
            if change is None:
                continue
            data = {"better": better, **_change(change)}
            room -= len(encoded(data))
            if room < 0:
                return
            yield data


def _change(change: ChangedProblem) -> dict[str, Any]:
    texts = {name: cut(value, LONGEST) for name, value in change._asdict().items() if isinstance(value, str)}
    return {**change._asdict(), **texts, "id": cut(change.id, NAME)}
