"""Configurations on their way in and out of the command line: printed as TOML, and found again beside a model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from winnow.config import Config, dump, load, override, validate
from winnow.errors import DataError

MANIFEST = "manifest.json"


def toml(config: Config) -> str:
    """The resolved configuration, one dotted key per line: TOML that loads again, and keys as `--set` takes them."""
    return "\n".join(_lines(dump(config)))


def settings_for(model: str, config: Path | None, sets: Sequence[str]) -> tuple[Config, Path]:
    """What to evaluate `model` with, and the folder its "file.py:function" names start from.

    A given configuration; else that of the run whose checkpoint the model is; else the defaults. `sets` come last.
    Raises ConfigError for a mistake in them, DataError for a run folder that cannot be read.
    """
    own = [f"model.path={_value(model)}", *sets]
    if config is not None:
        return _without_adapter(load(config, own)), config.parent
    manifest = Path(model).expanduser().resolve().parent.parent / MANIFEST
    data, base = _trained_with(manifest)
    for assignment in own:
        override(data, assignment)
    source = str(manifest) if manifest.is_file() else "the command line"
    return _without_adapter(validate(data, source=source)), base


def _trained_with(manifest: Path) -> tuple[dict[str, Any], Path]:
    """The configuration in a run's manifest and the folder its files are relative to; empty where there is none."""
    if not manifest.is_file():
        return {}, Path.cwd()
    try:
        data = json.loads(manifest.read_bytes())
    except ValueError as error:
        raise DataError(f"{manifest} is not JSON ({error}); name a configuration with --config") from error
    if not isinstance(data, dict) or "winnow_run" not in data:
        return {}, Path.cwd()
    return dict(data["config"]), Path(data.get("base", "."))


def _without_adapter(config: Config) -> Config:
    """A model folder holds the merged model: what is evaluated is never adapted once more."""
    return config.model_copy(update={"model": config.model.model_copy(update={"lora": None})})


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
