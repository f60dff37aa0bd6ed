"""Configurations on their way in and out of the command line: printed as TOML, and found again beside a model."""

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
from winnow.report.text import safe
from winnow.state.saved_runs import Manifest, check_is_model, check_same_problems, check_trusted, read_manifest, run_of

WORDING = ("template", "system", "suffix", "template_options")  # keys of `prompt` that belong together
EVERY = 10**9  # problems: more than any task has

# In the place of what only training reads.
_UNTRAINED = MappingProxyType(
    {
        **{key: getattr(Config(), key) for key in ("allocate", "probe", "advantage", "weighting", "loss", "optimizer")},
        "track": (),
        "select": (SelectSection(use="all"),),
        "terms": (),
    }
)


def toml(config: Config, *, secrets: bool = False) -> str:
    """The resolved configuration, one dotted key per line: TOML that loads again, and keys as `--set` takes them.
    Secrets are hidden, as `dump` does it.
    """
    return "\n".join(_lines(dump(config, secrets=secrets)))


@dataclass(frozen=True)
class Source:
    """Where the settings of an evaluation come from, before the call changes them."""

    name: str  # for messages
    data: Mapping[str, Any]  # nested, not validated yet
    text: str  # of the file, for its line numbers
    base: Path  # the folder that "file.py:function" names start from
    manifest: Manifest | None  # of the run that a checkpoint is of


def source_of(model: str, config: Path | None = None, *, task_named: bool, trust_run: bool = False) -> Source:
    """A given configuration; else that of the run whose checkpoint the model is; else nothing.

    Raises DataError for a folder that is no model, ConfigError where neither model nor call brings a task, and
    RunFolderError for a run that is not this user's own (unless `trust_run`) or cannot be read. Where the task is
    named, such a run is a note, and nothing of it holds.
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
    """What to evaluate `model` with: the source, changed by nested `keys`, then by `sets`; or `further`, one of its
    `evaluate.tasks`, of which the test problems are asked.

    Every problem of the test split is asked unless they say otherwise. Prompt, limits and reward are what the task
    declares for its evaluation where neither source nor call name them, and with `task_defaults` also in the place of
    the source's.

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

    said, data = change({}), copy.deepcopy(dict(source.data))
    declared = _declared(change(copy.deepcopy(data)), source.base)
    if task_defaults:
        data = _without(data, declared)
    _fill(data, said, declared)
    merge(data, {"evaluate": {"problems": EVERY, "split": "test"}})
    change(data)
    settings = _evaluated(validate(data, source=source.name, text=source.text, sets=sets))
    own = {name: value for name, value in said.items() if further is None or name != "task"}
    if source.manifest is not None and not trust_run:
        check_trusted(settings, source.manifest, own)
    if source.manifest is not None and "task" not in said:
        check_same_problems(settings, source.manifest)
    return settings


def _declared(data: Mapping[str, Any], base: Path) -> Mapping[str, Any]:
    """What the task of nested settings declares for its evaluation; nothing for one that cannot be found, which
    whatever looks it up later reports.
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
    """`data` without what a task declares: prompt and reward as a whole, of other sections the keys that it sets."""
    bare = {section: value for section, value in data.items() if section not in ("prompt", "reward")}
    limits = {section: value for section, value in declared.items() if section in bare}
    return bare | {name: {k: v for k, v in bare[name].items() if k not in value} for name, value in limits.items()}


def _fill(data: dict[str, Any], said: Mapping[str, Any], declared: Mapping[str, Any]) -> None:
    """Put what a task declares into `data` where it is silent: the reward, the wording of the prompt, each limit. A
    prompt of which source or call give a part of the wording has no other part of it filled in.
    """
    for section, value in copy.deepcopy(dict(declared)).items():
        if section == "reward":
            data.setdefault("reward", value)
            continue
        there = data.get(section, {})
        named = {*there, *said.get(section, {})}
        worded = section == "prompt" and not named.isdisjoint(WORDING)
        data[section] = {**{key: v for key, v in value.items() if not (worded and key in WORDING)}, **there}


def settings_of(run: Path, changes: Mapping[str, Any], *, trust_run: bool = False) -> tuple[Config, Path]:
    """What a run was started with, and its changes; raises as `settings_from`."""
    said: dict[str, Any] = {}
    merge(said, changes)
    manifest = read_manifest(run, own=not trust_run)
    merge(manifest.config, {"output": str(run)})
    merge(manifest.config, changes)
    config = validate(manifest.config, source=str(manifest.path))
    if not trust_run:
        check_trusted(config, manifest, said)
    return config, manifest.base


def _manifest(model: str, *, needed: bool, own: bool) -> Manifest | None:
    """That of the run which a checkpoint is of. Raises for any other model where the task is needed from it."""
    run = run_of(model)
    try:
        manifest = None if run is None else read_manifest(run, own=own)
    except RunFolderError as error:
        if needed:
            raise
        print(safe(f"note: nothing of the run's settings holds here: {error}"), file=sys.stderr)
        return None
    if manifest is None and needed and model != "bundled":
        here = os.path.isdir(os.path.expanduser(model))
        what = "not a checkpoint of a winnow run" if here else "no folder here (of the hub, then?)"
        raise ConfigError(
            f"{model} is {what}, so no task is known to evaluate it on",
            remedy="name a task (on the command line --task), for example gsm8k, or give a configuration",
            key="task",
            code="config.missing_key",
        )
    return manifest


def _evaluated(config: Config) -> Config:
    """Without what only training reads, so that it is neither looked up nor imported; and without an adapter and what
    it was trained on, as a model folder holds the merged model.
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
