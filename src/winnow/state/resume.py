"""What a resume compares: the manifests of both launches, and digests of the files that a configuration names.

Changes that a resume may not make are refused by their keys. Digests are by key:

    {"reward.use": {"mine.py": "sha256:..."}, "task.path": {"train.jsonl": "sha256:..."}, "model.path": {...}}

A file of at most 64 MiB is hashed whole. Of a larger one, usually weights, its length and 1,024 blocks spread evenly
over it are hashed: other weights differ everywhere, while an edit of a few bytes between two blocks is not noticed.
Modules that a user's file imports, functions passed as objects, and data sets read from the hub have no digest.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from winnow.config import Config, dump, key_of, leaves
from winnow.errors import ConfigError, DataError, RunFolderError, near_miss, resumable
from winnow.models.folder import cached_folder, is_hub_id, settings_folder
from winnow.state.folder import TENSORS

WHOLE = 64 * 2**20  # bytes up to which a file is hashed whole
BLOCKS, BLOCK = 1024, 4096
MODEL_FILES = (".json", ".safetensors", ".model", ".txt", ".jinja")  # what a loader may open

Digests = dict[str, dict[str, str]]
# Keys that a resume may change: the place of the run and its resources, but nothing that changes its numbers.
# Options of the engine are not in this list, as each engine declares its own.
MAY_CHANGE = (
    "steps",
    "max_hours",
    "alarms",
    "output",
    "device",
    "threads",
    "checkpoint",
    "evaluate",
    "log",
    "ranks",
    "model.gradient_checkpointing",
    "track",
    "rollout.max_ratio_outside",
    "rollout.max_rollouts_at_once",
    "update.layout",
    "update.max_skipped",
    "update.tokens_per_micro_batch",
    "verify.workers",
)
WHAT_IS_MEASURED = (  # keys that decide what an evaluation measures, and when
    *("evaluate", "task", "prompt", "reward", "environment"),
    *("rollout.max_new_tokens", "rollout.stop", "rollout.temperature"),
)
WHEN_EVALUATED = ("evaluate.every", "evaluate.every_minutes")  # they change no number of an evaluation


def digests(config: Config, base: Path, *, below: str = "", but: str | None = None) -> Digests:
    """{key of the configuration: {file: digest}} for every existing file that the configuration names.

    Keys are limited to those that start with `below` and do not start with `but`. A file named in a list is under the
    list's key.
    """
    digests_by_key: Digests = {}
    texts = ((place, leaf) for place, leaf in leaves(dump(config)) if isinstance(leaf, str))
    for place, value in texts:
        key = key_of(place)
        if not key.startswith(below) or (but is not None and key.startswith(but)):
            continue
        for name, path in _files_named_by(key, value, base, is_name=place[-1] == "use"):
            digests_by_key.setdefault(key, {})[name] = digest(path)
    return digests_by_key


def digest(path: Path) -> str:
    """The digest of one file, as described in the module's docstring."""
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= WHOLE:
            return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
        sampled = hashlib.sha256(str(size).encode())
        for place in range(BLOCKS):
            file.seek(place * (size - BLOCK) // (BLOCKS - 1))
            sampled.update(file.read(BLOCK))
    return f"sampled-sha256:{sampled.hexdigest()}"


def _files_named_by(key: str, value: str, base: Path, *, is_name: bool) -> Iterator[tuple[str, Path]]:
    """(name, path) of the files that a key's text names; `is_name`: the text is a member's name, or its function."""
    if ".py:" in value:
        name = value.rpartition(":")[0]
        yield from _if_file(name, base / name)
    elif key in ("model.path", "critic.path"):
        yield from _of_model(value)
    elif key == "plan.costs":
        yield from _if_file(value, Path(os.path.expanduser(value)))
    elif key == "critic.start":
        yield from _if_file(TENSORS, Path(os.path.expanduser(value)) / TENSORS)
    elif key == "prompt.template":
        yield from _if_file(value, base / value)
    elif (key == "evaluate.tasks" or key.startswith("task.")) and not is_name:
        path = Path(os.path.expanduser(value))
        yield from _if_file(value, path)
        yield from _in_folder(path, (".jsonl", ".parquet"))


def _if_file(name: str, path: Path) -> Iterator[tuple[str, Path]]:
    if os.path.isfile(path):  # False for a text that is not a path (a null byte, say), where Path.is_file raises
        yield name, path


def _in_folder(folder: Path | None, endings: tuple[str, ...]) -> Iterator[tuple[str, Path]]:
    if folder is not None and os.path.isdir(folder):
        yield from ((p.name, p) for p in sorted(folder.iterdir()) if p.suffix in endings and p.is_file())


def _of_model(path: str) -> Iterator[tuple[str, Path]]:
    """The files of a model's folder. Of a hub id only the revision, as the cache of a machine may lack files."""
    try:
        on_hub = is_hub_id(path)
        folder = cached_folder(path) if on_hub else settings_folder(path)
    except DataError:  # no such folder; loading the model raises the error
        return
    if not on_hub:
        yield from _in_folder(folder, MODEL_FILES)
    elif folder is not None:
        yield f"{folder.name}/config.json", folder / "config.json"


@dataclass(frozen=True)
class Change:
    """A difference between a run's manifest and that of its resume."""

    step: int  # the first step with the new value
    key: str
    was: Any
    now: Any
    notice: str  # a sentence for a person


def compare(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    *,
    run: Path,
    step: int,
    may_change: Sequence[str] = (),
    allow: Sequence[str] = (),
) -> tuple[Change, ...]:
    """The changes that a resume of `run` at `step` makes, all of them permitted.

    In the configuration and in the files that it names, a resume may change the keys of `MAY_CHANGE`, those of
    `may_change` (declared by its members), and those of `allow` or below one of them. Versions and machine may differ.

    Raises ConfigError for a key in `allow` that does not exist. Raises RunFolderError for fewer steps than are done,
    and for every other change, with its key.
    """
    after = json.loads(json.dumps(after))  # the manifest was read from JSON, so tuples must be lists here too
    _check_allowed(allow, [before, after])
    _check_steps(run, step, after["config"])
    bases = (str(before.get("base", "")), str(after.get("base", "")))
    config = [
        Change(step, key, was, now, _sentence(key, was, now))
        for key, was, now in differences(before.get("config"), after["config"])
        if _placed(was, bases[0]) != _placed(now, bases[1])
    ]
    changes = [*config, *_edited(before.get("inputs", {}), after.get("inputs", {}), bases, step)]
    refused = [c for c in changes if not (_may_change(c.key, after["config"]) or within(c.key, (*may_change, *allow)))]
    if refused:
        keys = dict.fromkeys(c.key for c in refused)
        error = RunFolderError(
            f"cannot resume {run} with another configuration: {'; '.join(c.notice for c in refused)}",
            remedy="restore the earlier value, start a new run in another output folder, or change it knowingly: "
            + ", ".join(f"allow-change {key}" for key in keys),
            key=refused[0].key,
            code="run_folder.changed",
        )
        raise resumable(error, allow_change=keys)
    bits = "the last bits of the results may differ from an uninterrupted run"
    around = [
        Change(step, key, was, now, f"{_sentence(key, was, now)}; {bits}")
        for key, was, now in differences(_surroundings(before), _surroundings(after))
    ]
    return (*(c for c in changes if c.key != "output"), *around)


def same_evaluation(changes: Sequence[Change], allow: Sequence[str]) -> bool:
    """Whether evaluations from before and after these changes are comparable. `allow` are keys allowed by name."""
    keys = [change.key for change in changes if change.key not in WHEN_EVALUATED]
    return not any(within(key, ("evaluate", *allow)) for key in keys)


def evaluated_since(changes: Sequence[Mapping[str, Any]]) -> int:
    """The step from which on the evaluations of a run are comparable, by the changes that its manifest lists."""
    of_evaluation = (change for change in changes if within(change["key"], WHAT_IS_MEASURED))
    return max((int(change["step"]) for change in of_evaluation if change["key"] not in WHEN_EVALUATED), default=0)


def recorded(changes: Sequence[Change]) -> list[dict[str, Any]]:
    """Changes as the manifest lists them."""
    return [{name: value for name, value in asdict(change).items() if name != "notice"} for change in changes]


def _check_allowed(allow: Sequence[str], manifests: Sequence[Mapping[str, Any]]) -> None:
    known = {key for manifest in manifests for key in manifest.get("inputs", {})}
    known |= {key_of(path) for manifest in manifests for path, _ in leaves(manifest.get("config"))}
    for key in allow:
        if not any(within(name, [key]) for name in known):
            raise ConfigError(
                f"allow-change {key}: there is no such key",
                remedy=near_miss(key, known),
                key=key,
                code="config.unknown_key",
            )


def _check_steps(run: Path, done: int, config: Mapping[str, Any]) -> None:
    if config.get("steps", done) < done:
        error = RunFolderError(
            f"steps = {config['steps']}, but {run} has done {done} steps, and its newest weights are from after them",
            remedy=f"resume it with steps = {done} or more, or start a new run in another output folder",
            key="steps",
            code="run_folder.changed",
        )
        raise resumable(error, set=[f"steps={done}"])


def _edited(before: Mapping[str, Any], after: Mapping[str, Any], bases: tuple[str, str], step: int) -> Iterator[Change]:
    """A change for each key whose files differ, if both manifests have digests for the key."""
    for key in before:
        was, now = before[key], after.get(key, before[key])
        if _placed(was, bases[0]) == _placed(now, bases[1]):
            continue
        files = [name for name in dict.fromkeys([*was, *now]) if was.get(name) != now.get(name)]
        if files:
            how = {(True, True): "has changed", (True, False): "is gone", (False, True): "is new"}
            edits = (f"{name} {how[name in was, name in now]}" for name in files)
            yield Change(step, key, was, now, f"{key}: {', '.join(edits)} since the run read it")


def _sentence(key: str, was: Any, now: Any) -> str:
    return f"{key} was {was!r} and is now {now!r}"


def _surroundings(manifest: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in manifest.items() if key not in ("winnow_run", "config", "inputs", "changes")}


def _may_change(key: str, config: Mapping[str, Any]) -> bool:
    optimizers = [config.get("optimizer"), (config.get("critic") or {}).get("optimizer")]
    if key == "steps" and any((of or {}).get("schedule", "constant") != "constant" for of in optimizers):
        return False  # a decaying learning rate reaches 0 at the last step: another end is another run
    return within(key, MAY_CHANGE)


def within(key: str, tables: Sequence[str]) -> bool:
    """Whether a key is one of these, or below one."""
    return any(key == table or key.startswith(f"{table}.") for table in tables)


def differences(before: Any, after: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(dotted key, before, after) for every leaf that differs."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in dict.fromkeys([*before, *after]):
            yield from differences(before.get(name), after.get(name), f"{key}.{name}" if key else name)
    elif before != after:
        yield key, before, after


def _placed(value: Any, base: str) -> Any:
    """A value with absolute paths of its Python files, so that one file named from two folders compares as equal."""
    if isinstance(value, dict):
        return {_placed(name, base): _placed(inner, base) for name, inner in value.items()}
    if isinstance(value, list):
        return [_placed(inner, base) for inner in value]
    if isinstance(value, str) and (value.endswith(".py") or ".py:" in value):
        return os.path.realpath(os.path.join(base, value))
    return value
