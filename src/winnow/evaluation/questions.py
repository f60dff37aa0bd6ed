"""The tasks of an evaluation: one configuration per task, with its prompt and its reward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from winnow.config import Config, EvaluateSection, Member
from winnow.config_file import merge, override
from winnow.errors import ConfigError
from winnow.evaluation.settings import settings_from, source_of
from winnow.families import FAMILIES
from winnow.metrics import distinct
from winnow.registry import members, resolve


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
    """One per task of `tasks` (see `named_tasks`); without any, the task of the settings.

    In that case `further` adds the tasks of `evaluate.tasks`. `run_settings.settings_from` documents the origin of
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

    def settings_of(task: Mapping[str, Any] | None, further: Member | None = None) -> Config:
        changed = keys if task is None else {**keys, "task": task}
        return settings_from(
            source, model, changed, sets, trust_run=trust_run, task_defaults=task_defaults, further=further
        )

    configs = [settings_of(task) for task in named or (None,)]
    if not named and further:
        first, more = configs[0].task, configs[0].evaluate.tasks
        configs += [settings_of(None, task) for task in more if (task.use, task.options) != (first.use, first.options)]
    if source.manifest is not None:
        for one in configs:
            check_members_exist(one, source.base)
    # A task's name becomes a file's name, beside metrics.json, settings.json and report.txt
    names = distinct([one.task.label for one in configs], taken=("metrics", "settings", "report"))
    single = [_without_further(one) for one in configs]
    return [EvaluationTask(name, one, source.base) for name, one in zip(names, single, strict=True)]


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
    rewards = [part.use for part in config.reward.parts] if config.reward.use is None else [config.reward.use]
    named = [("task", config.task.use), ("engine", config.rollout.engine.use), *(("reward", use) for use in rewards)]
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
    """The name of the reward, or its sum of parts: "r1_zero + 0.5 format"."""
    reward = config.reward
    if reward.use is not None:
        return Member(use=reward.use).label
    return " + ".join(f"{'' if part.weight == 1 else f'{part.weight:g} '}{part.label}" for part in reward.parts)


def uses_task_defaults(config: Config) -> bool:
    """Return whether prompt and reward are those that the task declares for its evaluation."""
    declared = _declared(config)
    return declared is not None and declared.prompt == config.prompt and declared.reward == config.reward


def declared_reward(config: Config) -> str | None:
    """The reward that the task declares for its evaluation; None if it declares nothing."""
    declared = _declared(config)
    return None if declared is None else reward_label(declared)


def _declared(config: Config) -> Config | None:
    member = members("task").get(config.task.label)
    sections = {} if member is None else member.traits.evaluation
    if not {"prompt", "reward"} <= sections.keys():
        return None
    return Config.model_validate({name: sections[name] for name in ("prompt", "reward")})


def _without_further(config: Config) -> Config:
    evaluate = config.evaluate.model_copy(update={"tasks": EvaluateSection.model_fields["tasks"].default})
    return config.model_copy(update={"evaluate": evaluate})
