"""Expand the tables of a sweep file into labelled configurations: each variant with each combination of the grid."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from winnow.commands.sweep.file import OWN_KEYS, SweepFile, flatten, locate
from winnow.errors import ConfigError, near_miss
from winnow.state.sweep_folder import COMPARISON, LEDGER, SWEEP

Keys = dict[str, Any]  # dotted key -> value
LONGEST = 100  # maximum characters of a label, which is a folder's name


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
        _check_set_once(path, text, {"set": shared, f"variants.{label}": keys, "grid": grid})
    names = _short_names([key for key, values in grid.items() if len(values) > 1] or list(grid))
    labelled: list[tuple[str, Keys]] = []
    for variant, values in itertools.product(variants, itertools.product(*grid.values())):
        chosen = dict(zip(grid, values, strict=True))
        parts = [
            *([variant] if variant else []),
            *(f"{name}={_label_part(chosen[key])}" for key, name in names.items()),
        ]
        label = ",".join(parts) or _safe(Path(file.config).stem)
        labelled.append((label, {**shared, **variants[variant], **chosen}))
    _check_labels([label for label, _ in labelled], path)
    _check_baseline(file.baseline, dict(labelled), locate(path, text, "baseline"))
    return dict(labelled)


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


def _check_set_once(path: Path, text: str, tables: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise ConfigError if a table sets a key of an earlier table, or replaces one whose parts that table sets."""
    for (first, keys), (second, later) in itertools.combinations(tables.items(), 2):
        for key, other in itertools.product(keys, later):
            if f"{key}.".startswith(f"{other}."):
                again = "is also set" if key == other else f"would replace {key!r}, which is set"
                where = locate(path, text, other, second)
                raise ConfigError(
                    f"{where}: {other!r} of [{second}] {again} in [{first}]",
                    remedy="set it in one of them",
                    key=other,
                    code="config.duplicate",
                )


def _check_baseline(baseline: str | None, labelled: Mapping[str, Keys], where: str) -> None:
    if baseline is not None and baseline not in labelled:
        raise ConfigError(
            f"{where}: no configuration has the label {baseline!r}",
            remedy=near_miss(baseline, labelled),
            key="baseline",
            code="config.unknown_name",
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
