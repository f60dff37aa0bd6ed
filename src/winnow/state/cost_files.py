"""Files of a step's costs: written by `winnow profile`, or manually with two curves.

{"winnow_costs": 1, "source": "...", "per": "prompt",
 "sampling": {"rollouts": [16, 32], "seconds": [5.1, 5.5], "tokens_per_rollout": 210.0, "mixed_lengths": true},
 "update": {"rollouts": [2, 16], "seconds": [0.3, 2.4], "tokens_per_rollout": null},
 "seconds_per_step": 0.0, "seconds_per_rollout": 0.0}
"""

from __future__ import annotations

import itertools
import json
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, ValidationError, model_validator

from winnow.algos.costs import CostCurve, Scope, StepCosts
from winnow.config import Section
from winnow.errors import DataError, accepted_value, combine_errors
from winnow.state.disk import check_kind, errors_as

FORMAT = 1
MEASURED = "measured"  # `ending` of a profile's point that has seconds
SAMPLING, UPDATE = "sampling", "update, accumulation"
S = TypeVar("S", bound=Section)


class _Curve(Section, extra="ignore"):
    rollouts: list[PositiveFloat] = Field(min_length=1)
    seconds: list[NonNegativeFloat]
    tokens_per_rollout: PositiveFloat | None = None
    mixed_lengths: bool = False

    @model_validator(mode="after")
    def _check_points(self) -> Self:
        if len(self.rollouts) != len(self.seconds):
            raise ValueError("rollouts and seconds are lists of different lengths")
        if any(later <= earlier for earlier, later in itertools.pairwise(self.rollouts)):
            raise ValueError("the numbers of rollouts do not ascend")
        return self

    def curve(self) -> CostCurve:
        x, y = np.array(self.rollouts, np.float64), np.array(self.seconds, np.float64)
        return CostCurve(x, y, self.tokens_per_rollout, self.mixed_lengths)


class _Costs(Section, extra="ignore"):
    winnow_costs: Literal[1]
    source: str | None = None
    per: Scope = "step"
    sampling: _Curve
    update: _Curve
    seconds_per_step: NonNegativeFloat = 0.0
    seconds_per_rollout: NonNegativeFloat = 0.0


def read_costs(path: Path) -> StepCosts:
    """The costs in a file. Raises DataError if it cannot be read, lacks a curve, or has a number that is negative or
    not finite.
    """
    unread = errors_as(
        DataError, f"cannot read {path}", "name a file that `winnow profile` wrote", code="data.unreadable"
    )
    problem = f"{path} contains no costs of a step"
    remedy = "name the .json file that `winnow profile` wrote, or one as docs/commands.md describes it"
    damage = (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError)
    with unread, errors_as(DataError, problem, remedy, code="data.malformed", of=damage):
        check_kind(path, "a file", follow=True)
        data = json.loads(path.read_bytes())
        if not isinstance(data, dict) or not {"winnow_profile", "winnow_costs"} & data.keys():
            raise DataError(f"{problem}: it has no key 'winnow_costs'", remedy=remedy, code="data.malformed")
        if "winnow_profile" in data:
            return costs_of_profile(data, str(path))
        read = _read(_Costs, data, str(path))
        curves = read.sampling.curve(), read.update.curve()
        return StepCosts(*curves, read.per, read.seconds_per_step, read.seconds_per_rollout, read.source or str(path))


def _read(kind: type[S], data: Any, source: str) -> S:
    """The section in `data`. Raises DataError, with each wrong key below `source`."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise combine_errors([_explain(mistake, source) for mistake in error.errors()]) from error


def _explain(mistake: Any, source: str) -> DataError:
    """The error for one of pydantic's."""
    key, absent = ".".join(map(str, mistake["loc"])), mistake["type"] == "missing"
    what = f"{key or 'it'} is {'missing' if absent else reprlib.repr(mistake['input'])}"
    remedy = "set it" if absent else accepted_value(mistake["msg"].removeprefix("Value error, "))
    return DataError(f"{source}: {what}", remedy=remedy, key=key or None, code="data.malformed")


def as_json(costs: StepCosts) -> dict[str, Any]:
    """The content of a file that `read_costs` reads."""

    def curve(of: CostCurve) -> dict[str, Any]:
        return {name: np.asarray(getattr(of, name)).tolist() for name in _Curve.model_fields}

    return {
        "winnow_costs": FORMAT,
        "source": costs.source,
        "per": costs.per,
        "sampling": curve(costs.sampling),
        "update": curve(costs.update),
        "seconds_per_step": costs.seconds_per_step,
        "seconds_per_rollout": costs.seconds_per_rollout,
    }


def costs_of_profile(data: Mapping[str, Any], source: str) -> StepCosts:
    """The medians of a profile: of sampling, and of updates on all rollouts with accumulation.

    `data` has "points" in the form of the .json file. `source` names it in messages. Raises DataError for a curve
    without a measured point.
    """

    def curve(what: str, counted: str) -> CostCurve:
        points = [p for p in data["points"] if p["measured"] == what and p["ending"] == MEASURED]
        points.sort(key=lambda point: point[counted])
        if not points:
            raise DataError(
                f"{source}: {what}: no point of it was measured",
                remedy="profile with smaller numbers of rollouts",
                code="data.incomplete",
            )
        rollouts, seconds = [p[counted] for p in points], [p["seconds"] for p in points]
        longest = max(p["tokens"] / p[counted] for p in points)
        numbers = {"rollouts": rollouts, "seconds": seconds, "tokens_per_rollout": longest}
        return _read(_Curve, numbers, f"{source}: {what}").curve()

    return StepCosts(sampling=curve(SAMPLING, "rollouts"), update=curve(UPDATE, "trained"), source=source)
