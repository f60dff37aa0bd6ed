"""A comparison as a whole: groups, their mean curves, speed-ups over the baseline, and what to know about them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from winnow.errors import ConfigError, DataError, did_you_mean
from winnow.report.comparison.cautions import cautions
from winnow.report.comparison.curve import AXES, MEASURES
from winnow.report.comparison.mean_curve import Estimate, MeanCurve, estimate, mean_curve
from winnow.report.comparison.named_paths import named_inputs
from winnow.report.comparison.pass_rate_counts import PassRateCounts, pass_rate_counts
from winnow.report.comparison.run_groups import SeedGroup, seed_groups
from winnow.report.comparison.speed_up import (
    SHARE,
    LeftOut,
    SpeedUp,
    gain_at_the_end,
    is_rising,
    speed_up,
    without_one_seed,
)


@dataclass(frozen=True)
class SpeedUpRow:
    """The speed-up of a group over the baseline on one axis."""

    group: str
    axis: str
    share: float  # of the baseline's best mean: 0.99, or 1 for "to the maximum"
    whole: SpeedUp
    left_out: LeftOut | None  # None where no seed can be left out


@dataclass(frozen=True, eq=False)
class GroupComparison:
    """What `winnow compare` found."""

    groups: tuple[SeedGroup, ...]
    baseline: str
    curves: Mapping[tuple[str, str, str], MeanCurve]  # by (label, axis, measure), where there is one
    speed_ups: tuple[SpeedUpRow, ...]
    allocation: Mapping[str, PassRateCounts]  # by label
    notes: tuple[str, ...]

    @property
    def axes(self) -> list[str]:
        """Those over which any group has a curve."""
        return [axis for axis in AXES if any(known == axis for _, known, _ in self.curves)]

    def main_axis(self, label: str) -> str:
        """The one that cuts nothing off: steps where they are known, else the first."""
        return _main_axis(self.curves, label)


def compared(arguments: Sequence[str], *, baseline: str | None = None, task: str | None = None) -> GroupComparison:
    """The comparison of what `PATH` and `LABEL=PATH` name: run folders, folders of runs, sweeps, CSV files.

    `baseline` is a label; without it, what a sweep names, else the first group. `task` reads the evaluations of a
    further task. Raises DataError and RunFolderError for what cannot be read, ConfigError for an unknown label.
    """
    named = named_inputs(arguments)
    groups, notes = seed_groups(named.inputs, task)
    notes += cautions(groups)
    known = [group.label for group in groups]
    if baseline is not None and baseline not in known:
        raise ConfigError(f"there is no group {baseline!r} to be the baseline{did_you_mean(baseline, known)}")
    first = baseline or (named.baseline if named.baseline in known else known[0])
    allocation, said = pass_rate_counts(groups)
    curves, speed_ups = _curves(groups), _speed_ups(groups, str(first))
    return GroupComparison(
        groups=tuple(groups),
        baseline=str(first),
        curves=curves,
        speed_ups=tuple(speed_ups),
        allocation=allocation,
        notes=(
            *notes,
            *said,
            *_cut(groups),
            *_ended_too_soon(speed_ups),
            *_reached_at_an_end(speed_ups, str(first)),
            *_rising(speed_ups, curves, str(first)),
        ),
    )


def _main_axis(curves: Mapping[tuple[str, str, str], MeanCurve], label: str) -> str:
    return next(axis for axis in ("steps", *AXES) if (label, axis, "accuracy") in curves)


def _curves(groups: Sequence[SeedGroup]) -> dict[tuple[str, str, str], MeanCurve]:
    found = {}
    for group in groups:
        for axis in AXES:
            for measure in MEASURES:
                curve = mean_curve(group.curves, axis, measure)
                if curve is not None:
                    found[group.label, axis, measure] = curve
        if not any((group.label, axis, "accuracy") in found for axis in AXES):
            sources = ", ".join(curve.source for curve in group.curves)
            raise DataError(f"{group.label}: its curves share no part of any axis; compare them apart ({sources})")
    return found


def _speed_ups(groups: Sequence[SeedGroup], baseline: str) -> list[SpeedUpRow]:
    (base,) = (group for group in groups if group.label == baseline)
    rows = []
    for group in groups:
        for axis in AXES if group is not base else ():
            for share in (SHARE, 1.0):
                whole = speed_up(base.curves, group.curves, axis, share)
                if whole is not None:
                    left_out = without_one_seed(base.curves, group.curves, axis, share)
                    rows.append(SpeedUpRow(group.label, axis, share, whole, left_out))
    return rows


def _cut(groups: Sequence[SeedGroup]) -> Iterator[str]:
    """A group's curve ends with the first of its seeds."""
    for group in groups:
        lasts = {curve.source: float(curve.x["steps"][-1]) for curve in group.curves if "steps" in curve.x}
        if len(lasts) > 1 and min(lasts.values()) < max(lasts.values()):
            first = min(lasts, key=lambda source: lasts[source])
            yield (
                f"{group.label}: its curve ends after {lasts[first]:g} of {max(lasts.values()):g} steps, with the last "
                f"evaluation of {first}; leave that seed out, or train it as far as the others"
            )


def _ended_too_soon(rows: Sequence[SpeedUpRow]) -> Iterator[str]:
    """Of seeds that took the same steps one was the first to end, and its group's curve over other axes ends there."""
    reached = {(row.group, row.axis): row.whole.other is not None for row in rows if row.share == SHARE}
    for (group, axis), there in reached.items():
        if not there and reached.get((group, "steps")):
            yield (
                f"{group}: reached by steps, and not over {axis.replace('_', ' ')}, where its first seed ended before; "
                f"train all seeds longer to tell"
            )


def _reached_at_an_end(rows: Sequence[SpeedUpRow], baseline: str) -> Iterator[str]:
    """A first crossing at the last point of a curve is confirmed by no later point."""
    for group in dict.fromkeys(row.group for row in rows):
        own = [row for row in rows if row.group == group and row.share == SHARE]
        for label, axes in (
            (baseline, [row.axis for row in own if row.whole.baseline_at_its_end]),
            (group, [row.axis for row in own if row.whole.other_at_its_end]),
        ):
            if axes:
                yield (
                    f"{group} against {baseline}: {label} first reaches the level at its last evaluation (by "
                    f"{', '.join(axis.replace('_', ' ') for axis in axes)}); no later one confirms it, and longer runs "
                    f"may give another speed-up"
                )


def _rising(
    rows: Sequence[SpeedUpRow], curves: Mapping[tuple[str, str, str], MeanCurve], baseline: str
) -> Iterator[str]:
    """A level that is 99% of a best which training has not come to yet."""
    curve = curves[baseline, _main_axis(curves, baseline), "accuracy"]
    if rows and is_rising(curve):
        yield (
            f"{baseline}: the baseline's accuracy still rises, by {100 * gain_at_the_end(curve):.1f} points over the "
            f"last third of its evaluations; longer runs have a higher level, and may give another speed-up"
        )


def per_step(group: SeedGroup, axis: str) -> Estimate | None:
    """What a step takes of an axis, over seeds, each up to its last evaluation; None where one lacks it."""
    if any(axis not in curve.x or "steps" not in curve.x for curve in group.curves):
        return None
    rates = [curve.x[axis][-1] / steps for curve in group.curves if (steps := curve.x["steps"][-1])]
    return estimate(np.array(rates)) if len(rates) == len(group.curves) else None
