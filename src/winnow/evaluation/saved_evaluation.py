"""The contents of an evaluation's folder. They are checked when they are read, as they may come from anyone."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from winnow.config import leaves
from winnow.errors import DataError
from winnow.evaluation.rollout_lines import Row, parse_row
from winnow.state.disk import check_kind

SETTINGS, METRICS, REPORT, AGAINST = "settings.json", "metrics.json", "report.txt", "against"
FORMAT = 1


@dataclass(frozen=True)
class SavedTask:
    """A task of a finished evaluation."""

    name: str
    config: Mapping[str, Any]  # as JSON, without the model's path
    rows: tuple[Row, ...]
    dropped: int  # problems whose prompt is longer than prompt.max_prompt_tokens


def is_evaluation(path: Path) -> bool:
    """Whether a folder contains an evaluation."""
    return (path / SETTINGS).is_file()


def read_settings(path: Path) -> dict[str, Any]:
    """The settings of an evaluation. Raises DataError for a folder without one that this winnow can read."""
    file = path / SETTINGS
    try:
        check_kind(file, "a file")
        settings = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(
            f"cannot read {file}: {error}", remedy="name the folder of an evaluation", code="data.unreadable"
        ) from error
    if not isinstance(settings, dict) or settings.get("winnow_evaluation") != FORMAT:
        raise DataError(
            f"{file} is not of an evaluation that this winnow can read",
            remedy="name another folder, or use the version that wrote it",
            code="data.malformed",
        )
    return settings


def read_tasks(path: Path, settings: Mapping[str, Any], names: Iterable[str]) -> list[SavedTask]:
    """These tasks of a finished evaluation. Raises DataError for an unfinished or damaged one."""
    try:
        return [_task(path, name, settings["tasks"][name]) for name in names]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise damaged_error(path, error) from error


def damaged_error(path: Path, error: Exception) -> DataError:
    """The error for an evaluation whose settings have a form that `winnow eval` does not write."""
    return DataError(
        f"{path / SETTINGS} is damaged ({type(error).__name__}: {error})",
        remedy="evaluate again into a new folder",
        code="data.malformed",
    )


def read_rows(path: Path, task: str, count: int) -> list[dict[str, Any]]:
    """All `count` rows of a task of a finished evaluation. Raises DataError for an unfinished or damaged one."""
    file = path / f"{task}.jsonl"
    try:
        check_kind(file, "a file")
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise DataError(
            f"cannot read {file}: {error.strerror or error}",
            remedy="resume the evaluation, or repair the file",
            code="data.unreadable",
        ) from error
    if len(lines) != count or not (path / METRICS).is_file():
        raise DataError(
            f"the evaluation in {path} is not finished: {task} has {len(lines):,} rollouts of {count:,}",
            remedy="resume it",
            code="data.incomplete",
        )
    return [parse_row(line, f"{file}:{number}") for number, line in enumerate(lines, start=1)]


def differing_keys(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The dotted keys in which two settings differ after conversion to JSON."""
    was, is_now = ({k: v for k, v in leaves(json.loads(json.dumps(each)))} for each in (before, now))
    return [".".join(map(str, key)) for key in {**was, **is_now} if was.get(key) != is_now.get(key)]


def _task(path: Path, name: str, settings: Mapping[str, Any]) -> SavedTask:
    if Path(name).name != name:  # it is part of a path
        raise ValueError(f"{name!r} is no name of a task")
    rows = tuple(read_rows(path, name, int(settings["rows"])))
    sampled, greedy = ({row["prompt_id"] for row in rows if row["mode"] == mode} for mode in ("sampled", "greedy"))
    if not sampled or (greedy and greedy != sampled):
        raise DataError(
            f"{path / name}.jsonl is damaged: its greedy rollouts are of other problems than the sampled ones",
            remedy="remove the file, then resume the evaluation to sample its task again",
            code="data.malformed",
        )
    return SavedTask(name, dict(settings["config"]), rows, int(settings["dropped"]))
