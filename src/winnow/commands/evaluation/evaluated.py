"""`winnow eval` and `winnow.evaluate`: from a model's name to its numbers, and to those of another beside it."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from winnow.commands.evaluation.against import compared, read_evaluation
from winnow.commands.evaluation.evaluation_folder import EvaluationFolder, check_free, check_resumable
from winnow.commands.evaluation.evaluation_report import report
from winnow.commands.evaluation.measured import Measured
from winnow.commands.evaluation.questions import Question, questions
from winnow.commands.evaluation.sampling_run import Prepared, prepared, rollouts, run, settings
from winnow.commands.evaluation.several_tasks import averages
from winnow.config import dump
from winnow.config_file import merge
from winnow.errors import WinnowError
from winnow.report.evaluation_progress import EvaluationProgress, silent
from winnow.report.evaluations.comparison import Comparison
from winnow.report.evaluations.saved_evaluation import AGAINST, is_evaluation
from winnow.state.saved_runs import check_is_model
from winnow.version import __version__

EVALUATE = ("problems", "rollouts_per_prompt", "greedy", "split", "temperature")


@dataclass(frozen=True)
class EvaluatedTasks:
    """Every task of an evaluation, and the comparison with another model where one was named."""

    tasks: list[Measured]
    comparisons: list[Comparison]
    notes: list[str]

    def metrics(self) -> dict[str, Any]:
        """What was measured, its metrics (null where there is no number), and the whole configuration, as JSON."""
        return {
            "winnow": __version__,
            "tasks": {one.name: _as_json(one) for one in self.tasks},
            "averages": _plain(averages(self.tasks)),
            "comparisons": [_plain(one.numbers()) for one in self.comparisons],
            "notes": self.notes,
        }


def evaluated(
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
    """Find the settings (see `questions`), check everything, evaluate, and compare.

    `compare` is another model, asked the same, or the folder of a finished evaluation. `keys` are those of a
    configuration, and of its table `evaluate` by their own names; None leaves one out. Every rollout is written into
    the folder `into` as it is judged, and `resume` goes on where that ended. Raises WinnowError subclasses.
    """
    given = {name: value for name, value in keys.items() if value is not None}
    inner = {name: given.pop(name) for name in EVALUATE if name in given}
    merge(given, {"evaluate": inner})
    if into is not None:
        check_resumable(into) if resume else check_free(into, resume=False)
    source = {"trust_run": trust_run, "task_defaults": task_defaults, "further": further}
    asked = questions(model, config, tasks, given, sets, **source)
    ready, other_ready = prepared(asked), _other_model(compare, asked)
    known, otherwise = ([], []) if compare is None or other_ready else read_evaluation(Path(compare), ready)
    progress = progress or silent()
    progress.begin(rollouts(ready) + rollouts(other_ready))
    with contextlib.ExitStack() as stack:
        folder = _folder(stack, into, ready, resume)
        other_folder = _folder(stack, into and into / AGAINST, other_ready, resume) if other_ready else None
        found = _finished(ready, folder, progress)
        other = _finished(other_ready, other_folder, progress) if other_ready else known
        comparisons, apart = compared(found, other) if other else ([], [])
        notes = [*(folder.notes if folder else ()), *otherwise, *apart]
        result = EvaluatedTasks(found, comparisons, notes)
        if folder is not None and compare is not None:
            folder.finish(result.metrics(), report(found, comparisons))
    return result


def _finished(
    asked: Sequence[Prepared], folder: EvaluationFolder | None, progress: EvaluationProgress
) -> list[Measured]:
    """Every task, whose numbers are written before anything else may fail."""
    found = list(run(asked, folder, progress))
    if folder is not None:
        folder.finish(EvaluatedTasks(found, [], list(folder.notes)).metrics(), report(found))
    return found


def _other_model(compare: str | None, asked: Sequence[Question]) -> list[Prepared]:
    """The same questions for another model; none where its evaluation is named instead. Raises WinnowError for
    neither.
    """
    if compare is None or is_evaluation(Path(compare)):
        return []
    try:
        check_is_model(compare)
        return prepared([dataclasses.replace(one, config=_of_model(one, compare)) for one in asked])
    except WinnowError as error:
        error.add_note(
            f"This is about {compare}, which is compared with: no evaluation is there, so it was taken for a model."
        )
        raise


def _of_model(one: Question, path: str) -> Any:
    return one.config.model_copy(update={"model": one.config.model.model_copy(update={"path": path})})


def _folder(
    stack: contextlib.ExitStack, path: Path | None, asked: Sequence[Prepared], resume: bool
) -> EvaluationFolder | None:
    return None if path is None else stack.enter_context(EvaluationFolder.open(path, settings(asked), resume=resume))


def _as_json(one: Measured) -> dict[str, Any]:
    return {
        **one.asked(),
        "metrics": _plain(one.metrics),
        "intervals": _plain(one.intervals),
        "pass_at": _plain(one.pass_at),
        "maj_at": _plain(one.maj_at),
        "ties": one.ties,
        "categories": {mode: dict(counts) for mode, counts in one.categories.items()},
        "config": dump(one.config),
    }


def _plain(value: Any) -> Any:
    """As JSON has it: null for what is no number, lists for tuples, objects for tuples with names."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if hasattr(value, "_asdict"):
        return _plain(value._asdict())
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
