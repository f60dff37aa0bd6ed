"""Evaluate a model on its tasks, and compare it with another one, which is new or is read from its folder."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from winnow.config import dump
from winnow.config_file import merge
from winnow.errors import DataError, WinnowError
from winnow.evaluation.comparison import Comparison, compare_tasks, settings_notes
from winnow.evaluation.folder import (
    AGAINST,
    EvaluationFolder,
    TaskRows,
    check_free,
    check_resumable,
    damaged_error,
    is_evaluation,
    read_settings,
    read_tasks,
)
from winnow.evaluation.progress import EvaluationProgress
from winnow.evaluation.result import EvaluationResult, averages
from winnow.evaluation.run import PreparedTask, count_rollouts, describe, evaluate_tasks, prepare
from winnow.evaluation.settings import EvaluationTask, evaluation_tasks
from winnow.evaluation.text import format_report
from winnow.models.folder import weights_folder
from winnow.state.saved_runs import check_is_model
from winnow.version import __version__

EVALUATE = ("problems", "rollouts_per_prompt", "greedy", "split", "temperature")


@dataclass(frozen=True)
class EvaluatedTasks:
    """The result of every task, and the comparisons if another model was given."""

    tasks: list[EvaluationResult]
    comparisons: list[Comparison]
    notes: list[str]

    def metrics(self) -> dict[str, Any]:
        """Settings, metrics (null for no number) and configuration of each task, averages and comparisons, as JSON."""
        return {
            "winnow": __version__,
            "tasks": {one.name: _result_as_json(one) for one in self.tasks},
            "averages": _as_json_value(averages(self.tasks)),
            "comparisons": [_as_json_value(one.numbers()) for one in self.comparisons],
            "notes": self.notes,
        }


def run_evaluation(
    model: str,
    config: Path | None = None,
    *,
    tasks: Sequence[str] = (),
    sets: Sequence[str] = (),
    compare: str | None = None,
    into: Path | None = None,
    resume: bool = False,
    trust_run: bool = False,
    task_defaults: bool = False,
    further: bool = True,
    progress: EvaluationProgress | None = None,
    **keys: Any,
) -> EvaluatedTasks:
    """Resolve the settings (see `evaluation_tasks`), check everything, evaluate, and compare.

    `compare` is another model, evaluated on the same problems, or the folder of a finished evaluation. `keys` are
    configuration keys; those of the table `evaluate` are given by their names alone. None omits a key.
    Rows are written into the folder `into` part by part, and `resume` continues such a folder.
    Raises WinnowError subclasses.
    """
    given: dict[str, Any] = {}  # a new table, as `merge` would change the caller's
    merge(given, {name: value for name, value in keys.items() if value is not None and name not in EVALUATE})
    merge(given, {"evaluate": {name: keys[name] for name in EVALUATE if keys.get(name) is not None}})
    if into is not None:
        check_resumable(into) if resume else check_free(into, resume=False)
    source = {"trust_run": trust_run, "task_defaults": task_defaults, "further": further}
    to_evaluate = evaluation_tasks(model, config, tasks, given, sets, **source)
    prepared, other_prepared = prepare(to_evaluate), _prepare_other_model(compare, to_evaluate)
    saved, differences = ([], []) if compare is None or other_prepared else read_evaluation(Path(compare), prepared)
    progress = progress if isinstance(progress, EvaluationProgress) else EvaluationProgress()
    progress.begin(count_rollouts(prepared) + count_rollouts(other_prepared))
    with contextlib.ExitStack() as stack:
        folder = _open_folder(stack, into, prepared, resume)
        other_folder = _open_folder(stack, into and into / AGAINST, other_prepared, resume) if other_prepared else None
        results = _evaluate_and_save(prepared, folder, progress)
        other = answers(_evaluate_and_save(other_prepared, other_folder, progress)) if other_prepared else saved
        comparisons, not_compared = compare_tasks(answers(results), other) if other else ([], [])
        notes = [*(folder.notes if folder else ()), *differences, *not_compared]
        evaluation = EvaluatedTasks(results, comparisons, notes)
        if folder is not None and compare is not None:
            folder.finish(evaluation.metrics(), format_report(results, comparisons))
    return evaluation


def _evaluate_and_save(
    tasks: Sequence[PreparedTask], folder: EvaluationFolder | None, progress: EvaluationProgress
) -> list[EvaluationResult]:
    """Evaluate every task, and write the metrics before the comparison, which may fail."""
    results = list(evaluate_tasks(tasks, folder, progress))
    if folder is not None:
        folder.finish(EvaluatedTasks(results, [], list(folder.notes)).metrics(), format_report(results))
    return results


def _prepare_other_model(compare: str | None, tasks: Sequence[EvaluationTask]) -> list[PreparedTask]:
    """The same tasks for another model; empty if `compare` is the folder of an evaluation.

    Raises WinnowError if it is neither a model nor such a folder.
    """
    if compare is None or is_evaluation(Path(compare)):
        return []
    try:
        check_is_model(compare)
        other = {"model": tasks[0].config.model.model_copy(update={"path": compare})}
        prepared = prepare([dataclasses.replace(one, config=one.config.model_copy(update=other)) for one in tasks])
        weights_folder(compare)  # they are loaded only after the first model's evaluation
        return prepared
    except WinnowError as error:
        error.add_note(
            f"This is about the other model, {compare}: it is no folder of an evaluation, so it is loaded as a model."
        )
        raise


def _open_folder(
    stack: contextlib.ExitStack, path: Path | None, tasks: Sequence[PreparedTask], resume: bool
) -> EvaluationFolder | None:
    return None if path is None else stack.enter_context(EvaluationFolder.open(path, describe(tasks), resume=resume))


def _result_as_json(one: EvaluationResult) -> dict[str, Any]:
    return {
        **one.settings(),
        "metrics": _as_json_value(one.metrics),
        "intervals": _as_json_value(one.intervals),
        "pass_at": _as_json_value(one.pass_at),
        "maj_at": _as_json_value(one.maj_at),
        "ties": one.ties,
        "categories": {mode: dict(counts) for mode, counts in one.categories.items()},
        "config": dump(one.config),
    }


def _as_json_value(value: Any) -> Any:
    """A JSON value: null for NaN and infinity, lists for tuples, objects for named tuples."""
    if isinstance(value, Mapping):
        return {str(key): _as_json_value(inner) for key, inner in value.items()}
    if hasattr(value, "_asdict"):
        return _as_json_value(value._asdict())
    if isinstance(value, (list, tuple)):
        return [_as_json_value(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def answers(results: Sequence[EvaluationResult]) -> list[TaskRows]:
    """What a comparison reads of results."""
    return [TaskRows(one.name, one.config.model.path, one.config.seed, one.rows) for one in results]


def read_evaluation(folder: Path, tasks: Sequence[PreparedTask]) -> tuple[list[TaskRows], list[str]]:
    """Read a finished evaluation of another model. The notes list where its settings differ from those of `tasks`.

    Raises DataError if it is unfinished or damaged, or has none of the tasks.
    """
    saved, current = read_settings(folder), describe(tasks)
    try:
        names = [name for name in current["tasks"] if name in saved["tasks"]]
        if not names:
            wanted, has = ", ".join(current["tasks"]), ", ".join(saved["tasks"])
            raise DataError(
                f"{folder} has none of the tasks {wanted}",
                remedy=f"name one of its tasks, {has}, or another evaluation",
                code="data.mismatch",
            )
    except (KeyError, TypeError) as error:
        raise damaged_error(folder, error) from error
    rows = read_tasks(folder, saved, names)
    return rows, [note for name in names for note in settings_notes(name, saved, current, folder)]
