"""Runs as one HTML file: those at a path, their evaluations, and the file that is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from winnow.errors import DataError
from winnow.evaluation.folder import AGAINST
from winnow.state.disk import check_replaced, write_output
from winnow.state.folder import SWEEP
from winnow.state.foreign import no_run
from winnow.state.log import METRICS
from winnow.state.logbook import is_logged, refuse_new
from winnow.view.text import one_line, shortest_names
from winnow_lab.report.data import ReportedRun, evaluation_data, report_data
from winnow_lab.report.evaluations import compare_folders, comparisons_below
from winnow_lab.report.html import MARK, assemble
from winnow_lab.sweep_folder import read_sweep

REPORT = "report.html"


@dataclass(frozen=True)
class Written:
    """A report that was written."""

    path: Path
    size: int  # bytes
    included: int  # rollouts in the report
    of: int  # rollouts in the logs
    notes: list[str]


def runs_at(paths: Sequence[Path]) -> list[ReportedRun]:
    """The runs in these folders; of a sweep, the runs with a log. Raises DataError."""
    folders: dict[Path, None] = {}
    for path in paths:
        folders |= dict.fromkeys(_runs_in(path))
    names = shortest_names(list(folders))
    return [ReportedRun(folder, name) for folder, name in zip(folders, names, strict=True)]


def evaluations_of(
    runs: Sequence[ReportedRun], named: tuple[Path, Path] | None
) -> tuple[list[dict[str, Any]], list[str]]:
    """The `named` evaluations of the trained model and of its base, and those of `winnow eval --compare MODEL` below
    the runs' folders, as the page's data, and a note for each pair that cannot be read. Raises DataError if the named
    ones cannot be compared.
    """
    data, notes = list[dict[str, Any]](), list[str]()
    if named is not None:
        data.append(evaluation_data(" | ".join(map(str, named)), compare_folders(*named)))
    for run in runs:
        for path in comparisons_below(run.path):
            name = f"{run.name}/{path.relative_to(run.path)}"
            try:
                data.append(evaluation_data(name, compare_folders(path, path / AGAINST)))
            except DataError as error:
                notes.append(f"{name} is omitted: {error}")
    return data, notes


def output_of(paths: Sequence[Path], output: Path | None) -> Path:
    """The path of the report; by default in the folder, where only one was given.

    An older report is replaced. Raises DataError if another file exists, or none can be written.
    """
    if output is None:
        if len(paths) != 1:
            raise DataError(
                "several runs have no common folder for a report",
                remedy="name the file to write (-o FILE)",
                code="data.unwritable",
            )
        output = (paths[0] if paths[0].is_dir() else paths[0].parent) / REPORT
    check_replaced(output, MARK, "a report")
    return output


def write_report(
    runs: Sequence[ReportedRun],
    output: Path,
    *,
    limit: int,
    made: datetime | None = None,
    evaluations: Sequence[Mapping[str, Any]] = (),
) -> Written:
    """Write the page. `limit` is the bytes of all its rollouts, divided evenly among the runs. Raises DataError."""
    made = made or datetime.now(UTC)
    pages = [run.in_file(limit // len(runs)) for run in runs]
    notes = [f"{run.name}: {note}" for run, page in zip(runs, pages, strict=True) for note in page.notes]
    at = made.strftime("%Y-%m-%dT%H:%M:%SZ")
    texts = [page.text for page in pages]
    data = report_data(texts, served=False, limit=limit, made=at, evaluations=evaluations)
    text = assemble(data, title=title_of(runs), served=False)[0].encode()
    write_output(output, text)
    return Written(output, len(text), sum(page.included for page in pages), sum(page.of for page in pages), notes)


def title_of(runs: Sequence[ReportedRun]) -> str:
    """The title of the page in a browser's tab."""
    shown = ", ".join(one_line(run.name) for run in runs[:3])
    return f"{shown}{', ...' * (len(runs) > 3)} - winnow report"[:200]


def _runs_in(path: Path) -> list[Path]:
    if path.name == METRICS and path.is_file():
        return [path.parent]
    if (path / SWEEP).is_file():
        begun = [run.path for run in read_sweep(path) if (run.path / METRICS).is_file()]
        if not begun:
            raise DataError(
                f"no run of the sweep {path} has finished a step yet, so there is nothing to report",
                remedy="wait for the first step of a run",
                code="data.empty",
            )
        return begun
    refuse_new(path)
    if not is_logged(path):
        raise no_run(path)
    return [path]
