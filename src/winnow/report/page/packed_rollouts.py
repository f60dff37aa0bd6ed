"""The rollouts of a group by columns, as the page holds them: shorter than a list of objects.

A column is a list, one value per rollout; or {"of": values, "at": places}, where many are alike: its different values,
and the place among them of each rollout's own, or one place for all. The tokens' texts are {"of": texts, "at": places},
with a list of places for each rollout. Log-probs are whole numbers of 1 / `PARTS`. model.js takes this apart.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from winnow.report.page.strict_json import encoded

PARTS = 10_000  # of a nat: a log-prob of 0 is a probability of 1, to 0.005%

Column = list[Any] | dict[str, Any]


def packed(rollouts: Sequence[Mapping[str, Any]]) -> dict[str, Column]:
    """The columns of rollouts as `rollout_data` makes them."""
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
    """Equal for values that are written alike: True is not 1, and two lists may be one."""
    return encoded(value) if isinstance(value, (list, dict)) else (type(value), value)


def _pieces(values: list[Any]) -> Column:
    places: dict[str, int] = {}
    at = [None if of is None else [places.setdefault(piece, len(places)) for piece in of] for of in values]
    return {"of": list(places), "at": at} if any(of is not None for of in values) else {"of": [None], "at": 0}


def _log_probs(values: list[Any]) -> Column:
    return _column([None if of is None else [x if x is None else round(PARTS * x) for x in of] for of in values])
