"""Task sets of the library as problems and environments, and three steps of training on each kind."""

from __future__ import annotations

import contextlib
import dataclasses

import numpy as np
import pytest

import winnow
from refusals import refused
from winnow.environments.contract import check_environment
from winnow.environments.replay import make_environment
from winnow.errors import ConfigError, DataError
from winnow.records import Outcome, Prompt, Reply, Rollout
from winnow.registry import resolve
from winnow.state.logbook import read_metrics
from winnow.tasks.problems import SPLITS
from winnow.tasks.verifiers import verifiers

pytestmark = pytest.mark.filterwarnings("ignore")  # of the library and of what it imports

NUMBERS = [str(number) for number in range(1, 60)]
OPTIONS = {"numbers": NUMBERS}


def prompt_of(problem):
    return Prompt(
        id=problem.id, tokens=np.zeros(1, np.int64), text=problem.question, answer=problem.answer,
        task=problem.task, meta=problem.meta,
    )  # fmt: skip


def rollout(*turns, finish="stop"):
    none = np.zeros(0)
    return Rollout(index=0, tokens=none.astype(int), logprobs=none, text="", finish=finish, version=0, turns=turns)


def test_a_single_turn_is_scored_by_the_task_sets_reward():
    problems = [one for split in SPLITS for one in verifiers(split, taskset="repeat_number", options=OPTIONS)]
    assert sorted(problem.answer for problem in problems) == sorted(NUMBERS)
    answer = make_environment("verifiers", {}, max_turns=4)
    for problem in problems[:5]:
        assert problem.question.startswith("Be brief.")
        assert problem.question.endswith(problem.answer)
        right = answer(prompt_of(problem), rollout(f"It is {problem.answer}!"))
        assert right == Outcome(reward=1.0, correct=True, kind="correct", parts={"repeated": 1.0})
        wrong = answer(prompt_of(problem), rollout("nothing"))
        assert wrong == Outcome(reward=0.0, correct=False, kind="wrong", parts={"repeated": 0.0})


def test_a_scripted_user_opens_the_conversation_and_goes_on():
    problem = conversation(["17", "28"])
    assert problem.question.endswith("\n\n17")
    answer = make_environment("verifiers", {}, max_turns=4)
    assert answer(prompt_of(problem), rollout("17")) == Reply(text="28")
    assert answer(prompt_of(problem), rollout("17", "28", "28")).parts == {"repeated": 1.0}
    assert answer(prompt_of(problem), rollout("17", "28", "39")).parts == {"repeated": 0.5}
    assert answer(prompt_of(problem), rollout("17", finish="length")).parts == {"repeated": 0.0}


def conversation(numbers):
    found = []
    for split in SPLITS:
        with contextlib.suppress(DataError):  # the task set has one task, so two splits are empty
            found += verifiers(split, taskset="count_along", options={"numbers": numbers})
    return found[0]


def test_several_agents_are_refused_before_a_model_is_loaded():
    with refused(ConfigError, "two_agents", key="task.taskset", code="config.unsupported"):
        verifiers("train", taskset="two_agents")


CALLS = [
    '<tool_call>{"name": "doubling_add", "arguments": {"number": 20}}</tool_call>',
    '<tool_call>{"name": "doubling_add", "arguments": {"number": 11, "times": 2}}</tool_call>'
    '<tool_call>{"name": "doubling_double", "arguments": {"number": 21}}</tool_call>',
    "Done.",
]


