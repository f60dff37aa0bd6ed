"""The effect of an allocator: rollouts per prompt by the prompt's pass rate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from winnow.commands.compare.groups import ReadRun, SeedGroup
from winnow.commands.compare.mean_curve import Estimate, estimate
from winnow.errors import DataError
from winnow.records import FloatArray
from winnow.run_view.configuration import at
from winnow.state.logbook import read_rows
from winnow.state.rollout_files import ROLLOUTS, files_by_step

BINS = ("0", "≤25", "≤50", "≤75", "<100", "100")  # percent; each pass rate is in the first bin that fits
_EDGES = (0.0, 0.25, 0.5, 0.75)


@dataclass(frozen=True, eq=False)
class PassRateCounts:
    """The counts of a group, one entry per bin; None if a seed sampled no prompt of the bin."""

    counts: tuple[Estimate | None, ...]  # mean rollouts per prompt and step, over seeds


def pass_rate_counts(groups: Sequence[SeedGroup]) -> tuple[dict[str, PassRateCounts], list[str]]:
    """The counts of groups with logged rollouts, by label, and notes on the other groups. Both are empty if no run has
    an allocator other than "uniform".

    The pass rate of a prompt is that of its rollouts in the same step, excluding failed verdicts. A prompt without a
    verdict is in no bin.
    """
    if not any(_allocates(run) for group in groups for run in group.runs):
        return {}, []
    counts, notes = {}, list[str]()
    for group in groups:
        without = [run.path.name for run in group.runs if not files_by_step(run.path / ROLLOUTS)]
        if without or not group.runs:
            reason = f"{', '.join(without)} logged no rollouts" if without else "curves from a file"
            notes.append(f"{group.label}: no rollouts by pass rate ({reason})")
            continue
        each = np.stack([_mean_counts(run.path) for run in group.runs])  # [S, bins]
        counts[group.label] = PassRateCounts(tuple(_over_seeds(column) for column in each.T))
    return counts, notes


def _allocates(run: ReadRun) -> bool:
    return at(run.config, "allocate", "use") not in (None, "uniform")


def _over_seeds(values: FloatArray) -> Estimate | None:
    return None if np.isnan(values).any() else estimate(values)


def _mean_counts(run: Path) -> FloatArray:
    """[bins] the mean count of the prompts in each; NaN for an empty bin."""
    visits = np.array(list(_visits(run)), dtype=np.float64).reshape(-1, 3)
    judged = visits[visits[:, 2] > 0]
    rates, counts = judged[:, 1] / judged[:, 2], judged[:, 0]
    bins = np.where(rates == 1.0, len(BINS) - 1, np.searchsorted(_EDGES, rates))
    of = [counts[bins == place] for place in range(len(BINS))]
    return np.array([counts.mean() if len(counts) else np.nan for counts in of])


def _visits(run: Path) -> Iterator[tuple[int, int, int]]:
    """(rollouts, correct ones, verdicts) of every prompt in every logged step. Raises DataError."""
    visits: dict[tuple[int, str], list[int]] = {}
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
    yield from ((count, correct, verdicts) for count, correct, verdicts in visits.values())
