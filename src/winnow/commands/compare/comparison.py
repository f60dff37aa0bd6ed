"""A whole comparison: groups, their mean curves, speed-ups over the baseline, and notes about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from winnow.algos.costs import StepCosts
from winnow.commands.compare.cautions import cautions
from winnow.commands.compare.curve import AXES
from winnow.commands.compare.groups import Reading, SeedGroup, seed_groups
from winnow.commands.compare.inputs import named_inputs
from winnow.commands.compare.mean_curve import Estimate, MeanCurve, estimate, mean_curve
from winnow.commands.compare.measure import ACCURACY, MEASURES
from winnow.commands.compare.pass_rate_counts import PassRateCounts, pass_rate_counts
from winnow.commands.compare.plateau import Plateau, is_share, plateau_of
from winnow.commands.compare.seed_times import SeedTime, seed_time
from winnow.commands.compare.speed_up import SpeedUp, speed_up
from winnow.commands.compare.time_cautions import time_cautions
from winnow.commands.compare.time_ratio import TimeRatio, time_ratio
from winnow.errors import ConfigError, DataError, near_miss


@dataclass(frozen=True)
class SpeedUpRow:
    """The speed-up of a group over the baseline on one axis."""

    group: str
    axis: str
    ratio: TimeRatio  # of the times to the level
    pods: SpeedUp | None  # of mean curves, by the definition of PODS; None if these share no part of the axis


@dataclass(frozen=True, eq=False)
class GroupComparison:
    """The result of `winnow compare`."""

    groups: tuple[SeedGroup, ...]
    baseline: str
    measure: str
    costs: StepCosts | None  # from which seconds were computed; None: they were measured
    curves: Mapping[tuple[str, str, str], MeanCurve]  # by (label, axis, measure), if there is one
    plateau: Plateau  # of the baseline
    times: Mapping[str, tuple[SeedTime, ...]]  # by label, to the plateau's level; empty without a level
    speed_ups: tuple[SpeedUpRow, ...]
    allocation: Mapping[str, PassRateCounts]  # by label
    notes: tuple[str, ...]

    @property
    def axes(self) -> list[str]:
        """The axes over which any group has a curve."""
        return [axis for axis in AXES if any(known == axis for _, known, _ in self.curves)]

    def main_axis(self, label: str) -> str:
        """Steps if the group has them, as this axis contains every evaluation; else its first axis."""
        return next(axis for axis in ("steps", *AXES) if (label, axis, self.measure) in self.curves)


def compare_inputs(
    arguments: Sequence[str],
    *,
    baseline: str | None = None,
    task: str | None = None,
    measure: str = ACCURACY,
    costs: StepCosts | None = None,
) -> GroupComparison:
    """Compare the inputs that `PATH` and `LABEL=PATH` name: run folders, folders of runs, sweeps, CSV files.

    `baseline` is a label; its default is the baseline of a sweep, else the first group. `task` selects the evaluations
    of a further task, and `measure` their metric. `costs` replaces the measured seconds of a step. Raises DataError and
    RunFolderError for inputs that cannot be read, and ConfigError for an unknown label or measure.
    """
    named = named_inputs(arguments)
    groups, notes = seed_groups(named.inputs, Reading(task, measure, costs))
    notes += cautions(groups, seconds_measured=costs is None)
    known = [group.label for group in groups]
    if baseline is not None and baseline not in known:
        raise ConfigError(
            f"there is no group {baseline!r} to be the baseline",
            remedy=near_miss(baseline, known),
            code="config.unknown_name",
        )
    first = str(baseline or (named.baseline if named.baseline in known else known[0]))
    (base,) = (group for group in groups if group.label == first)
    allocation, allocation_notes = pass_rate_counts(groups)
    share = is_share([curve for group in groups for curve in group.curves], measure)
    plateau = plateau_of(base.curves, measure, share=share)
    times = _times(groups, measure, plateau)
    return GroupComparison(
        groups=tuple(groups),
        baseline=first,
        measure=measure,
        costs=costs,
        curves=_curves(groups, measure),
        plateau=plateau,
        times=times,
        speed_ups=tuple(_speed_ups(groups, base, measure, times)),
        allocation=allocation,
        notes=(*notes, *allocation_notes, *time_cautions(groups, first, measure, plateau, times)),
    )


def _times(groups: Sequence[SeedGroup], measure: str, plateau: Plateau) -> dict[str, tuple[SeedTime, ...]]:
    level = plateau.level
    if level is None:
        return {}
    return {group.label: tuple(seed_time(curve, measure, level) for curve in group.curves) for group in groups}


def _curves(groups: Sequence[SeedGroup], measure: str) -> dict[tuple[str, str, str], MeanCurve]:
    curves = {}
    for group in groups:
        for axis in AXES:
            for name in dict.fromkeys((*MEASURES, measure)):
                curve = mean_curve(group.curves, axis, name)
                if curve is not None:
                    curves[group.label, axis, name] = curve
        if not any((group.label, axis, measure) in curves for axis in AXES):
            sources = ", ".join(curve.source for curve in group.curves)
            raise DataError(
                f"{group.label}: its curves share no part of any axis ({sources})",
                remedy="compare them separately",
                code="data.mismatch",
            )
    return curves


def _speed_ups(
    groups: Sequence[SeedGroup], base: SeedGroup, measure: str, times: Mapping[str, Sequence[SeedTime]]
) -> list[SpeedUpRow]:
    rows = []
    for group in groups if times else ():
        for axis in AXES if group is not base else ():
            ratio = time_ratio(times[base.label], times[group.label], axis)
            if ratio is not None:
                pods = speed_up(base.curves, group.curves, axis, measure)
                rows.append(SpeedUpRow(group.label, axis, ratio, pods))
    return rows


def per_step(group: SeedGroup, axis: str) -> Estimate | None:
    """The mean over seeds of an axis per step, up to a seed's last evaluation.

    None if a seed lacks the axis or the steps, or has no evaluation after a step.
    """
    if any(axis not in curve.x or "steps" not in curve.x for curve in group.curves):
        return None
    rates = [curve.x[axis][-1] / steps for curve in group.curves if (steps := curve.x["steps"][-1])]
    return estimate(np.array(rates)) if len(rates) == len(group.curves) else None
