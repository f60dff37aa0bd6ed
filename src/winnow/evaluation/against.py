"""Compare the evaluations of two models. The other one is new, or is read from its folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from winnow.config_file import validate
from winnow.errors import DataError
from winnow.evaluation.compared_folders import settings_notes
from winnow.evaluation.comparison import Comparison, Models, compare_models
from winnow.evaluation.result import EvaluationResult
from winnow.evaluation.run import PreparedTask, describe
from winnow.evaluation.saved_evaluation import SavedTask, damaged_error, read_settings, read_tasks


def compare_results(
    results: Sequence[EvaluationResult], other: Sequence[EvaluationResult]
) -> tuple[list[Comparison], list[str]]:
    """Compare sampled and greedy rollouts, task by task. The notes describe what cannot be compared."""
    by_name, comparisons, notes = {one.name: one for one in other}, list[Comparison](), list[str]()
    for one in results:
        if one.name not in by_name:
            notes.append(f"{one.name} was not evaluated with the other model: it is not compared")
            continue
        against = by_name[one.name]
        models = Models(other=against.config.model.path, model=one.config.model.path)
        of_task, of_task_notes = compare_models(one.name, one.rows, against.rows, models=models, seed=one.config.seed)
        comparisons += of_task
        notes += of_task_notes
    return comparisons, notes


def read_evaluation(folder: Path, tasks: Sequence[PreparedTask]) -> tuple[list[EvaluationResult], list[str]]:
    """Read a finished evaluation of another model. The notes list where its settings differ from those of `tasks`.

    Raises DataError if it is unfinished or damaged, or has none of the tasks.
    """
    saved, current = read_settings(folder), describe(tasks)
    try:
        names, path = [name for name in current["tasks"] if name in saved["tasks"]], str(saved["machine"]["model"])
        if not names:
            wanted, has = ", ".join(current["tasks"]), ", ".join(saved["tasks"])
            raise DataError(
                f"{folder} has none of the tasks {wanted}",
                remedy=f"name one of its tasks, {has}, or another evaluation",
                code="data.mismatch",
            )
    except (KeyError, TypeError) as error:
        raise damaged_error(folder, error) from error
    results = [_result_of(task, path, folder) for task in read_tasks(folder, saved, names)]
    return results, [note for name in names for note in settings_notes(name, saved, current, folder)]


def _result_of(task: SavedTask, path: str, folder: Path) -> EvaluationResult:
    config: dict[str, Any] = dict(task.config)
    try:
        config["model"] = {**config["model"], "path": path}
    except (KeyError, TypeError) as error:
        raise damaged_error(folder, error) from error
    return EvaluationResult(
        name=task.name, config=validate(config, source=str(folder)), rows=task.rows, dropped=task.dropped
    )
