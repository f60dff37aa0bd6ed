"""The rollouts of a group as columns, the page's format, which is shorter than a list of objects.

A column is a list with one value per rollout. If many values are equal, it is {"of": values, "at": places}: the
distinct values, and the place of each rollout's value among them, or one place for all rollouts. The tokens' texts are
{"of": texts, "at": places}, with a list of places for each rollout. Log-probs are integers in units of 1 / `PARTS`.
model.js unpacks this format.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from winnow.commands.report.strict_json import encoded

PARTS = 10_000  # of a nat: a log-prob of 0 is a probability of 1, to 0.005%

Column = list[Any] | dict[str, Any]


def packed(rollouts: Sequence[Mapping[str, Any]]) -> dict[str, Column]:
    """The columns of rollouts that `rollout_data` returned."""
    columns = {name: [rollout[name] for rollout in rollouts] for name in rollouts[0]}
    special = {"pieces": _pieces, "logprobs": _log_probs}
    return {name: special.get(name, _column)(values) for name, values in columns.items()}


def _column(values: list[Any]) -> Column:
    places: dict[Hashable, int] = {}
    at = [places.setdefault(_key(value), len(places)) for value in values]
    if len(places) == 1:
        return {"of": values[:1], "at": 0}
    if len(places) > len(values) // 2:
        return values
    return {"of": [values[at.index(place)] for place in range(len(places))], "at": at}


def _key(value: Any) -> Hashable:
    """A key that is equal for values with equal JSON: it separates True from 1, and equates equal lists."""
    return encoded(value) if isinstance(value, (list, dict)) else (type(value), value)


def _pieces(values: list[Any]) -> Column:
    places: dict[str, int] = {}
    at = [None if of is None else [places.setdefault(piece, len(places)) for piece in of] for of in values]
    return {"of": list(places), "at": at} if any(of is not None for of in values) else {"of": [None], "at": 0}


def _log_probs(values: list[Any]) -> Column:
    return _column([None if of is None else [x if x is None else round(PARTS * x) for x in of] for of in values])
