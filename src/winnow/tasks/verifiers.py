"""Task sets of the verifiers library (Prime Intellect), for the environment `verifiers`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from winnow.environments.verifiers import (
    REMEDY,
    Unsupported,
    load,
    opening,
    play,
    refuse,
    refuse_environment,
    task_of,
    text_of,
)
from winnow.errors import ConfigError, DataError, WinnowError
from winnow.records import Problem
from winnow.registry import register
from winnow.seeds import derive, generator
from winnow.tasks.problems import check_positive, check_split, listed, refused, split_of

TASKS_PER_PROBLEM = 40  # of a task set without an end: a small split gets a tenth, and tasks may repeat


@register("task")
def verifiers(
    split: str,
    *,
    taskset: str,
    size: int = 512,
    options: Mapping[str, Any] | None = None,
    environment: Mapping[str, Any] | None = None,
) -> list[Problem]:
    """At most `size` problems of a task set of the verifiers library (version 0.4), for the environment `verifiers`.

    `taskset` is the library's id of a task set: the name of an installed package. `options` are the fields of its
    configuration, and `environment` its environment's, such as {"agent": {"max_turns": 4}}. The question is the
    first message to the agent, after the system prompt. The answer is the task's field `answer`, None without one.

    A hash of a task's data determines its split (80% train, 10% validation, 10% test), and equal data occur once.
    `meta` contains the settings and the data. The first task is played for one empty reply.

    Raises DataError without the library. Raises ConfigError for an unknown task set or field, and for a task set that
    needs anything but texts: tools, a runtime or container, a judge model, images, several agents or conversations.
    """
    wanted = check_split(split)
    check_positive(size=size)
    settings = {**(environment or {}), "taskset": {**(options or {}), "id": taskset}}
    try:
        loaded = _load(settings, taskset)
        refuse_environment(loaded)
        problems = list(islice(_problems(loaded, settings, wanted, size * TASKS_PER_PROBLEM), size))
    except Unsupported as error:
        raise ConfigError(
            f"task.taskset: {taskset!r} of verifiers cannot be trained on, because {error}",
            remedy="choose a task set of texts with one agent",
            key="task.taskset",
            code="config.unsupported",
        ) from error
    except WinnowError:
        raise
    except Exception as error:  # of the task set's own code
        raise DataError(
            f"task.taskset: {taskset!r} of verifiers raised {type(error).__name__}: {error}",
            remedy="install what the task set needs, and download its data",
            key="task.taskset",
            code="data.unreadable",
        ) from error
    return listed(problems, split=split, source=taskset)


def _load(settings: Mapping[str, Any], taskset: str) -> Any:
    try:
        import verifiers.v1  # noqa: F401
    except ImportError as error:
        raise DataError(
            "the task verifiers needs another library", remedy=REMEDY, key="task", code="data.not_installed"
        ) from error
    try:
        return load(settings)
    except ModuleNotFoundError as error:
        raise refused("taskset", f"task.taskset: {error}", "install the task set") from error
    except ImportError as error:
        raise DataError(
            f"task.taskset: {taskset!r} could not be imported: {error}",
            remedy="install what it needs",
            key="task.taskset",
            code="data.not_installed",
        ) from error
    except (AttributeError, TypeError, ValueError) as error:  # pydantic's ValidationError is a ValueError
        raise refused("options", f"task.options: {taskset!r} refused its settings: {error}", "correct them") from error


def _problems(environment: Any, settings: Mapping[str, Any], split: str, most: int) -> Iterator[Problem]:
    """The problems of a split, of at most `most` tasks if the task set has no end."""
    taskset, known = environment.taskset, set[str]()
    prompts_are_questions: bool | None = None  # unknown before the first task was played
    for task in taskset if taskset.bounded else islice(taskset, most):
        refuse(task)
        data = task.data.model_dump(mode="json", exclude_defaults=True)
        if type(task) is not type(taskset).task_type() or task_of(environment, data).data != task.data:
            raise Unsupported("its tasks are not determined by data in JSON")
        text = json.dumps({key: value for key, value in data.items() if key != "idx"}, sort_keys=True)  # not its place
        name = f"verifiers-{derive(text):032x}"
        if prompts_are_questions is None:
            first = _first(environment, task, name, trial=True)
            prompts_are_questions = task.data.prompt is not None and first == text_of(opening(task.data))
        if name not in known and split_of(name) == split:
            question = text_of(opening(task.data)) if prompts_are_questions else _first(environment, task, name)
            meta = {"environment": dict(settings), "data": data}
            yield Problem(id=name, question=question, answer=data.get("answer"), task="verifiers", meta=meta)
        known.add(name)


def _first(environment: Any, task: Any, name: str, *, trial: bool = False) -> str:
    """The first message to the policy. In a trial, the task is played for one empty reply, so that Unsupported is
    raised here.
    """
    episode = play(environment, task, generator("environment", name))
    question = str(next(episode))
    try:
        if trial:
            episode.send("")
            episode.send(None)
    except Unsupported:
        raise
    except Exception:  # its end is a StopIteration, and an environment may raise for an empty reply
        return question
    finally:
        episode.close()
    return question
