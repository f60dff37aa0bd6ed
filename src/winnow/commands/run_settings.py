"""Configurations on their way in and out of the command line: printed as TOML, and found again beside a model."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from winnow.config import Config, SelectSection, dump
from winnow.config_file import merge, override, read_toml, validate
from winnow.errors import ConfigError, RunFolderError
from winnow.report.text import safe
from winnow.state.saved_runs import Manifest, check_is_model, check_same_problems, check_trusted, read_manifest, run_of

EVERY = 10**9  # problems: more than any task has

# In the place of what only training reads.
_UNTRAINED = MappingProxyType(
    {
        **{key: getattr(Config(), key) for key in ("allocate", "probe", "advantage", "weighting", "loss", "optimizer")},
        "select": (SelectSection(use="all"),),
        "terms": (),
    }
)


def toml(config: Config) -> str:
    """The resolved configuration, one dotted key per line: TOML that loads again, and keys as `--set` takes them."""
    return "\n".join(_lines(dump(config)))


def settings_for(
    model: str,
    config: Path | None = None,
    keys: Mapping[str, Any] = MappingProxyType({}),
    sets: Sequence[str] = (),
    *,
    trust_run: bool = False,
) -> tuple[Config, Path]:
    """What to evaluate `model` with, and the folder its "file.py:function" names start from.

    A given configuration; else that of the run whose checkpoint the model is; else the defaults and a task that has to
    be named. Nested `keys`, then `sets`, change it; every problem of the test split is asked unless they say otherwise.

    Raises ConfigError for a mistake in them, where a model brings no task, and where a run names code that this call
    does not (unless `trust_run`); DataError for a folder that is no model; RunFolderError for a run that is not this
    user's own (unless `trust_run`) or cannot be read. Where the task is named, such a run is a note, and the defaults.
    """

    def change(data: dict[str, Any]) -> dict[str, Any]:
        merge(data, {"model": {"path": model}})
        merge(data, keys)
        for assignment in sets:
            override(data, assignment)
        return data

    check_is_model(model)
    said = change({})
    data, text, source, base = dict[str, Any](), "", "the configuration", Path.cwd()
    manifest = _manifest(model, needed="task" not in said, own=not trust_run) if config is None else None
    if config is not None:
        (data, text), source, base = read_toml(config), str(config), config.parent
    elif manifest is not None:
        data, source, base = manifest.config, str(manifest.path), manifest.base
    merge(data, {"evaluate": {"problems": EVERY, "split": "test"}})
    change(data)
    settings = _evaluated(validate(data, source=source, text=text, sets=sets))
    if manifest is not None and not trust_run:
        check_trusted(settings, manifest, said)
    if manifest is not None and "task" not in said:
        check_same_problems(settings, manifest)
    return settings, base


def settings_of(run: Path, changes: Mapping[str, Any], *, trust_run: bool = False) -> tuple[Config, Path]:
    """What a run was started with, and its changes; raises as `settings_for`."""
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
        what = "not a checkpoint of a run of winnow" if here else "no folder here (of the hub, then?)"
        raise ConfigError(
            f"{model} is {what}, so nothing says what to evaluate it on: name a task (on the command line --task), for "
            f"example gsm8k, or give a configuration"
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
