"""The sweep file: the configurations, the seeds, and how many runs are trained at a time.

    config = "../arithmetic.toml"
    output = "sweeps/pods"
    seeds = [0, 1, 2]
    [grid]
    "select.keep_per_prompt" = [4, 8]

Every mistake is a ConfigError that names the file, the key and, where possible, the line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import pydantic
from pydantic import Field

from winnow.config import Config, Positive, Section
from winnow.config_file import read_toml
from winnow.errors import ConfigError, accepted_value, combine_errors, near_miss

Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
OWN_KEYS = {"seed": "seeds", "output": "output"}  # key of a run -> key of the sweep file that sets it


class SweepFile(Section):
    """The keys of a sweep file. The tables contain keys of a configuration, dotted or nested."""

    config: str
    """The configuration that every run starts from, relative to the sweep file."""
    output: Annotated[str, Field(min_length=1)]
    """The sweep's folder, relative to the working directory."""
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)] = (0,)
    """Seeds; each configuration is trained once with each."""
    at_once: Positive = 1
    """Concurrent runs on this machine; their seconds are compared only at 1."""
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
    wanted = _parts(f"{table}.{key}" if table else key)
    above: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[\s*([^\[\]]+?)\s*\]", line):
            above = _parts(header[1])
        elif assignment := re.match(r"\s*((?:\"[^\"]*\"|'[^']*'|[\w.\-\s])+?)\s*=", line):
            written = [*above, *_parts(assignment[1])]
            if written == wanted[: len(written)] and (written == wanted or "{" in line):
                return f"{path}, line {number}"
    return str(path)


def _parts(key: str) -> list[str]:
    """The names of a TOML key. As everywhere in a sweep file, the dots in a quoted key separate names too."""
    return [name for part in re.findall(r"\"[^\"]*\"|'[^']*'|[^.\s]+", key) for name in part.strip("\"'").split(".")]


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
