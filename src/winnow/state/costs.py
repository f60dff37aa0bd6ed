"""Files of a step's costs: written by `winnow profile`, or manually with two curves.

{"winnow_costs": 1, "source": "...", "per": "prompt",
 "sampling": {"rollouts": [16, 32], "seconds": [5.1, 5.5], "tokens_per_rollout": 210.0, "mixed_lengths": true},
 "update": {"rollouts": [2, 16], "seconds": [0.3, 2.4], "tokens_per_rollout": null},
 "seconds_per_step": 0.0, "seconds_per_rollout": 0.0}
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np

from winnow.algos.costs import CostCurve, Scope, StepCosts
from winnow.errors import DataError
from winnow.state.disk import check_kind

FORMAT = 1
MEASURED = "measured"  # `ending` of a profile's point that has seconds
SAMPLING, UPDATE = "sampling", "update, accumulation"


def read_costs(path: Path) -> StepCosts:
    """The costs in a file. Raises DataError where it cannot be read, lacks a curve, or has a number that is negative or
    not finite.
    """
    try:
        check_kind(path, "a file", follow=True)
        data = json.loads(path.read_bytes())
        return costs_of_profile(data, str(path)) if "winnow_profile" in data else _of_costs(data, path)
    except OSError as error:
        raise DataError(
            f"cannot read {path}: {error.strerror}",
            remedy="name a file that `winnow profile` wrote",
            code="data.unreadable",
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{path} contains no costs of a step ({type(error).__name__}: {error})",
            remedy="name the .json file that `winnow profile` wrote, or one as docs/profile.md describes it",
            code="data.malformed",
        ) from error


def as_json(costs: StepCosts) -> dict[str, Any]:
    """The content of a file that `read_costs` reads."""

    def curve(of: CostCurve) -> dict[str, Any]:
        return {
            "rollouts": of.rollouts.tolist(),
            "seconds": of.seconds.tolist(),
            "tokens_per_rollout": of.tokens_per_rollout,
            "mixed_lengths": of.mixed_lengths,
        }

    return {
        "winnow_costs": FORMAT,
        "source": costs.source,
        "per": costs.per,
        "sampling": curve(costs.sampling),
        "update": curve(costs.update),
        "seconds_per_step": costs.seconds_per_step,
        "seconds_per_rollout": costs.seconds_per_rollout,
    }


def _of_costs(data: Mapping[str, Any], path: Path) -> StepCosts:
    if data["winnow_costs"] != FORMAT:
        raise DataError(
            f"{path} is of format {data['winnow_costs']!r}, and this winnow reads {FORMAT}",
            remedy="measure again with `winnow profile`",
            code="data.malformed",
        )
    if (per := data.get("per", "step")) not in get_args(Scope):
        raise DataError(
            f"{path}: per is {per!r}", remedy=f"write one of {', '.join(get_args(Scope))}", code="data.malformed"
        )

    def curve(name: str) -> CostCurve:
        of = data[name]
        mixed = of.get("mixed_lengths", False)
        return _curve(of["rollouts"], of["seconds"], of.get("tokens_per_rollout"), f"{path}: {name}", mixed=mixed)

    def number(name: str) -> float:
        return _seconds([data.get(name, 0.0)], f"{path}: {name}").item()

    return StepCosts(
        sampling=curve("sampling"),
        update=curve("update"),
        per=per,
        seconds_per_step=number("seconds_per_step"),
        seconds_per_rollout=number("seconds_per_rollout"),
        source=str(data.get("source", path)),
    )


def costs_of_profile(data: Mapping[str, Any], source: str) -> StepCosts:
    """The medians of a profile: of sampling, and of updates on all rollouts with accumulation.

    `data` has "points" in the form of the .json file. `source` names it in messages. Raises DataError for a curve
    without a measured point.
    """

    def curve(what: str, counted: str) -> CostCurve:
        points = [p for p in data["points"] if p["measured"] == what and p["ending"] == MEASURED]
        points.sort(key=lambda point: point[counted])
        lengths = {point["tokens"] / point[counted] for point in points}
        where = f"{source}: {what}"
        if not points:
            raise DataError(
                f"{where}: no point of it was measured",
                remedy="profile with smaller numbers of rollouts",
                code="data.incomplete",
            )
        return _curve([p[counted] for p in points], [p["seconds"] for p in points], max(lengths), where)

    return StepCosts(sampling=curve(SAMPLING, "rollouts"), update=curve(UPDATE, "trained"), source=source)


def _curve(
    rollouts: Sequence[float], seconds: Sequence[float], length: float | None, where: str, *, mixed: bool = False
) -> CostCurve:
    x, y = np.asarray(rollouts, dtype=np.float64), _seconds(seconds, where)
    if x.ndim != 1 or x.shape != y.shape or not len(x):
        raise DataError(
            f"{where}: rollouts has shape {x.shape} and seconds has shape {y.shape}",
            remedy="write two lists of the same length, of one number at least",
            code="data.malformed",
        )
    if not (np.isfinite(x).all() and x[0] > 0 and (np.diff(x) > 0).all()):
        raise DataError(
            f"{where}: the numbers of rollouts do not ascend from above 0",
            remedy="put the points in order",
            code="data.malformed",
        )
    if length is not None and not 0 < length < np.inf:
        raise DataError(
            f"{where}: tokens_per_rollout is {length!r}",
            remedy="write a number above 0, or null",
            code="data.malformed",
        )
    if not isinstance(mixed, bool):
        raise DataError(f"{where}: mixed_lengths is {mixed!r}", remedy="write true or false", code="data.malformed")
    return CostCurve(x, y, None if length is None else float(length), mixed)


def _seconds(values: Sequence[float], where: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    seconds = np.asarray(values, dtype=np.float64)
    if not (np.isfinite(seconds) & (seconds >= 0)).all():
        raise DataError(
            f"{where}: seconds are negative or not finite",
            remedy="write finite numbers of 0 or more",
            code="data.malformed",
        )
    return seconds
