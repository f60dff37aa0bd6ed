"""The comparisons of finished evaluations that a report shows: of two folders, and those below a run's folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from winnow.errors import DataError
from winnow.evaluation.comparison import Comparison, Models, compare_tasks, settings_notes
from winnow.evaluation.folder import AGAINST, METRICS, SETTINGS, damaged_error, is_evaluation, read_settings, read_tasks


@dataclass(frozen=True)
class ComparedFolders:
    """The result of a comparison of two folders."""

    models: Models
    comparisons: tuple[Comparison, ...]
    notes: tuple[str, ...]


def compare_folders(model: Path, other: Path) -> ComparedFolders:
    """Compare every task that both evaluations have. Raises DataError for an unfinished or damaged evaluation, and if
    they have no task in common.
    """
    mine, theirs = read_settings(model), read_settings(other)
    try:
        names = [name for name in mine["tasks"] if name in theirs["tasks"]]
    except (KeyError, TypeError) as error:
        raise damaged_error(other if isinstance(mine.get("tasks"), dict) else model, error) from error
    if not names:
        raise DataError(
            f"the evaluations {model} and {other} have no task in common",
            remedy="name two evaluations of the same task",
            code="data.mismatch",
        )
    own, against = read_tasks(model, mine, names), read_tasks(other, theirs, names)
    comparisons, notes = compare_tasks(own, against)
    differences = [note for name in names for note in settings_notes(name, theirs, mine, other)]
    return ComparedFolders(Models(against[0].model, own[0].model), tuple(comparisons), (*differences, *notes))


def comparisons_below(folder: Path) -> list[Path]:
    """The finished evaluations at most two levels below this folder that contain a comparison with another model
    (`winnow eval --compare MODEL --output FOLDER`), sorted by name. Links are not followed.
    """
    paths = sorted({path.parent for pattern in ("*", "*/*") for path in folder.glob(f"{pattern}/{SETTINGS}")})
    return [
        path
        for path in paths
        if all(is_evaluation(one) and (one / METRICS).is_file() for one in (path, path / AGAINST))
        and not any(one.is_symlink() for one in (path, *path.parents) if folder in one.parents)
    ]
