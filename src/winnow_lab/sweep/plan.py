"""Resolve and check every configuration of a sweep before its first run, and compare it with earlier launches.

Finished runs of other sweeps are copied instead of trained again.
"""

from __future__ import annotations

import copy
import glob
import itertools
import json
import os
import shutil
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from winnow.config import Config, dump
from winnow.config_file import placed, put, read_toml, validate
from winnow.config_keys import format_toml
from winnow.errors import ConfigError, RunFolderError
from winnow.options import hide_dotted_secrets
from winnow.recipes import find_config
from winnow.state.disk import errors_as, replace_file
from winnow.state.folder import LOCK, SWEEP, has_finished_step
from winnow.state.resume import Digests, compare, differences, digests
from winnow.state.saved_runs import read_manifest
from winnow.training.resolve import check_installed, resolve_members
from winnow_lab.sweep.file import OWN_KEYS, Keys, SweepFile, configurations, locate, read_sweep_file
from winnow_lab.sweep_folder import (
    SETTINGS,
    Contents,
    LedgerLine,
    SweepFolder,
    SweepRun,
    read_contents,
    read_sweep,
    run_path,
)

Inputs = Mapping[str, Mapping[str, str]]  # key -> file -> digest


@dataclass(frozen=True)
class Settings:
    """The settings of all runs of a label, except for the seed."""

    keys: Keys  # dotted keys that the sweep sets
    config: Config
    inputs: Digests  # of the files that the configuration names

    @property
    def shown(self) -> Keys:
        """The keys for displays and for the sweep's description, with secrets hidden."""
        return hide_dotted_secrets(self.keys)

    @property
    def text(self) -> str:
        """The resolved configuration as TOML, with which the runs are started, without seed and output. It contains
        secrets. Files of members and templates have absolute paths.
        """
        lines = format_toml(self.config, secrets=True).splitlines(keepends=True)
        return "".join(line for line in lines if line.partition(" ")[0] not in OWN_KEYS) + "\n"


@dataclass(frozen=True)
class SweepPlan:
    """A checked sweep file."""

    path: Path
    file: SweepFile
    settings: Mapping[str, Settings]  # by label

    @property
    def output(self) -> Path:
        return Path(os.path.expanduser(self.file.output))

    @property
    def contents(self) -> Contents:
        labels = {label: settings.shown for label, settings in self.settings.items()}
        inputs = {label: settings.inputs for label, settings in self.settings.items()}
        return Contents(labels, self.file.seeds, self.file.baseline, inputs)


def read_plan(path: Path, changes: Mapping[str, Any]) -> SweepPlan:
    """Read and check a sweep file, in which `changes` replace keys.

    Raises ConfigError for every mistake that can be detected before a model is loaded. The error names the sweep file
    and the faulty configuration, or the line of the base configuration.
    """
    file, text = read_sweep_file(path, changes)
    try:
        base = find_config(file.config, path.parent)
        data, base_text = read_toml(base)
    except ConfigError as error:
        raise error.within(locate(path, text, "config")) from error
    validate(data, source=str(base), text=base_text)  # before any change, so that an error names a line of this file
    data = placed(data, base.parent)
    settings = {
        label: _resolve(label, keys, data, path, text, here=file.ray is None)
        for label, keys in configurations(file, path, text).items()
    }
    return SweepPlan(path, file, settings)


def record(plan: SweepPlan, folder: SweepFolder) -> None:
    """Write the description of the sweep, and a configuration for each label.

    Raises RunFolderError if a run with a completed step has another configuration or is no longer in the file. It also
    does so if the folder of a run contains another run, and if the files cannot be written.
    """
    runs = [] if folder.before is None else [run for run in read_sweep(folder.path) if has_finished_step(run.path)]
    if folder.before is not None:
        _check_same(plan, folder.before, folder.path, runs)
    _check_no_foreign_run(plan, folder.path)
    folder.describe(plan.contents)
    for label, settings in plan.settings.items():
        path = folder.path / label / SETTINGS
        if path.is_file() and any(run.label == label for run in runs):
            continue
        with errors_as(RunFolderError, f"cannot write {path}", "make room", code="run_folder.unwritable"):
            path.parent.mkdir(exist_ok=True)
            replace_file(path, settings.text.encode())


