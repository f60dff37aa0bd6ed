"""The settings of an evaluation: from a configuration, or from the run beside a model; one configuration per task."""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from winnow.config import Config, Member, SelectSection, as_table, leaves
from winnow.config_file import merge, override, read_toml, validate
from winnow.environments.judging import named_members
from winnow.errors import ConfigError, RunFolderError
from winnow.families import FAMILIES, TASK
from winnow.metrics import distinct
from winnow.registry import members, resolve
from winnow.state.saved_runs import Manifest, check_is_model, check_same_problems, check_trusted, read_manifest, run_of
from winnow.training.resolve import reward_spec
from winnow.view.text import sanitize

WORDING = ("template", "system", "suffix", "template_options")  # keys of `prompt` that belong together
EVERY = 10**9  # more problems than any task has
# Sections that a declared one replaces as a whole where a task's defaults are requested
REPLACED = {"prompt": ("prompt",), "reward": ("reward", "environment")}

# Defaults that replace the settings that only training reads.
_UNTRAINED = MappingProxyType(
    {
        **{
            key: getattr(Config(), key)
            for key in (
                *("sample", "allocate", "rounds", "cut", "probe", "plan", "advantage", "weighting", "loss"),
                *("correction", "critic", "optimizer"),
            )
        },
        "track": (),
        "select": (SelectSection(use="all"),),
        "terms": (),
    }
)


@dataclass(frozen=True)
class Source:
    """The settings of an evaluation, before the call changes them."""

    model: str
    name: str  # for messages
    data: Mapping[str, Any]  # nested, not validated yet
    text: str  # the file's text, for line numbers
    base: Path  # the folder to which "file.py:function" names are relative
    manifest: Manifest | None = None  # of the checkpoint's run
    trusted: bool = False  # whether the call trusts that run


def source_of(model: str, config: Path | None = None, *, task_named: bool, trust_run: bool = False) -> Source:
    """The given configuration; else that of the checkpoint's run; else an empty one.

    Raises DataError for a folder that is not a model, and ConfigError where neither the model nor the call names a
    task. Raises RunFolderError for a run that cannot be read, or belongs to another user (unless `trust_run`). If the
    call names the task, such a run only results in a printed note, and its settings are not used.
    """
    check_is_model(model)
    if config is not None:
        data, text = read_toml(config)
        return Source(model, str(config), data, text, config.parent)
    run = run_of(model)
    try:
        manifest = None if run is None else read_manifest(run, own=not trust_run)
    except RunFolderError as error:
        if not task_named:
            raise
        print(sanitize(f"note: the run's settings are not used: {error}"), file=sys.stderr)
        manifest = None
    if manifest is not None:
        return Source(model, str(manifest.path), manifest.config, "", manifest.base, manifest, trust_run)
    if not task_named and model != "bundled":
        here = os.path.isdir(os.path.expanduser(model))
        what = "not a checkpoint of a winnow run" if here else "not a folder on this machine (a hub id?)"
        raise ConfigError(
            f"{model} is {what}, so the task to evaluate it on is missing",
            remedy="name a task (on the command line --task), for example gsm8k, or give a configuration",
            key="task",
            code="config.missing_key",
        )
    return Source(model, "the configuration", {}, "", Path.cwd())


def settings_from(
    source: Source,
    keys: Mapping[str, Any] = MappingProxyType({}),
    sets: Sequence[str] = (),
    *,
    task_defaults: bool = False,
    further: Member | None = None,
    listed: bool = False,
) -> Config:
    """The settings to evaluate the model with: the source, changed by nested `keys`, then by `sets`. `further` replaces
    the task by one of the source's `evaluate.tasks`, with its test problems. `listed`: the task in `keys` has the
    options of such an entry.

    The evaluation is on every problem of the test split unless the call sets `evaluate.problems` or `evaluate.split`;
    those of the source do not apply. Prompt, limits and reward that neither source nor call set are those that the task
    declares for its evaluation; with `task_defaults` these also replace the source's.

    Raises ConfigError for a mistake in them, and where a run names code that this call does not (unless it is trusted).
    """

    def change(data: dict[str, Any]) -> dict[str, Any]:
        merge(data, {"model": {"path": source.model}})
        merge(data, keys)
        for assignment in sets:
            override(data, assignment)
        if further is not None:
            data["task"] = {"use": further.use, **further.options}
            merge(data, {"evaluate": {"split": "test"}})
        return data

    given, data = change({}), copy.deepcopy(dict(source.data))
    for judge, other in (("reward", "environment"), ("environment", "reward")):
        if given.get(judge) is not None and given.get(other) is None:  # the call's takes the place of the source's
            data.pop(other, None)
            if data.get(judge) is None:
                data.pop(judge, None)
    declared = _declared(change(copy.deepcopy(data)), source.base)
    _fill(data, given, declared, instead=task_defaults)
    merge(data, {"evaluate": {"problems": EVERY, "split": "test"}})
    change(data)
    settings = _evaluated(validate(data, source=source.name, text=source.text, sets=sets, given=keys))
    # Such a task has the run's options and not the call's, although `change` sets it.
    by_run = listed or further is not None
    named_here = {name: value for name, value in given.items() if not by_run or name != "task"}
    if source.manifest is not None and not source.trusted:
        check_trusted(settings, source.manifest, named_here)
    if source.manifest is not None and "task" not in given:
        check_same_problems(settings, source.manifest, "task")
    return settings


