"""A folder that is no run: the formats that are read, and what was found instead."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path

from winnow.errors import DataError
from winnow.state.foreign_log import ForeignLog, listed
from winnow.state.manifest import MANIFEST

OWN = "winnow (metrics.jsonl)"
LOOKED_AT = 2000  # names in a folder, which may be anything
KINDS = (  # what a file or a folder is, by its name
    (re.compile(r"wandb|run-.*\.wandb|wandb-.*\.json|.*\.table\.json"), "records of Weights & Biases"),
    (re.compile(r"events\.out\.tfevents\..*"), "records of TensorBoard"),
    (re.compile(r"mlruns|swanlog"), "records of another tracker"),
    (re.compile(r".*\.(?:log|out|err)|nohup.*|.*log.*\.txt"), "output of a console"),
    (re.compile(r"(?:model|pytorch_model|adapter_model).*\.(?:safetensors|bin)"), "weights of a model"),
)


def unknown(path: Path, logs: Sequence[type[ForeignLog]], is_run: Callable[[Path], bool]) -> DataError:
    """The error about a folder that no program's log is in. `is_run` decides whether a folder in it is a run."""
    names = _names(path)
    of_sweep = [f"{name}/{own}" for name in names for own in _names(path / name)] if "sweep.json" in names else []
    runs = [name for name in (*names, *of_sweep) if is_run(path / name)]
    found = [f"runs ({listed(runs)})"] if runs else []
    for pattern, kind in KINDS:
        if own := [name for name in names if pattern.fullmatch(name)]:
            found.append(f"{kind} ({listed(own[:3])})")
    if rows := [name for name in names if name.endswith(".jsonl")]:
        found.append(f"{rows[0]}, whose rows have {listed(_keys(path / rows[0])) or 'no names'}")
    if not found:
        found = [listed(names[:3]) if names else "nothing"]
    formats = "; ".join([OWN, *(f"{kind.program} ({kind.names})" for kind in logs)])
    wanted = "one of these runs" if runs else "a folder with the names of a format"
    return DataError(
        f"{path} is no run that winnow reads: it contains {', '.join(found)}",
        remedy=f"name {wanted}; the formats are {formats}",
        code="data.missing",
    )


def refuse_settings(path: Path) -> None:
    """Raise DataError for a TOML file: a configuration or a sweep file in place of what it makes."""
    if path.suffix == ".toml" and path.is_file():
        raise DataError(
            f"{path} is a configuration or a sweep file, and no run",
            remedy="name the folder that its key output names, or of a sweep a run in that folder, LABEL/seed-N",
            code="data.malformed",
        )


def is_run(path: Path, logs: Iterable[type[ForeignLog]]) -> bool:
    """Whether a folder is a run of winnow, or has the log of another trainer."""
    return path.is_dir() and ((path / MANIFEST).is_file() or any(kind.is_at(path) for kind in logs))


def _names(path: Path) -> list[str]:
    try:
        return sorted(inner.name for inner in islice(path.iterdir(), LOOKED_AT))
    except OSError:
        return []


def _keys(path: Path) -> list[str]:
    """The names in the first row of a file of JSON lines."""
    try:
        with path.open("rb") as file:
            row = json.loads(file.readline(2**20))
    except (OSError, ValueError, RecursionError):
        return []
    return list(row) if isinstance(row, dict) else []