def in_order(plan: SweepPlan, runs: Sequence[SweepRun]) -> list[SweepRun]:
    """The runs of a sweep, label by label, in the order in which the plan trains them (`SweepFile.order`).

    With "seeds", the configurations a, b and c are trained as a, b, c with the first seed, as b, c, a with the second
    one, and as c, a, b with the third one.
    """
    if plan.file.order == "configurations":
        return list(runs)
    ordered = list[SweepRun]()
    for turn, seed in enumerate(plan.file.seeds):
        of_seed = [run for run in runs if run.seed == seed]
        first = turn % len(of_seed)
        ordered += of_seed[first:] + of_seed[:first]
    return ordered


def _resolve(label: str, keys: Keys, data: Mapping[str, Any], path: Path, text: str, *, here: bool) -> Settings:
    """Resolve the configuration of a label. If its runs are trained `here`, installed packages are checked too."""
    resolved: dict[str, Any] = copy.deepcopy(dict(data))
    try:
        for key, value in keys.items():
            put(resolved, key, value, path.parent)
        config = validate(resolved, source="the configuration")
        members = resolve_members(config, path.parent)
        if here:
            check_installed(members)
    except ConfigError as error:
        where = f"{_line_of(error, label, keys, path, text)}, configuration {label!r}"
        problems = error.problem.replace("the configuration: ", "").splitlines()  # one line for each mistake
        raise ConfigError(
            "\n".join(f"{where}: {problem}" for problem in problems),
            remedy=error.remedy,
            key=error.key,
            code=error.code,
        ) from error
    return Settings(keys, config, digests(config, path.parent))


def _line_of(error: ConfigError, label: str, keys: Keys, path: Path, text: str) -> str:
    """File and line of the sweep's key that an error is about, or that its message names; otherwise the file."""
    named = [
        key
        for key in sorted(keys, key=lambda key: (key != error.key, -len(key)))
        if key == error.key or key in str(error)
    ]
    tables = [f"variants.{label.rpartition(',')[0] or label}", f"variants.{label.partition(',')[0]}", "grid", "set"]
    places = (locate(path, text, key, table) for key in named for table in tables)
    return next((place for place in places if place != str(path)), str(path))


def _check_same(plan: SweepPlan, before: Contents, folder: Path, runs: Sequence[SweepRun]) -> None:
    """Raise RunFolderError, with a list, if a resume would change or drop configurations, seeds or inputs of `runs`."""
    labels, seeds = dict.fromkeys(run.label for run in runs), dict.fromkeys(run.seed for run in runs)
    differences = [f"configuration {label!r} is gone" for label in labels if label not in plan.settings]
    differences += [f"seed {seed} is gone" for seed in seeds if seed not in plan.file.seeds]
    for label in (label for label in labels if label in plan.settings):
        differences += [f"{label}: {change}" for change in _changes(plan.settings[label], before, label, folder)]
    if differences:
        raise RunFolderError(
            f"{plan.path} is not what the sweep in {folder} was started with: {'; '.join(differences)}",
            remedy="restore the old values, or start another sweep in another folder with the key output; new seeds "
            "and new configurations may be added",
            code="run_folder.changed",
        )


def _check_no_foreign_run(plan: SweepPlan, folder: Path) -> None:
    """Raise RunFolderError if the folder of a run contains another run, which could not be resumed as this one."""
    for (label, settings), seed in itertools.product(plan.settings.items(), plan.file.seeds):
        run = run_path(folder, label, seed)
        if not has_finished_step(run):
            continue
        was = read_manifest(run, own=False)
        now = settings.config.model_copy(update={"seed": seed, "output": str(run)})
        # The manifest contains what "auto" resolved to, on the machine where the run was started
        resolved = ["rollout.engine", *(["model.dtype"] if now.model.dtype == "auto" else [])]
        before, after = {"config": was.config, "base": str(was.base)}, {"config": dump(now), "base": ""}
        try:
            compare(before, after, run=run, step=0, may_change=resolved)
        except RunFolderError as error:
            raise RunFolderError(
                f"{run} is another run than the sweep's ({error.problem})",
                remedy="move it away",
                key=error.key,
                code="run_folder.foreign",
            ) from error


