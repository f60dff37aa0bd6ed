"""What a run was made of: enough to tell why two runs of one configuration could differ, and what a resume changes."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from winnow.config import Config, dump
from winnow.errors import ConfigError, RunFolderError, did_you_mean

PACKAGES = ("winnow-rl", "torch", "transformers", "tokenizers", "peft", "numpy", "safetensors", "vllm")

# Keys of the configuration that a resume may change: where the run stands and what it may use, never what it computes.
MAY_CHANGE = (
    "steps",
    "output",
    "device",
    "threads",
    "checkpoint",
    "evaluate",
    "model.gradient_checkpointing",
    "rollout.max_ratio_outside",
    "rollout.max_rollouts_at_once",
    "rollout.engine.gpu_memory_utilization",
    "rollout.engine.key_value_gib",
    "rollout.engine.key_value_mb",
    "rollout.engine.start_seconds",
    "rollout.engine.timeout_seconds",
    "update.max_skipped",
    "update.tokens_per_micro_batch",
    "verify.workers",
)


@dataclass(frozen=True)
class Change:
    """A difference between a run's manifest and that of its resume."""

    step: int  # the first one that it holds for
    key: str
    was: Any
    now: Any
    notice: str  # in words


def describe_run(
    config: Config,
    *,
    base: Path,
    device: str,
    threads: int,
    inputs: Mapping[str, Mapping[str, str]],
    packages: Sequence[str] = (),
) -> dict[str, Any]:
    """The resolved configuration, the folder its files are relative to, digests of the files it reads by key, the
    versions of everything that computes, and the machine, as JSON. `packages` brought members of the run.
    """
    return {
        "config": dump(config),
        "base": str(base.resolve()),
        "inputs": dict(inputs),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in (*PACKAGES, *packages)}},
        "device": device,
        "threads": threads,
        "platform": platform.platform(),
    }


def compare(
    before: Mapping[str, Any], after: Mapping[str, Any], *, run: Path, step: int, allow: Sequence[str] = ()
) -> tuple[Change, ...]:
    """What a resume of `run` at `step` changes: in the configuration and in the files it names, `MAY_CHANGE` and the
    keys in `allow` (or below one of them); everything around them.

    Raises ConfigError for a key in `allow` that does not exist, and RunFolderError for fewer steps than are done and,
    by name, for every other change.
    """
    after = json.loads(json.dumps(after))  # tuples as the lists that were read
    _check_allowed(allow, [before, after])
    _check_steps(run, step, after["config"])
    bases = (str(before.get("base", "")), str(after.get("base", "")))
    config = [
        Change(step, *found, _sentence(*found))
        for found in _differences(before.get("config"), after["config"])
        if _placed(found[1], bases[0]) != _placed(found[2], bases[1])
    ]
    changes = [*config, *_edited(before.get("inputs", {}), after.get("inputs", {}), bases, step)]
    refused = [c for c in changes if not (_may_change(c.key, after["config"]) or _within(c.key, allow))]
    if refused:
        raise RunFolderError(
            f"cannot resume {run} with another configuration: {'; '.join(c.notice for c in refused)}; put back what it "
            f"was, start a new run in another output folder, or change it knowingly: "
            f"{', '.join(f'allow-change {key}' for key in dict.fromkeys(c.key for c in refused))}"
        )
    around = [
        Change(step, *found, f"{_sentence(*found)}; the last bits of the results may differ from an uninterrupted run")
        for found in _differences(_surroundings(before), _surroundings(after))
    ]
    return (*(c for c in changes if c.key != "output"), *around)


def same_evaluation(changes: Sequence[Change], allow: Sequence[str]) -> bool:
    """Whether an evaluation made before these changes, some of them allowed by name, is the one that is made now."""
    keys = [change.key for change in changes if change.key != "evaluate.every"]
    return not any(_within(key, ("evaluate", *allow)) for key in keys)


def recorded(changes: Sequence[Change]) -> list[dict[str, Any]]:
    """Changes as the manifest lists them."""
    return [{name: value for name, value in asdict(change).items() if name != "notice"} for change in changes]


def _check_allowed(allow: Sequence[str], manifests: Sequence[Mapping[str, Any]]) -> None:
    known = {key for manifest in manifests for key in (*_keys(manifest.get("config")), *manifest.get("inputs", {}))}
    for key in allow:
        if not any(_within(name, [key]) for name in known):
            raise ConfigError(f"allow-change {key}: there is no such key{did_you_mean(key, known)}")


def _check_steps(run: Path, done: int, config: Mapping[str, Any]) -> None:
    if config.get("steps", done) < done:
        raise RunFolderError(
            f"steps = {config['steps']}, but {run} has done {done} steps, and its newest weights are those after them: "
            f"resume it with steps = {done} or more, or start a new run in another output folder"
        )


def _edited(before: Mapping[str, Any], after: Mapping[str, Any], bases: tuple[str, str], step: int) -> Iterator[Change]:
    """Files of one key that are no longer what they were, where both runs know any."""
    for key in before:
        was, now = before[key], after.get(key, before[key])
        if _placed(was, bases[0]) == _placed(now, bases[1]):
            continue
        files = [name for name in dict.fromkeys([*was, *now]) if was.get(name) != now.get(name)]
        if files:
            how = {(True, True): "has changed", (True, False): "is gone", (False, True): "is new"}
            said = (f"{name} {how[name in was, name in now]}" for name in files)
            yield Change(step, key, was, now, f"{key}: {', '.join(said)} since the run read it")


def _sentence(key: str, was: Any, now: Any) -> str:
    return f"{key} was {was!r} and is now {now!r}"


def _surroundings(manifest: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in manifest.items() if key not in ("winnow_run", "config", "inputs", "changes")}


def _may_change(key: str, config: Mapping[str, Any]) -> bool:
    if key == "steps" and (config.get("optimizer") or {}).get("schedule", "constant") != "constant":
        return False  # a decaying learning rate reaches 0 at the last step: another end is another run
    return _within(key, MAY_CHANGE)


def _within(key: str, tables: Sequence[str]) -> bool:
    """Whether a key is one of these, or below one."""
    return any(key == table or key.startswith(f"{table}.") for table in tables)


def _differences(before: Any, after: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(dotted key, before, after) for every leaf that differs."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in dict.fromkeys([*before, *after]):
            yield from _differences(before.get(name), after.get(name), f"{key}.{name}" if key else name)
    elif before != after:
        yield key, before, after


def _placed(value: Any, base: str) -> Any:
    """A value with its files of code by their places, so that one that is named from another folder is the same."""
    if isinstance(value, dict):
        return {_placed(name, base): _placed(inner, base) for name, inner in value.items()}
    if isinstance(value, list):
        return [_placed(inner, base) for inner in value]
    if isinstance(value, str) and (value.endswith(".py") or ".py:" in value):
        return os.path.realpath(os.path.join(base, value))
    return value


def _keys(config: Any, key: str = "") -> Iterator[str]:
    """The dotted keys of a configuration's leaves."""
    if isinstance(config, dict):
        for name, value in config.items():
            yield from _keys(value, f"{key}.{name}" if key else name)
    else:
        yield key


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
