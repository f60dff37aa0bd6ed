"""What an allocation did: how many rollouts prompts got, by how often they are solved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from winnow.errors import DataError
from winnow.records import FloatArray
from winnow.report.comparison.key_differences import at
from winnow.report.comparison.mean_curve import Estimate, estimate
from winnow.report.comparison.run_groups import ReadRun, SeedGroup
from winnow.state.logbook import read_rows
from winnow.state.rollout_files import ROLLOUTS, files_by_step

BINS = ("0", "≤25", "≤50", "≤75", "<100", "100")  # percent; none in two of them
_EDGES = (0.0, 0.25, 0.5, 0.75)


@dataclass(frozen=True, eq=False)
class PassRateCounts:
    """Of a group, one entry per bin; None where no prompt of the bin was sampled by every seed."""

    counts: tuple[Estimate | None, ...]  # mean rollouts per prompt and step, over seeds


def pass_rate_counts(groups: Sequence[SeedGroup]) -> tuple[dict[str, PassRateCounts], list[str]]:
    """By label, where an allocator is at work in any group and rollouts are logged; and notes where they are not.

    The pass rate of a prompt is that of its own rollouts in the same step, failed verdicts left out; a prompt that was
    planned no rollout has none, and is in no bin.
    """
    if not any(_allocates(run) for group in groups for run in group.runs):
        return {}, []
    found, notes = {}, list[str]()
    for group in groups:
        silent = [run.path.name for run in group.runs if not files_by_step(run.path / ROLLOUTS)]
        if silent or not group.runs:
            why = f"{', '.join(silent)} logged no rollouts" if silent else "curves from a file"
            notes.append(f"{group.label}: no rollouts by pass rate ({why})")
            continue
        each = np.stack([_mean_counts(run.path) for run in group.runs])  # [S, bins]
        found[group.label] = PassRateCounts(tuple(_over_seeds(column) for column in each.T))
    return found, notes


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
    """(rollouts, correct ones, verdicts) of every prompt in every step that was logged. Raises DataError."""
    found: dict[tuple[int, str], list[int]] = {}
    for row in read_rows(run, columns=("step", "prompt_id", "count", "correct")):
        visit = found.setdefault((row["step"], row["prompt_id"]), [row["count"], 0, 0])
        if row["correct"] is not None:
            visit[1] += row["correct"]
            visit[2] += 1
    if not found:
        raise DataError(
            f"{run}: its files of rollouts contain no rows",
            remedy="put them back as they were, or remove them",
            code="data.empty",
        )
    yield from ((count, correct, verdicts) for count, correct, verdicts in found.values())
