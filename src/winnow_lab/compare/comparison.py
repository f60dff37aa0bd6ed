"""A whole comparison: groups, their mean curves, speed-ups over the baseline, and notes about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from winnow.algos.costs import StepCosts
from winnow.errors import ConfigError, DataError, near_miss
from winnow.records import FloatArray
from winnow.run_view.configuration import at
from winnow.state.logbook import read_rows
from winnow.state.rollout_files import files_in
from winnow_lab.compare.cautions import cautions, time_cautions
from winnow_lab.compare.curve import ACCURACY, AXES, MEASURES, Estimate, MeanCurve, estimate, mean_curve
from winnow_lab.compare.groups import SeedGroup, seed_groups
from winnow_lab.compare.inputs import named_inputs
from winnow_lab.compare.speed_up import (
    Plateau,
    SeedTime,
    SpeedUp,
    TimeRatio,
    is_share,
    plateau_of,
    seed_time,
    speed_up,
    time_ratio,
)

BINS = ("0", "≤25", "≤50", "≤75", "<100", "100")  # percent; each pass rate is in the first bin that fits
_EDGES = (0.0, 0.25, 0.5, 0.75)


# By bin, the mean rollouts per prompt and step, over the seeds of a group; None if a seed sampled no prompt of the bin
PassRateCounts = tuple[Estimate | None, ...]


def pass_rate_counts(groups: Sequence[SeedGroup]) -> tuple[dict[str, PassRateCounts], list[str]]:
    """The counts of groups with logged rollouts, by label, and notes on the other groups. Both are empty if no run has
    an allocator other than "uniform".

    The pass rate of a prompt is that of its rollouts in the same step, excluding failed verdicts. A prompt without a
    verdict is in no bin.
    """
    allocators = {at(run.config, "allocate", "use") for group in groups for run in group.runs}
    if allocators <= {None, "uniform"}:
        return {}, []
    counts, notes = {}, list[str]()
    for group in groups:
        without = [run.path.name for run in group.runs if not files_in(run.path)]
        if without or not group.runs:
            reason = f"{', '.join(without)} logged no rollouts" if without else "curves from a file"
            notes.append(f"{group.label}: no rollouts by pass rate ({reason})")
            continue
        each = np.stack([_mean_counts(run.path) for run in group.runs])  # [S, bins]
        counts[group.label] = tuple(None if np.isnan(column).any() else estimate(column) for column in each.T)
    return counts, notes


def _mean_counts(run: Path) -> FloatArray:
    """[bins] the mean count of the prompts in each; NaN for an empty bin. Raises DataError."""
    visits: dict[tuple[int, str], list[int]] = {}  # (step, prompt) -> rollouts, correct ones, verdicts
    for row in read_rows(run, columns=("step", "prompt_id", "count", "correct")):
        visit = visits.setdefault((row["step"], row["prompt_id"]), [row["count"], 0, 0])
        if row["correct"] is not None:
            visit[1] += row["correct"]
            visit[2] += 1
    if not visits:
        raise DataError(
            f"{run}: its files of rollouts contain no rows",
            remedy="put them back as they were, or remove them",
            code="data.empty",
        )
    judged = np.array([visit for visit in visits.values() if visit[2]], dtype=np.float64).reshape(-1, 3)
    rates, counts = judged[:, 1] / judged[:, 2], judged[:, 0]
    bins = np.where(rates == 1.0, len(BINS) - 1, np.searchsorted(_EDGES, rates))
    of = [counts[bins == place] for place in range(len(BINS))]
    return np.array([counts.mean() if len(counts) else np.nan for counts in of])


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
    inputs, of_sweeps = named_inputs(arguments)
    groups, notes = seed_groups(inputs, task, measure, costs)
    notes += cautions(groups, seconds_measured=costs is None)
    known = [group.label for group in groups]
    if baseline is not None and baseline not in known:
        raise ConfigError(
            f"there is no group {baseline!r} to be the baseline",
            remedy=near_miss(baseline, known),
            code="config.unknown_name",
        )
    first = str(baseline or (of_sweeps if of_sweeps in known else known[0]))
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
