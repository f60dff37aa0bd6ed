"""The settings of an evaluation: from a configuration, or from the run beside a model; and printed as TOML."""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from winnow.config import Config, Member, SelectSection, dump, tables
from winnow.config_file import merge, override, read_toml, validate
from winnow.errors import ConfigError, RunFolderError
from winnow.families import TASK
from winnow.registry import resolve
from winnow.state.saved_runs import Manifest, check_is_model, check_same_problems, check_trusted, read_manifest, run_of
from winnow.view.text import sanitize

WORDING = ("template", "system", "suffix", "template_options")  # keys of `prompt` that belong together
EVERY = 10**9  # more problems than any task has

# Defaults that replace the settings that only training reads.
_UNTRAINED = MappingProxyType(
    {
        **{key: getattr(Config(), key) for key in ("allocate", "probe", "advantage", "weighting", "loss", "optimizer")},
        "track": (),
        "select": (SelectSection(use="all"),),
        "terms": (),
    }
)


def format_toml(config: Config, *, secrets: bool = False) -> str:
    """The resolved configuration as TOML that can be loaded again, one dotted key per line, as for `--set`. `secrets`
    as in `dump`.
    """
    return "\n".join(_lines(dump(config, secrets=secrets)))


@dataclass(frozen=True)
class Source:
    """The settings of an evaluation, before the call changes them."""

    name: str  # for messages
    data: Mapping[str, Any]  # nested, not validated yet
    text: str  # the file's text, for line numbers
    base: Path  # the folder to which "file.py:function" names are relative
    manifest: Manifest | None  # of the checkpoint's run


def source_of(model: str, config: Path | None = None, *, task_named: bool, trust_run: bool = False) -> Source:
    """The given configuration; else that of the checkpoint's run; else an empty one.

    Raises DataError for a folder that is not a model, and ConfigError where neither the model nor the call names a
    task. Raises RunFolderError for a run that cannot be read, or belongs to another user (unless `trust_run`). If the
    call names the task, such a run only results in a printed note, and its settings are not used.
    """
    check_is_model(model)
    if config is not None:
        data, text = read_toml(config)
        return Source(str(config), data, text, config.parent, None)
    manifest = _manifest(model, needed=not task_named, own=not trust_run)
    if manifest is None:
        return Source("the configuration", {}, "", Path.cwd(), None)
    return Source(str(manifest.path), manifest.config, "", manifest.base, manifest)


def settings_from(
    source: Source,
    model: str,
    keys: Mapping[str, Any] = MappingProxyType({}),
    sets: Sequence[str] = (),
    *,
    trust_run: bool = False,
    task_defaults: bool = False,
    further: Member | None = None,
) -> Config:
    """The settings to evaluate `model` with: the source, changed by nested `keys`, then by `sets`. `further` replaces
    the task by one of the source's `evaluate.tasks`, with its test problems.

    The evaluation is on every problem of the test split unless the call sets `evaluate.problems` or `evaluate.split`;
    those of the source do not apply. Prompt, limits and reward that neither source nor call set are those that the task
    declares for its evaluation; with `task_defaults` these also replace the source's.

    Raises ConfigError for a mistake in them, and where a run names code that this call does not (unless `trust_run`).
    """

    def change(data: dict[str, Any]) -> dict[str, Any]:
        merge(data, {"model": {"path": model}})
        merge(data, keys)
        for assignment in sets:
            override(data, assignment)
        if further is not None:
            data["task"] = {"use": further.use, **further.options}
            merge(data, {"evaluate": {"split": "test"}})
        return data

    given, data = change({}), copy.deepcopy(dict(source.data))
    declared = _declared(change(copy.deepcopy(data)), source.base)
    if task_defaults:
        data = _without(data, declared)
    _fill(data, given, declared)
    merge(data, {"evaluate": {"problems": EVERY, "split": "test"}})
    change(data)
    settings = _evaluated(validate(data, source=source.name, text=source.text, sets=sets))
    # A further task is named by the run and not by the call, although `change` sets it.
    named_here = {name: value for name, value in given.items() if further is None or name != "task"}
    if source.manifest is not None and not trust_run:
        check_trusted(settings, source.manifest, named_here)
    if source.manifest is not None and "task" not in given:
        check_same_problems(settings, source.manifest)
    return settings