def _declared(data: Mapping[str, Any], base: Path) -> Mapping[str, Any]:
    """The settings that the task of nested settings declares for its evaluation.

    Empty for a function of a file, which is not imported here, and for an unknown task, which is refused later.
    """
    task = as_table("task", data.get("task"))
    use = task.get("use") if isinstance(task, Mapping) else Config().task.use
    if use is None or (isinstance(use, str) and ".py:" in use):
        return {}
    try:
        return resolve(TASK, use, base=base).traits.evaluation
    except ConfigError:
        return {}


def _fill(data: dict[str, Any], given: Mapping[str, Any], declared: Mapping[str, Any], *, instead: bool) -> None:
    """Add a task's declared settings to `data` where it lacks them: the reward, unless an environment judges; the
    wording of the prompt, unless source or call set a part of it; each limit. With `instead`, they first replace the
    prompt and the judge of `data`, and its keys of other sections.
    """
    for section, value in copy.deepcopy(dict(declared)).items():
        for replaced in REPLACED.get(section, ()) if instead else ():
            data.pop(replaced, None)
        if section == "reward":
            if data.get("environment") is None and given.get("environment") is None:
                data.setdefault("reward", value)
            continue
        existing, here = data.get(section, {}), given.get(section, {})
        if not (isinstance(existing, Mapping) and isinstance(here, Mapping)):
            continue  # `validate` refuses it by its key
        existing = {key: v for key, v in existing.items() if not (instead and key in value)}
        named = {*existing, *here}
        worded = section == "prompt" and not named.isdisjoint(WORDING)
        data[section] = {**{key: v for key, v in value.items() if not (worded and key in WORDING)}, **existing}


def settings_of(run: Path, changes: Mapping[str, Any], *, trust_run: bool = False) -> tuple[Config, Manifest]:
    """The configuration of a run with `changes`, and the manifest that it is from.

    Raises as `settings_from`, and RunFolderError for a run that cannot be read or belongs to another user.
    """
    given: dict[str, Any] = {}
    merge(given, changes)
    manifest = read_manifest(run, own=not trust_run)
    merge(manifest.config, {"output": str(run)})
    merge(manifest.config, changes)
    config = validate(manifest.config, source=str(manifest.path))
    if not trust_run:
        check_trusted(config, manifest, given)
    return config, manifest


def _evaluated(config: Config) -> Config:
    """The configuration without the settings that only training reads, so that no code for them is imported. Also
    without adapter and quantization, as a model folder contains the merged model.
    """
    model = config.model.model_copy(update={"lora": None, "quantization": None})
    rollout = config.rollout.model_copy(update={"ahead": 0})
    return config.model_copy(update={"model": model, "rollout": rollout, **_UNTRAINED})


@dataclass(frozen=True)
class EvaluationTask:
    """A task with every setting of its evaluation."""

    name: str  # of its file, and in tables
    config: Config
    base: Path  # the folder to which "file.py:function" names are relative


def evaluation_tasks(
    model: str,
    config: Path | None = None,
    tasks: Sequence[str] = (),
    keys: Mapping[str, Any] = {},
    sets: Sequence[str] = (),
    *,
    trust_run: bool = False,
    task_defaults: bool = False,
    further: bool = True,
) -> list[EvaluationTask]:
    """One per task of `tasks` (see `named_tasks`); without any, the task of the settings. A name without a path keeps
    the options, such as files, of the settings' task or entry of `evaluate.tasks` with this name.

    Without `tasks`, `further` adds the tasks of `evaluate.tasks`. `settings_from` documents the origin of
    the settings. Raises what it and `source_of` raise, and ConfigError if the task, reward or engine of a run was a
    function given from Python.
    """
    named = named_tasks(tasks)
    _check_named_once(named, sets)
    given: dict[str, Any] = {}
    merge(given, keys)
    for assignment in sets:
        override(given, assignment)
    source = source_of(model, config, task_named=bool(named) or "task" in given, trust_run=trust_run)

    def resolved(task: Mapping[str, Any] | None, further: Member | None = None) -> Config:
        changed, listed = (keys, False) if task is None else ({**keys, "task": task}, task not in named)
        return settings_from(source, changed, sets, task_defaults=task_defaults, further=further, listed=listed)

    chosen = [_with_options(task, source.data) for task in named]
    configs = [resolved(task) for task in chosen] or [resolved(None)]
    listed = [one.task for task, one in zip(chosen, configs, strict=False) if task is not None and task not in named]
    if (listed or (further and not named)) and source.manifest is not None and "tasks" not in given.get("evaluate", {}):
        unread = _texts(configs[0].evaluate.tasks) - _texts(listed) if named else set[str]()
        check_same_problems(configs[0], source.manifest, "evaluate.tasks", unread=unread)
    if not named and further:
        first, more = configs[0].task, configs[0].evaluate.tasks
        configs += [resolved(None, task) for task in more if (task.use, task.options) != (first.use, first.options)]
    if source.manifest is not None:
        for one in configs:
            check_members_exist(one, source.base)
    # A task's name becomes a file's name, beside metrics.json, settings.json and report.txt
    names = distinct([one.task.label for one in configs], taken=("metrics", "settings", "report"))
    single = (one.model_copy(update={"evaluate": one.evaluate.model_copy(update={"tasks": ()})}) for one in configs)
    return [EvaluationTask(name, one, source.base) for name, one in zip(names, single, strict=True)]


