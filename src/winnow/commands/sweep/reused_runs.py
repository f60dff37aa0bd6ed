"""Copy finished runs of other sweeps instead of training the same configuration and seed again."""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from winnow.commands.sweep.plan import SweepPlan
from winnow.errors import RunFolderError
from winnow.state.run_folder import LOCK, has_finished_step
from winnow.state.sweep_folder import (
    SETTINGS,
    SWEEP,
    LedgerLine,
    SweepFolder,
    SweepRun,
    read_contents,
    read_sweep,
    run_path,
)

Inputs = Mapping[str, Mapping[str, str]]  # key -> file -> digest


def reuse(plan: SweepPlan, folder: SweepFolder) -> list[str]:
    """Copy every run of the plan that has not started and that another sweep has finished. Returns their names.

    A run is the same if the resolved configuration, the digests of the files that it names, and the seed are equal.
    Whether its seconds count is copied with it. A folder of `plan.file.reuse` without a sweep is skipped, and a
    pattern such as "sweeps/*" may match nothing. Raises RunFolderError and DataError for a sweep that cannot be read,
    or a copy that cannot be written.
    """
    copied = []
    finished = _finished_runs(list(_folders(plan.file.reuse)))
    for label, settings in plan.settings.items():
        for seed in plan.file.seeds:
            target = run_path(folder.path, label, seed)
            match = finished.get((settings.text, seed))
            if match is None or has_finished_step(target):
                continue
            run, inputs = match
            if _as_dicts(inputs) != _as_dicts(settings.inputs):
                continue
            _copy(run.path, target)
            folder.note(LedgerLine(label, seed, "began", run.alone))
            folder.note(LedgerLine(label, seed, "finished", run.alone, exit_code=0))
            copied.append(f"{label}/{target.name}")
    return copied


def _folders(patterns: Sequence[str]) -> Iterator[Path]:
    for pattern in patterns:
        yield from map(Path, sorted(glob.glob(os.path.expanduser(pattern))))


def _finished_runs(sweeps: list[Path]) -> dict[tuple[str, int], tuple[SweepRun, Inputs]]:
    """(text of the configuration, seed) -> run; the first sweep that contains it is used."""
    finished: dict[tuple[str, int], tuple[SweepRun, Inputs]] = {}
    for sweep in sweeps:
        if (sweep / SWEEP).is_file():
            for run, inputs in _runs(sweep):
                finished.setdefault((run.settings.read_text(encoding="utf-8"), run.seed), (run, inputs))
    return finished


def _runs(sweep: Path) -> Iterator[tuple[SweepRun, Inputs]]:
    inputs = read_contents(sweep).inputs
    for run in read_sweep(sweep):
        if run.finished and (run.path.parent / SETTINGS).is_file():
            yield run, inputs.get(run.label, {})


def _as_dicts(inputs: Inputs) -> dict[str, dict[str, str]]:
    return {key: dict(files) for key, files in inputs.items()}


def _copy(source: Path, target: Path) -> None:
    """Copy the folder under a temporary name, and rename it when it is complete."""
    draft = target.with_name(f".{target.name}.copy")
    try:
        shutil.rmtree(draft, ignore_errors=True)  # of a copy that was interrupted
        shutil.copytree(source, draft, ignore=shutil.ignore_patterns(LOCK), symlinks=True)
        draft.rename(target)
    except (OSError, shutil.Error) as error:
        raise RunFolderError(
            f"cannot copy {source} to {target}: {error}",
            remedy="make room, or remove the key reuse",
            key="reuse",
            code="run_folder.unwritable",
        ) from error