def _changes(settings: Settings, before: Contents, label: str, folder: Path) -> Iterator[str]:
    """The differences between the configuration of a label and the one with which its runs were started."""
    path = folder / label / SETTINGS
    if path.is_file():
        try:
            was, _ = read_toml(path)
        except ConfigError as error:
            raise RunFolderError(
                error.problem, remedy="restore the file that the sweep wrote", key=error.key, code="run_folder.damaged"
            ) from error
        for key, *values in differences(was, tomllib.loads(settings.text)):
            old, new = (hide_dotted_secrets({key: value})[key] for value in values)
            yield f"{key} was {old!r} and is now {new!r}"
    for key, files in before.inputs.get(label, {}).items():
        changed = sorted(name for name, digest in settings.inputs.get(key, {}).items() if files.get(name) != digest)
        changed += sorted(files.keys() - settings.inputs.get(key, {}).keys())
        if changed:
            yield f"{key}: {', '.join(changed)} changed since"


def reuse(plan: SweepPlan, folder: SweepFolder) -> list[str]:
    """Copy every run of the plan that has not started and that another sweep has finished. Returns their names.

    A run is the same if the resolved configuration, the digests of the files that it names, and the seed are equal.
    Whether its seconds count is copied with it. A folder of `plan.file.reuse` without a sweep is skipped, and a
    pattern such as "sweeps/*" may match nothing. Raises RunFolderError and DataError for a sweep that cannot be read,
    or a copy that cannot be written.
    """
    copied = []
    patterns = (os.path.expanduser(pattern) for pattern in plan.file.reuse)
    finished = _finished_runs([Path(folder) for pattern in patterns for folder in sorted(glob.glob(pattern))])
    for label, settings in plan.settings.items():
        for seed in plan.file.seeds:
            target = run_path(folder.path, label, seed)
            run = finished.get((settings.text, seed, _frozen(settings.inputs)))
            if run is None or os.path.lexists(target):
                continue
            _copy(run.path, target)
            folder.note(LedgerLine(label, seed, "began", run.alone))
            folder.note(LedgerLine(label, seed, "finished", run.alone, exit_code=0))
            copied.append(f"{label}/{target.name}")
    return copied


def _finished_runs(sweeps: list[Path]) -> dict[tuple[str, int, str], SweepRun]:
    """(text of the configuration, seed, digests of its files) -> run; the first sweep that contains it is used."""
    finished: dict[tuple[str, int, str], SweepRun] = {}
    for sweep in (folder for folder in sweeps if (folder / SWEEP).is_file()):
        inputs = read_contents(sweep).inputs
        for run in read_sweep(sweep):
            if run.finished and run.settings.is_file():
                text = run.settings.read_text(encoding="utf-8")
                finished.setdefault((text, run.seed, _frozen(inputs.get(run.label, {}))), run)
    return finished


def _frozen(inputs: Inputs) -> str:
    return json.dumps(inputs, sort_keys=True)


def _copy(source: Path, target: Path) -> None:
    """Copy the folder under a temporary name, and rename it when it is complete."""
    draft = target.with_name(f".{target.name}.copy")
    problem, remedy = f"cannot copy {source} to {target}", "make room, or remove the key reuse"
    with errors_as(RunFolderError, problem, remedy, key="reuse", code="run_folder.unwritable"):
        shutil.rmtree(draft, ignore_errors=True)  # of a copy that was interrupted
        try:
            shutil.copytree(source, draft, ignore=shutil.ignore_patterns(LOCK), symlinks=True)
            draft.rename(target)
        finally:
            shutil.rmtree(draft, ignore_errors=True)  # half a copy would keep the disk full
