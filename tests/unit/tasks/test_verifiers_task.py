"""A task set of the verifiers library as problems, on a stand-in for the library."""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import replace
from itertools import count

import pytest

import fake_verifiers as vf
from refusals import refused
from winnow.environments.verifiers import load
from winnow.errors import ConfigError, DataError
from winnow.tasks.problems import SPLITS
from winnow.tasks.verifiers import verifiers


class Echo(vf.Task):
    @vf.reward
    async def said(self, trace):
        return float(self.data.answer in trace.replies)


def tasks(number, kind=Echo, **data):
    return [kind(vf.Data(**{"prompt": f"Say {n}.", "answer": str(n), **data})) for n in range(number)]


@pytest.fixture
def install(monkeypatch):
    kept = load.__globals__["_loaded"]
    kept.cache_clear()

    def put(given, kind=vf.Env):
        environment = kind(given)
        vf.install(monkeypatch, environment)
        kept.cache_clear()
        return environment

    yield put
    kept.cache_clear()


def test_every_task_is_in_one_split_once(install):
    install([*tasks(100), *tasks(100)])
    split = {name: verifiers(name, taskset="fake", size=200) for name in SPLITS}
    ids = [problem.id for problems in split.values() for problem in problems]
    assert len(ids) == len(set(ids)) == 100
    assert 65 <= len(split["train"]) <= 92
    assert len(verifiers("train", taskset="fake", size=3)) == 3
    first = split["train"][0]
    assert first.question == f"Say {first.answer}."
    assert first.meta["environment"] == {"taskset": {"id": "fake"}}
    assert first.meta["data"] == {"prompt": first.question, "answer": first.answer, "idx": int(first.answer)}
    assert json.loads(json.dumps(first.meta)) == first.meta
    install(tasks(100)[::-1])  # the place of a task changes neither its id nor its split
    assert {one.id for one in verifiers("train", taskset="fake")} == {one.id for one in split["train"]}


def test_settings_are_those_of_the_task_set_and_of_the_environment(install):
    install(tasks(20))
    found = verifiers("train", taskset="fake", options={"level": 2}, environment={"agent": {"max_turns": 3}})
    assert found[0].meta["environment"] == {"agent": {"max_turns": 3}, "taskset": {"id": "fake", "level": 2}}


def test_a_task_set_without_an_end_gives_as_many_as_wanted(install):
    environment = install(tasks(1))
    environment.taskset.bounded = False
    environment.taskset.tasks = (Echo(vf.Data(prompt=f"Say {n}.", answer=str(n))) for n in count())
    assert len(verifiers("validation", taskset="fake", size=5)) == 5
    environment.taskset.tasks = (Echo(vf.Data(prompt="Say 1.", answer="1")) for _ in count())
    found = []
    for split in SPLITS:
        with contextlib.suppress(DataError):
            found += verifiers(split, taskset="fake", size=2)
    assert [one.answer for one in found] == ["1"]


def test_the_environment_writes_the_question_where_the_prompt_does_not(install):
    class Opens(vf.Env):
        async def run(self, task, agents):
            async with agents.agent.interaction(task) as conversation:
                await conversation.turn(f"Please say {task.data.answer}.")

    install(tasks(20, prompt=None), Opens)
    assert all(one.question == f"Please say {one.answer}." for one in verifiers("train", taskset="fake"))

    class Rewrites(vf.Env):
        async def run(self, task, agents):
            hidden = type(task)(replace(task.data, prompt=None, system_prompt="Be brief."))
            async with agents.agent.interaction(hidden) as conversation:
                await conversation.turn("What?")

    install(tasks(20), Rewrites)
    assert {one.question for one in verifiers("train", taskset="fake")} == {"Be brief.\n\nWhat?"}


def test_what_is_not_supported_is_refused_by_the_first_problem(install):
    class Two(vf.Env):
        agents = ("one", "two")

    class Again(vf.Env):
        async def run(self, task, agents):
            await agents.agent.run(task)
            await agents.agent.run(task)

    class Other(Echo):
        pass

    install(tasks(20), Two)
    with refused(ConfigError, "fake", 2, key="task.taskset", code="config.unsupported"):
        verifiers("train", taskset="fake")
    install(tasks(20), Again)
    with refused(ConfigError, "fake", key="task.taskset", code="config.unsupported"):
        verifiers("train", taskset="fake")
    install([*tasks(2), *tasks(1, Other)])  # a class that the task set does not declare
    with refused(ConfigError, "fake", key="task.taskset", code="config.unsupported"):
        verifiers("train", taskset="fake")


def test_an_environment_may_refuse_the_empty_reply_of_the_trial(install):
    class Strict(Echo):
        @vf.reward
        async def strict(self, trace):
            return 1 / len(trace.replies[0])

    install(tasks(20, Strict))
    assert verifiers("train", taskset="fake")


def test_what_the_task_set_raises_is_an_error_of_the_data(install):
    class Missing(vf.Env):
        async def run(self, task, agents):
            raise LookupError("words.zip")

    install(tasks(20), Missing)
    with refused(DataError, "fake", "LookupError", "words.zip", key="task.taskset", code="data.unreadable"):
        verifiers("train", taskset="fake")


@pytest.mark.parametrize(
    ("options", "key", "named"),
    [({"size": 0}, "task.size", 0), ({"taskset": "other"}, "task.taskset", "other")],
)
def test_wrong_options_are_refused(install, options, key, named):
    install(tasks(2))
    with refused(ConfigError, key=key, code="config.value"):
        verifiers("train", **{"taskset": "fake", **options})


def test_without_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "verifiers", None)
    with refused(DataError, "verifiers", key="task", code="data.not_installed"):
        verifiers("train", taskset="textarena")