def _texts(tasks: Iterable[Member]) -> set[str]:
    """Every text in the options of tasks, among them the names of their files."""
    return {text for task in tasks for _, text in leaves(task.options) if isinstance(text, str)}


def _with_options(task: Mapping[str, Any], data: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """A named task with the options that nested settings give it; None if it is their own task.

    Code is named by the call alone, so a function of a file has the options of the call.
    """
    if task.keys() != {"use"} or ".py:" in task["use"]:
        return task
    own, evaluate = as_table("task", data.get("task")), data.get("evaluate")
    if isinstance(own, Mapping) and own.get("use") == task["use"]:
        return None
    further = evaluate.get("tasks") if isinstance(evaluate, Mapping) else None
    listed = further if isinstance(further, (list, tuple)) else ()
    same = [one for one in listed if isinstance(one, Mapping) and one.get("use") == task["use"]]
    return same[0] if len(same) == 1 else task


def named_tasks(texts: Sequence[str]) -> list[dict[str, Any]]:
    """Parse the tasks of a command line: "gsm8k,math500=data/math500.jsonl" is two tasks, the second with a path.

    Raises ConfigError for an empty name.
    """
    named = []
    for text in (part.strip() for several in texts for part in several.split(",")):
        name, equals, path = text.partition("=")
        if not name or (equals and not path):
            raise ConfigError(
                f"{text!r} does not name a task",
                remedy="write NAME or NAME=PATH, several with commas between them",
                key="task",
                code="config.value",
            )
        named.append({"use": name, **({"path": path} if equals else {})})
    return named


def _check_named_once(named: Sequence[Mapping[str, Any]], sets: Sequence[str]) -> None:
    """Raise ConfigError if an override sets the task, or its path, in addition to `named`."""
    given = {assignment.partition("=")[0].strip() for assignment in sets}
    twice = {"task", "task.use"} | ({"task.path"} if any("path" in task for task in named) else set())
    if named and given & twice:
        raise ConfigError(
            f"{min(given & twice)}: the tasks are named already",
            remedy="name them in one place",
            key=min(given & twice),
            code="config.duplicate",
        )


def check_members_exist(config: Config, base: Path) -> None:
    """Raise ConfigError if the task, reward or engine of a run does not exist.

    The manifest contains only the name of a function that was given from Python.
    """
    judges = named_members(reward_spec(config))
    named = [("task", config.task.use), ("engine", config.rollout.engine.use), *judges]
    for family, use in named:
        if (family, use) == ("engine", "auto"):
            continue
        try:
            resolve(family, use, base=base)
        except ConfigError as error:
            key = FAMILIES[family].key
            raise ConfigError(
                f"{key}: {error}. If that of the run was a function given from Python, only its name was saved",
                remedy=f'name it again, {key} = "file.py:function", or give a configuration',
                key=key,
                code=error.code,
            ) from error


def reward_label(config: Config) -> str:
    """The name of the reward or environment, or the reward's sum of parts: "r1_zero + 0.5 format"."""
    reward = config.reward
    if reward is None:
        assert config.environment is not None, "a configuration without a reward has an environment"
        return config.environment.label
    if reward.use is not None:
        return Member(use=reward.use).label
    return " + ".join(f"{'' if part.weight == 1 else f'{part.weight:g} '}{part.label}" for part in reward.parts)


def uses_task_defaults(config: Config) -> bool:
    """Return whether prompt and reward are those that the task declares for its evaluation."""
    declared = _declared_by_traits(config)
    return declared is not None and declared.prompt == config.prompt and declared.reward == config.reward


def declared_reward(config: Config) -> str | None:
    """The reward that the task declares for its evaluation; None if it declares nothing."""
    declared = _declared_by_traits(config)
    return None if declared is None else reward_label(declared)


def _declared_by_traits(config: Config) -> Config | None:
    member = members("task").get(config.task.label)
    sections = {} if member is None else member.traits.evaluation
    if not {"prompt", "reward"} <= sections.keys():
        return None
    return Config.model_validate({name: sections[name] for name in ("prompt", "reward")})