@pytest.mark.parametrize("episode", [None, 0], ids=["replayed", "kept"])
def test_the_tools_of_a_task_are_answered_with_the_state_of_the_rollout(episode):
    problem = verifiers("train", taskset="with_a_tool")[0]
    answer, start = make_environment("verifiers", {}, max_turns=4), problem.question.split()[-1].rstrip(".")
    turns = [CALLS[0]]
    first = answer(prompt_of(problem), rollout(*turns), episode)
    assert [(each.text, each.name) for each in first.answers] == [(f"{start} 20", "doubling_add")]
    turns += [first.text, CALLS[1]]
    second = answer(prompt_of(problem), rollout(*turns), episode)
    assert [each.text for each in second.answers] == [f"{start} 42", "42"]
    turns += [second.text, CALLS[2]]
    outcome = answer(prompt_of(problem), rollout(*turns), episode)
    assert (outcome.reward, outcome.correct) == (1.0, True)
    assert outcome.parts == {"counted": 1.0, "metric_answers": 3.0}


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ('{"name": "doubling_add", "arguments": {"number": -1}}', "only positive numbers"),
        ('{"name": "doubling_add", "arguments": {"number": "many"}}', "number"),
        ('{"name": "doubling_add", "arguments": {}}', "number"),
        ('{"name": "add", "arguments": {"number": 1}}', "unknown tool 'add'"),
        ('{"name": "doubling_add"', "not JSON"),
    ],
)
def test_a_call_of_a_tool_that_fails_is_answered_with_an_error(call, says):
    problem = verifiers("train", taskset="with_a_tool")[0]
    reply = make_environment("verifiers", {}, max_turns=4)(
        prompt_of(problem), rollout(f"<tool_call>{call}</tool_call>")
    )
    assert reply.answers[0].text.startswith("error: ")
    assert says in reply.answers[0].text


def test_the_chat_template_gets_the_schemas_of_the_tools():
    schemas = resolve("environment", "verifiers").traits.schemas
    functions = {
        one["function"]["name"]: one["function"] for one in schemas(verifiers("train", taskset="with_a_tool")[0].meta)
    }
    assert sorted(functions) == ["doubling_add", "doubling_double"]
    assert functions["doubling_add"]["parameters"]["required"] == ["number"]
    assert functions["doubling_add"]["parameters"]["properties"]["times"]["type"] == "integer"
    assert functions["doubling_double"]["description"] == "Twice the number."
    assert schemas(verifiers("train", taskset="repeat_number", options=OPTIONS)[0].meta) == []


def test_unknown_task_sets_and_fields_are_refused():
    with refused(ConfigError, "no_such_taskset", key="task.taskset", code="config.value"):
        verifiers("train", taskset="no_such_taskset")
    with refused(ConfigError, "colour", key="task.options", code="config.value"):
        verifiers("train", taskset="repeat_number", options={"colour": "red"})


def test_the_contract_of_environments_holds_on_a_task_of_the_library():
    problem = verifiers("train", taskset="repeat_number", options=OPTIONS)[0]
    entry = resolve("environment", "verifiers")
    traits = dataclasses.replace(entry.traits, example=lambda gold: [str(gold)])
    check_environment(dataclasses.replace(entry, traits=traits), gold=problem.answer, meta=problem.meta)


def settings(folder, **task):
    return {
        "task": {"use": "verifiers", **task},
        "environment": {"use": "verifiers", "max_turn_tokens": 24},
        "rollout": {"prompts_per_step": 4, "rollouts_per_prompt": 8, "max_new_tokens": 200},
        "prompt": {"max_prompt_tokens": 400},
        "evaluate": {"problems": 4},
        "verify": {"workers": 2, "timeout_seconds": 60},
        "steps": 3,
        "seed": 1,
        "output": str(folder),
        "progress": False,
    }


def test_a_run_logs_the_metrics_of_a_task_set_with_tools(tmp_path):
    winnow.train(**settings(tmp_path / "run", taskset="with_a_tool", options={}) | {"steps": 1})
    (row,) = [row for row in read_metrics(tmp_path / "run") if "reward/mean" in row]
    assert row["outcome/failed"] == 0
    assert row["reward/part/counted"] == row["reward/part/metric_answers"] == 0, "the bundled policy calls no tool"


def test_three_steps_of_training_on_a_single_turn(tmp_path):
    winnow.train(**settings(tmp_path / "run", taskset="repeat_number", options=OPTIONS))
    rows = [row for row in read_metrics(tmp_path / "run") if "reward/mean" in row]
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert all(row["budget/rollouts"] == 32 and row["outcome/failed"] == 0 for row in rows)
    assert all(0 < row["reward/part/repeated"] == row["reward/mean"] < 1 for row in rows)
    assert all(row["policy/grad_norm"] > 0 and row["environment/turns_mean"] == 1 for row in rows)
