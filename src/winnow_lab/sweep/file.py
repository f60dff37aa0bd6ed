"""The sweep file: the configurations, the seeds, and how many runs are trained at a time.

    config = "../arithmetic.toml"
    output = "sweeps/pods"
    seeds = [0, 1, 2]
    [grid]
    "select.keep_per_prompt" = [4, 8]

Every mistake is a ConfigError that names the file, the key and, where possible, the line.

Each variant, with each combination of the grid, is a labelled configuration.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field

from winnow.config import Config, Positive, Section
from winnow.config_file import line_of, read_toml
from winnow.errors import ConfigError, accepted_value, combine_errors, near_miss
from winnow.state.folder import SWEEP
from winnow_lab.sweep_folder import COMPARISON, LEDGER

Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
OWN_KEYS = {"seed": "seeds", "output": "output"}  # key of a run -> key of the sweep file that sets it
_OF_A_SWEEP = {"config", "seeds", "grid", "variants", "set"}
Keys = dict[str, Any]  # dotted key -> value
LONGEST = 100  # maximum characters of a label, which is a folder's name


class SweepFile(Section):
    """The keys of a sweep file. The tables contain keys of a configuration, dotted or nested."""

    config: str
    """The configuration that every run starts from: a recipe, or a path relative to the sweep file."""
    output: Annotated[str, Field(min_length=1)]
    """The sweep's folder, relative to the working directory."""
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)] = (0,)
    """Seeds; each configuration is trained once with each."""
    at_once: Positive = 1
    """Concurrent runs on this machine; their seconds are compared only at 1."""
    order: Literal["configurations", "seeds"] = "configurations"
    """"configurations": all seeds of a configuration, then all of the next; "seeds": every configuration with a seed,
    then with the next. Each seed begins with another configuration, so that none is always the first.
    """
    baseline: str | None = None
    """The label with which `winnow compare` compares the others."""
    reuse: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Folders of other sweeps, relative to the working directory, or patterns such as "sweeps/*". Their finished runs
    of the same configuration and seed are copied, and not trained again."""
    ray: Annotated[str, Field(min_length=1)] | None = None
    """A Ray cluster's address; "auto": the one that this machine belongs to; "local": a new one on this machine."""
    cpus_per_run: float = Field(1.0, gt=0)
    """CPUs of each run's Ray task."""
    gpus_per_run: float = Field(0.0, ge=0)
    """GPUs of each run's Ray task; a run can use no other GPU."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Keys that every run sets."""
    grid: dict[str, Any] | None = None
    """Keys, each with a list of values; every combination is a configuration."""
    variants: dict[str, dict[str, Any]] | None = None
    """Named configurations: a label with its keys."""


def read_sweep_file(path: Path, changes: Mapping[str, Any] | None = None) -> tuple[SweepFile, str]:
    """Read a sweep file and replace keys by `changes`; returns it with the file's text. Raises ConfigError."""
    changes = changes or {}
    data, text = read_toml(path)
    data |= changes
    if data.keys() & Config.model_fields.keys() - {"output", "seed"} and not data.keys() & _OF_A_SWEEP:
        raise ConfigError(
            f"{path} is the configuration of a run, and no sweep file",
            remedy=f'winnow train {path} trains it; a sweep file has config = "{path.name}", and seeds or a grid',
            key="config",
            code="config.missing_key",
        )
    for key in ("seeds", "reuse"):
        if isinstance(data.get(key), list):
            data[key] = tuple(data[key])
    try:
        file = SweepFile.model_validate(data)
    except pydantic.ValidationError as error:
        raise combine_errors([_explain(path, text, mistake, changes) for mistake in error.errors()]) from error
    twice = sorted({seed for seed in file.seeds if file.seeds.count(seed) > 1})
    if twice:
        raise ConfigError(
            f"{locate(path, text, 'seeds')}: seeds contains {twice[0]} twice",
            remedy="remove one",
            key="seeds",
            code="config.duplicate",
        )
    if file.ray is None and {"cpus_per_run", "gpus_per_run"} & file.model_fields_set:
        key = sorted({"cpus_per_run", "gpus_per_run"} & file.model_fields_set)[0]
        raise ConfigError(
            f"{locate(path, text, key)}: {key} is for runs on a Ray cluster",
            remedy="set the key ray to its address",
            key=key,
            code="config.no_effect",
        )
    return file, text


