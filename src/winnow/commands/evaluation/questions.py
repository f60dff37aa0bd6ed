"""Which tasks a model is evaluated on, and how each is asked and paid: one configuration per task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from winnow.commands.run_settings import settings_from, source_of
from winnow.config import Config, EvaluateSection, Member
from winnow.config_file import merge, override
from winnow.errors import ConfigError
from winnow.families import FAMILIES
from winnow.metrics import distinct
from winnow.registry import members, resolve


@dataclass(frozen=True)
class Question:
    """A task for a model: every setting of its evaluation."""

    name: str  # of its file, and in tables
    config: Config
    base: Path  # that "file.py:function" names start from


def questions(
    model: str,
    config: Path | None = None,
    tasks: Sequence[str] = (),
    keys: Mapping[str, Any] = {},
    sets: Sequence[str] = (),
    *,
    trust_run: bool = False,
    task_defaults: bool = False,
    further: bool = True,
) -> list[Question]:
    """One per task: those named (see `named_tasks`), else the settings' own and, if `further`, its `evaluate.tasks`.

    Where the settings come from is said in `run_settings.settings_from`. Raises as that and `source_of` do, and
    ConfigError for a run's task, reward or engine that is a function which only Python knew.
    """
    named = named_tasks(tasks)
    _check_once(named, sets)
    said: dict[str, Any] = {}
    merge(said, keys)
    for assignment in sets:
        override(said, assignment)
    source = source_of(model, config, task_named=bool(named) or "task" in said, trust_run=trust_run)

    def asked(task: Mapping[str, Any] | None, further: Member | None = None) -> Config:
        changed = keys if task is None else {**keys, "task": task}
        return settings_from(
            source, model, changed, sets, trust_run=trust_run, task_defaults=task_defaults, further=further
        )

    found = [asked(task) for task in named or (None,)]
    if not named and further:
        own, of_run = found[0].task, found[0].evaluate.tasks
        found += [asked(None, task) for task in of_run if (task.use, task.options) != (own.use, own.options)]
    if source.manifest is not None:
        for one in found:
            check_found(one, source.base)
    names = distinct([one.task.label for one in found], taken=("metrics", "settings", "report"))
    bare = [_without_further(one) for one in found]
    return [Question(name, one, source.base) for name, one in zip(names, bare, strict=True)]


def named_tasks(texts: Sequence[str]) -> list[dict[str, Any]]:
    """Tasks as the command line names them: "gsm8k,math500=data/math500.jsonl" is two, the second with its path.

    Raises ConfigError for an empty name.
    """
    found = []
    for text in (part.strip() for several in texts for part in several.split(",")):
        name, equals, path = text.partition("=")
        if not name or (equals and not path):
            raise ConfigError(
                f"{text!r} does not name a task",
                remedy="write NAME or NAME=PATH, several with commas between them",
                key="task",
                code="config.value",
            )
        found.append({"use": name, **({"path": path} if equals else {})})
    return found


def _check_once(named: Sequence[Mapping[str, Any]], sets: Sequence[str]) -> None:
    """Raise ConfigError where a task that is named is named again, or its path, by an override."""
    given = {assignment.partition("=")[0].strip() for assignment in sets}
    twice = {"task", "task.use"} | ({"task.path"} if any("path" in task for task in named) else set())
    if named and given & twice:
        raise ConfigError(
            f"{min(given & twice)}: the tasks are named already",
            remedy="name them in one place",
            key=min(given & twice),
            code="config.duplicate",
        )


def check_found(config: Config, base: Path) -> None:
    """Are a run's task, reward and engine still to be found? Those given from Python left only a name.

    Raises ConfigError.
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
    """A name, or a sum: "r1_zero + 0.5 format"."""
    reward = config.reward
    if reward.use is not None:
        return Member(use=reward.use).label
    return " + ".join(f"{'' if part.weight == 1 else f'{part.weight:g} '}{part.label}" for part in reward.parts)


def asks_as_declared(config: Config) -> bool:
    """Whether prompt and reward are those that the task declares for its evaluation."""
    declared = _declared(config)
    return declared is not None and declared.prompt == config.prompt and declared.reward == config.reward


def declared_reward(config: Config) -> str | None:
    """What the task declares to be judged by; None for a task that declares nothing."""
    declared = _declared(config)
    return None if declared is None else reward_label(declared)


def _declared(config: Config) -> Config | None:
    known = members("task").get(config.task.label)
    sections = {} if known is None else known.traits.evaluation
    if not {"prompt", "reward"} <= sections.keys():
        return None
    return Config.model_validate({name: sections[name] for name in ("prompt", "reward")})


def _without_further(config: Config) -> Config:
    evaluate = config.evaluate.model_copy(update={"tasks": EvaluateSection.model_fields["tasks"].default})
    return config.model_copy(update={"evaluate": evaluate})
