"""Finished runs of other sweeps, which a sweep takes instead of training the same configuration and seed again."""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from winnow.commands.sweep.sweep_plan import SweepPlan
from winnow.errors import RunFolderError
from winnow.state.run_folder import LOCK, begun
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
    """Copy every run of the plan that has not begun and that another sweep has finished; their names.

    It is the same run where the resolved configuration, the digests of the files that it names, and the seed are the
    same. Whether its seconds count is copied with it. A folder of `plan.file.reuse` that holds no sweep yet is passed
    over, and a pattern such as "sweeps/*" may match none. Raises RunFolderError and DataError for a sweep that cannot
    be read, and where a copy cannot be written.
    """
    copied = []
    found = _finished(list(_named(plan.file.reuse)))
    for label, settings in plan.settings.items():
        for seed in plan.file.seeds:
            target = run_path(folder.path, label, seed)
            known = found.get((settings.text, seed))
            if known is None or begun(target) or _plain(known[1]) != _plain(settings.inputs):
                continue
            _copy(known[0].path, target)
            folder.note(LedgerLine(label, seed, "began", known[0].alone))
            folder.note(LedgerLine(label, seed, "finished", known[0].alone, exit_code=0))
            copied.append(f"{label}/{target.name}")
    return copied


def _named(patterns: Sequence[str]) -> Iterator[Path]:
    for pattern in patterns:
        yield from map(Path, sorted(glob.glob(os.path.expanduser(pattern))))


def _finished(sweeps: list[Path]) -> dict[tuple[str, int], tuple[SweepRun, Inputs]]:
    """By the text of the configuration and the seed; the first sweep that has one counts."""
    found: dict[tuple[str, int], tuple[SweepRun, Inputs]] = {}
    for sweep in sweeps:
        if (sweep / SWEEP).is_file():
            for run, inputs in _runs(sweep):
                found.setdefault((run.settings.read_text(encoding="utf-8"), run.seed), (run, inputs))
    return found


def _runs(sweep: Path) -> Iterator[tuple[SweepRun, Inputs]]:
    inputs = read_contents(sweep).inputs
    for run in read_sweep(sweep):
        if run.finished and (run.path.parent / SETTINGS).is_file():
            yield run, inputs.get(run.label, {})


def _plain(inputs: Inputs) -> dict[str, dict[str, str]]:
    return {key: dict(files) for key, files in inputs.items()}


def _copy(source: Path, target: Path) -> None:
    """The whole folder or nothing of it: it gets its name when it is complete."""
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