def flatten(table: Mapping[str, Any], *, whole_members: bool, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Flatten nested tables into (dotted key, value). A key that is set twice is yielded twice.

    With `whole_members`, a table that names a function (`use`, `parts`) is one value, not several keys.
    """
    for name, value in table.items():
        is_member = whole_members and isinstance(value, Mapping) and bool({"use", "parts"} & value.keys())
        if isinstance(value, Mapping) and not is_member:
            yield from flatten(value, whole_members=whole_members, prefix=f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def locate(path: Path, text: str, key: str, table: str = "") -> str:
    """The line that sets a key in a table: "sweep.toml, line 3"; "sweep.toml" if there is no such line."""
    line = line_of(text, f"{table}.{key}".removeprefix(".").split("."))
    return f"{path}, line {line}" if line else str(path)


def _explain(path: Path, text: str, mistake: Any, changes: Mapping[str, Any]) -> ConfigError:
    """The error for one of pydantic's errors, with its line and a remedy."""
    first = str(mistake["loc"][0])
    where = f"--{first}" if first in changes else locate(path, text, first)
    match mistake["type"]:
        case "extra_forbidden":
            return ConfigError(
                f"{where}: unknown key {first!r}",
                remedy=_unknown_key_remedy(first),
                key=first,
                code="config.unknown_key",
            )
        case "missing":
            return ConfigError(f"{path}: {first!r} is missing", remedy="set it", key=first, code="config.missing_key")
        case _:
            return ConfigError(
                f"{where}: {first!r} is {mistake['input']!r}",
                remedy=accepted_value(mistake["msg"]),
                key=first,
                code="config.value",
            )


def _unknown_key_remedy(key: str) -> str:
    """The remedy for an unknown key: move a key of the runs into a table, or correct its spelling."""
    if key.split(".")[0] in Config.model_fields and key not in OWN_KEYS:
        return "move it below [set], [grid] or [variants.LABEL], as it is a key of the runs"
    return near_miss(key, SweepFile.model_fields)


def configurations(file: SweepFile, path: Path, text: str) -> dict[str, Keys]:
    """label -> the keys that the sweep sets for it.

    The order is that of the file: variants, and within each variant the grid, with its last key changing fastest.
    A sweep of seeds alone has one label, the configuration's name. Raises ConfigError for a key that is set twice or
    belongs elsewhere, a grid without values, and a label that is taken or cannot be a folder's name.
    """
    if file.variants is not None and not file.variants:
        raise ConfigError(
            f"{path}: [variants] contains no variant",
            remedy="write [variants.LABEL], or remove it",
            key="variants",
            code="config.value",
        )
    shared, grid = _read_table(file.set, "set", path, text), _read_grid(file, path, text)
    named = (file.variants or {"": {}}).items()
    variants = {label: _read_table(keys, f"variants.{label}", path, text) for label, keys in named}
    for label, keys in variants.items():
        _check_grid(path, text, {"set": shared, f"variants.{label}": keys}, grid)
    names = _short_names([key for key, values in grid.items() if len(values) > 1] or list(grid))
    labelled: list[tuple[str, Keys]] = []
    for variant, values in itertools.product(variants, itertools.product(*grid.values())):
        chosen = dict(zip(grid, values, strict=True))
        parts = [
            *([variant] if variant else []),
            *(f"{name}={_label_part(chosen[key])}" for key, name in names.items()),
        ]
        label = ",".join(parts) or _safe(Path(file.config).stem)
        labelled.append((label, {**_not_replaced(shared, variants[variant]), **variants[variant], **chosen}))
    found = dict(labelled)
    _check_labels([label for label, _ in labelled], path)
    if file.baseline is not None and file.baseline not in found:
        raise ConfigError(
            f"{locate(path, text, 'baseline')}: no configuration has the label {file.baseline!r}",
            remedy=near_miss(file.baseline, found),
            key="baseline",
            code="config.unknown_name",
        )
    return found


def _read_table(table: Mapping[str, Any], name: str, path: Path, text: str) -> Keys:
    """The keys of a table, dotted."""
    keys: Keys = {}
    for key, value in flatten(table, whole_members=name != "grid"):
        if key in OWN_KEYS:
            raise ConfigError(
                f"{locate(path, text, key, name)}: {key} is no key of [{name}], as it differs in every run",
                remedy=f"remove it, and set the key {OWN_KEYS[key]} outside the tables",
                key=key,
                code="config.unknown_key",
            )
        if before := next((other for other in keys if f"{other}.".startswith(f"{key}.")), None):
            twice = "is set twice" if key == before else f"would replace {before!r}, which is set before it"
            raise ConfigError(
                f"{locate(path, text, key, name)}: {key!r} of [{name}] {twice}",
                remedy="set it once",
                key=key,
                code="config.duplicate",
            )
        keys[key] = value
    return keys


def _read_grid(file: SweepFile, path: Path, text: str) -> dict[str, list[Any]]:
    """dotted key -> its values."""
    if file.grid is None:
        return {}
    grid = _read_table(file.grid, "grid", path, text)
    if not grid:
        raise ConfigError(
            f"{path}: [grid] is empty",
            remedy="give keys with lists of values, or remove it",
            key="grid",
            code="config.value",
        )
    for key, values in grid.items():
        where = locate(path, text, key, "grid")
        if not isinstance(values, list) or not values:
            raise ConfigError(
                f"{where}: grid key {key!r} is {values!r}",
                remedy="give a list of values, one or more",
                key=key,
                code="config.value",
            )
        if any(isinstance(value, Mapping) for value in values):
            raise ConfigError(
                f"{where}: grid key {key!r} has a table as a value, and a label cannot contain a table",
                remedy="name such configurations with [variants.LABEL]",
                key=key,
                code="config.value",
            )
    return grid


def _not_replaced(shared: Keys, own: Keys) -> Keys:
    """The keys of [set] that a variant does not set itself. A whole member (`select`) sets its options, too."""
    return {key: value for key, value in shared.items() if not any(f"{key}.".startswith(f"{other}.") for other in own)}


def _check_grid(path: Path, text: str, tables: Mapping[str, Keys], grid: Keys) -> None:
    """Raise ConfigError if the grid sets a key of one of the tables, or replaces one whose parts the table sets.

    A variant may set a key of [set], as it is named; two points of a grid that differ in nothing would have two labels.
    """
    for (table, keys), other in itertools.product(tables.items(), grid):
        for key in keys:
            if f"{key}.".startswith(f"{other}."):
                again = "is also set" if key == other else f"would replace {key!r}, which is set"
                raise ConfigError(
                    f"{locate(path, text, other, 'grid')}: {other!r} of [grid] {again} in [{table}]",
                    remedy="set it in one of them",
                    key=other,
                    code="config.duplicate",
                )


def _short_names(keys: Sequence[str]) -> dict[str, str]:
    """dotted key -> its shortest ending that no other key has: one name, or more where keys share the last name."""
    short: dict[str, str] = {}
    for key in keys:
        names = key.split(".")
        ends = [".".join(names[-count:]) for count in range(1, len(names) + 1)]
        others = [other for other in keys if other != key]
        short[key] = next((end for end in ends if not any(f".{other}".endswith(f".{end}") for other in others)), key)
    return short


def _label_part(value: Any) -> str:
    """A value as a part of a folder's name: the last name of a path, the values of a list."""
    if isinstance(value, list):
        return "+".join(map(_label_part, value)) or "none"
    if isinstance(value, bool):
        return str(value).lower()
    return _safe(value.rstrip("/").rpartition("/")[2] if isinstance(value, str) else repr(value))


def _safe(text: str) -> str:
    return re.sub(r"[^\w.+=-]+", "-", text, flags=re.ASCII) or "none"


def _check_labels(labels: Iterable[str], path: Path) -> None:
    counts = Counter(label.lower() for label in labels)  # on some file systems "A" and "a" are one folder
    for label in labels:
        if counts[label.lower()] > 1:
            raise ConfigError(
                f"{path}: two configurations would be labelled {label!r}",
                remedy="give them other names with [variants.LABEL]",
                key="variants",
                code="config.duplicate",
            )
        if not re.fullmatch(r"[A-Za-z0-9_][\w.+=,-]*", label, flags=re.ASCII) or len(label) > LONGEST:
            raise ConfigError(
                f"{path}: the label {label!r} cannot be a folder's name",
                remedy=f"use at most {LONGEST} letters, digits and _ . + = , - and no dot or sign in front",
                key="variants",
                code="config.value",
            )
        if label.lower() in (SWEEP, LEDGER) or re.fullmatch(rf"{COMPARISON}(-\d+)?", label.lower()):
            raise ConfigError(
                f"{path}: the label {label!r} is the name of something else in the sweep's folder",
                remedy="give it another name with [variants.LABEL]",
                key="variants",
                code="config.value",
            )