def _declared(data: Mapping[str, Any], base: Path) -> Mapping[str, Any]:
    """The settings that the task of nested settings declares for its evaluation.

    Empty for a function of a file, which is not imported here, and for an unknown task, which is refused later.
    """
    task = tables(data).get("task")
    use = task.get("use") if isinstance(task, Mapping) else Config().task.use
    if use is None or (isinstance(use, str) and ".py:" in use):
        return {}
    try:
        return resolve(TASK, use, base=base).traits.evaluation
    except ConfigError:
        return {}


def _without(data: Mapping[str, Any], declared: Mapping[str, Any]) -> dict[str, Any]:
    """`data` without the settings that a task declares: without prompt and reward, and without the declared keys of
    other sections.
    """
    bare = {section: value for section, value in data.items() if section not in ("prompt", "reward")}
    limits = {section: value for section, value in declared.items() if section in bare}
    return bare | {name: {k: v for k, v in bare[name].items() if k not in value} for name, value in limits.items()}


def _fill(data: dict[str, Any], given: Mapping[str, Any], declared: Mapping[str, Any]) -> None:
    """Add a task's declared settings to `data` where it lacks them: the reward, the wording of the prompt, each limit.
    The wording is added only if neither source nor call set a part of it.
    """
    for section, value in copy.deepcopy(dict(declared)).items():
        if section == "reward":
            data.setdefault("reward", value)
            continue
        existing = data.get(section, {})
        named = {*existing, *given.get(section, {})}
        worded = section == "prompt" and not named.isdisjoint(WORDING)
        data[section] = {**{key: v for key, v in value.items() if not (worded and key in WORDING)}, **existing}


def settings_of(run: Path, changes: Mapping[str, Any], *, trust_run: bool = False) -> tuple[Config, Path]:
    """The configuration of a run with `changes`, and the folder of its relative names.

    Raises as `settings_from`, and RunFolderError for a run that cannot be read or belongs to another user.
    """
    given: dict[str, Any] = {}
    merge(given, changes)
    manifest = read_manifest(run, own=not trust_run)
    merge(manifest.config, {"output": str(run)})
    merge(manifest.config, changes)
    config = validate(manifest.config, source=str(manifest.path))
    if not trust_run:
        check_trusted(config, manifest, given)
    return config, manifest.base


def _manifest(model: str, *, needed: bool, own: bool) -> Manifest | None:
    """The manifest of a checkpoint's run; None for another model. Raises where it is `needed` for the task."""
    run = run_of(model)
    try:
        manifest = None if run is None else read_manifest(run, own=own)
    except RunFolderError as error:
        if needed:
            raise
        print(sanitize(f"note: the run's settings are not used: {error}"), file=sys.stderr)
        return None
    if manifest is None and needed and model != "bundled":
        here = os.path.isdir(os.path.expanduser(model))
        what = "not a checkpoint of a winnow run" if here else "not a folder on this machine (a hub id?)"
        raise ConfigError(
            f"{model} is {what}, so the task to evaluate it on is missing",
            remedy="name a task (on the command line --task), for example gsm8k, or give a configuration",
            key="task",
            code="config.missing_key",
        )
    return manifest


def _evaluated(config: Config) -> Config:
    """The configuration without the settings that only training reads, so that no code for them is imported. Also
    without adapter and quantization, as a model folder contains the merged model.
    """
    model = config.model.model_copy(update={"lora": None, "quantization": None})
    return config.model_copy(update={"model": model, **_UNTRAINED})


def _lines(data: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from _lines(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key} = {_value(value)}"


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        inside = ", ".join(f"{key} = {_value(v)}" for key, v in value.items() if v is not None)
        return f"{{{inside}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    return json.dumps(value, ensure_ascii=False)
