"""Reads the settings of a run from its folder, or from the folder of one of its checkpoints.

A manifest is untrusted data. Code that it names runs only with the user's consent.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from winnow.config import Config, is_bundled, leaves
from winnow.errors import ConfigError, DataError, RunFolderError
from winnow.models.folder import PUBLISHED, is_hub_id
from winnow.recipes import FOLDER as RECIPES
from winnow.state.disk import errors_as
from winnow.state.folder import FOLDER, is_checkpoint_path, paths
from winnow.state.foreign import open_log
from winnow.state.manifest import MANIFEST, parse, read
from winnow.state.resume import digests, within

TRUST = "confirm that the run is trusted (trust_run=True from Python, on the command line --trust-run)"


@dataclass(frozen=True)
class Manifest:
    """The settings of a run, and the path that they were read from."""

    path: Path
    config: dict[str, Any]  # as `winnow.config.dump` wrote it; not validated yet
    base: Path  # the folder that its "file.py:function" names are relative to
    inputs: dict[str, Any]  # digests of the files that the run read, by key of the configuration
    data: dict[str, Any] = field(default_factory=dict)  # the whole manifest, with versions and machine
    recipe: str | None = None  # the recipe that it is from; the base is then the folder of this package's recipes


def read_manifest(run: Path, *, own: bool = True) -> Manifest:
    """The manifest of a run folder.

    Raises RunFolderError if no manifest can be read, and with `own` also where it belongs to another user.
    """
    path = run / MANIFEST
    with errors_as(RunFolderError, f"cannot read {path}", "name the folder of a run", code="run_folder.unreadable"):
        owner, text = read(path)
    if own and owner != os.geteuid():
        raise RunFolderError(
            f"{path} belongs to another user (uid {owner}), and its settings would be followed in your name",
            remedy=f"read it first; then {TRUST}, make the file yours (chown), or give your configuration",
            code="run_folder.untrusted",
        )
    data = parse(text, path)
    if data is None or not isinstance(data.get("config"), dict):
        raise RunFolderError(
            f"{path} is not the manifest of a winnow run",
            remedy="give your configuration instead",
            code="run_folder.unreadable",
        )
    known = data["inputs"] if isinstance(data.get("inputs"), dict) else {}
    recipe = str(data["recipe"]) if data.get("recipe") else None
    base = Path(str(data.get("base", run))) if recipe is None else RECIPES
    return Manifest(path, data["config"], base, known, data, recipe)


def describe(run: Path) -> Manifest:
    """The manifest of a run folder of any user, to be read and not followed. That of another trainer's run has an empty
    configuration, and the name of its `program`. Raises RunFolderError if there is neither.
    """
    log = open_log(run)
    if log is None:
        return read_manifest(run, own=False)
    return Manifest(run, {}, run, {}, {"program": log.program, "config": {}})


def manifest_of(run: Path) -> Manifest:
    """The manifest of a run folder of any user; an empty one where none can be read."""
    try:
        return describe(run)
    except RunFolderError:
        return Manifest(run / MANIFEST, {}, run, {})


def run_of(model: str) -> Path | None:
    """The run folder that contains a checkpoint, by winnow's folder names; None for any other model."""
    path = Path(os.path.expanduser(model)).resolve()
    run = path.parent.parent
    return run if is_checkpoint_path(path) and (run / MANIFEST).is_file() else None


def checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run folder, oldest first."""
    return [path for path in paths(run) if path.is_dir()]


def check_is_model(model: str) -> None:
    """Raise DataError where the folder does not exist, and for a run folder or an adapter.

    The remedy names the model to use instead, if there is one.
    """
    path = Path(os.path.expanduser(model))
    on_hub = model.count("/") == 1 and model[0] not in "./~"
    if model == PUBLISHED:
        is_hub_id(model)  # raises the error about its folder
    elif not (path.is_dir() or on_hub or is_bundled(model)):
        named = "; a configuration is another argument (--config on the command line)" if path.suffix == ".toml" else ""
        raise DataError(
            f"{model} is a file, and a model is a folder" if path.is_file() else f"there is no folder {model}",
            remedy=f'give a model folder, "bundled", or a hub id "owner/name"{named}',
            code="data.missing",
        )
    if not path.is_dir() or (path / "config.json").is_file():
        return
    run = path.parent if path.name == FOLDER else path
    if (run / MANIFEST).is_file():
        saved = checkpoints(run)
        raise DataError(
            f"{model} is a run folder, not a model" + ("" if saved else ", and contains no checkpoint yet"),
            remedy=f"give its newest checkpoint, {saved[-1]}" if saved else "wait for its first checkpoint",
            code="data.malformed",
        )
    if (path / "adapter_config.json").is_file():
        around = path.resolve().parent
        merged = (around / "config.json").is_file()
        raise DataError(
            f"{model} is an adapter, not a model",
            remedy=f"give the model that it is merged into, {around}" if merged else "merge it into its base first",
            code="data.malformed",
        )


def check_same_problems(
    config: Config, manifest: Manifest, table: Literal["task", "evaluate.tasks"], *, unread: Collection[str] = ()
) -> None:
    """Raise DataError where the tasks of the table would read other files than the run did. The files that `unread`
    names do not count. Paths of tasks are relative to the working directory.
    """
    here = digests(config, manifest.base, below=table)
    for key, files in manifest.inputs.items():
        was, now = files, here.get(key, {})
        if unread:
            was, now = ({name: of[name] for name in of if name not in unread} for of in (was, now))
        if within(key, (table,)) and key != "task.use" and now != was:
            raise DataError(
                f"{key}: from here, {Path.cwd()}, {' and '.join(map(repr, was))} is not what the run of "
                f"{manifest.path} read",
                remedy="change to the folder where it was started, or name the task and its files (on the command line "
                f"--task NAME --set {key}=...)",
                key=key,
                code="data.changed",
            )


def check_trusted(config: Config, manifest: Manifest, given: Mapping[str, Any]) -> None:
    """Raise ConfigError where a manifest's configuration would run code that the user has not named in this call.

    `given` are the keys that the user set in this call, nested.
    """
    named = {(key.removesuffix(".use"), text) for key, text in _texts(given)}
    task = given.get("task", {})
    items_made = config.task.use == "reasoning_gym" or not isinstance(task, Mapping) or "use" in task
    code = ((key, text) for key, text in _texts(config.model_dump()) if _executes(key, text, items_made=items_made))
    untrusted = [(key, text) for key, text in code if (key.removesuffix(".use"), text) not in named]
    if not untrusted:
        return
    shown = "; ".join(
        f"{key.removesuffix('.use')} = {_with_real_path(key, text, manifest.base)!r}" for key, text in untrusted
    )
    raise ConfigError(
        f"{manifest.path} names code that would run here: {shown}",
        remedy=f"read it first; then {TRUST}, or give other values for these keys",
        key=untrusted[0][0].removesuffix(".use"),
        code="config.untrusted",
    )


def _executes(key: str, text: str, *, items_made: bool) -> bool:
    """Whether a text of the configuration makes the run execute code.

    A function of a file is imported. A reward without a sandbox runs what the model writes. Scorers of reasoning-gym
    execute fields of problems. These are trusted only from the task of the same name or from a task that the user set
    in this call (`items_made`).
    """
    unsafe = key.endswith(".sandbox") and text == "unsafe"
    scorer = key.startswith("reward.") and key.endswith(".use") and text == "reasoning_gym"
    imported = ".py:" in text and not key.startswith("prompt.")  # all of those are texts
    return imported or unsafe or (scorer and not items_made)


def _with_real_path(key: str, text: str, base: Path) -> str:
    """The text, with the real path of a file that it imports. A relative path starts from `base` under a key `use`, and
    from the working directory under other keys.
    """
    if ".py:" not in text:
        return text
    file, _, function = text.rpartition(":")
    return f"{os.path.realpath(base / file if key.endswith('use') else file)}:{function}"


def _texts(value: Any) -> list[tuple[str, str]]:
    """(dotted key, text) of every text in nested data. The key of a list's item contains its index."""
    return [(".".join(map(str, path)), leaf) for path, leaf in leaves(value) if isinstance(leaf, str)]
