"""The tasks of an evaluation, and the origin of each one's settings."""

from __future__ import annotations

import tomllib

import pytest

from refusals import refused
from winnow.algos.loss import clip
from winnow.config import dump
from winnow.config_file import validate
from winnow.config_keys import format_toml
from winnow.errors import ConfigError
from winnow.evaluation.settings import (
    check_members_exist,
    evaluation_tasks,
    named_tasks,
    reward_label,
    uses_task_defaults,
)


def test_tasks_are_named_with_their_paths():
    assert named_tasks(["gsm8k, math500=data/math500.jsonl", "aime24"]) == [
        {"use": "gsm8k"},
        {"use": "math500", "path": "data/math500.jsonl"},
        {"use": "aime24"},
    ]
    assert named_tasks([]) == []


@pytest.mark.parametrize("text", ["gsm8k,", "=data", "gsm8k=", ""])
def test_a_task_needs_a_name_and_after_an_equals_sign_a_path(text):
    with refused(ConfigError, key="task", code="config.value"):
        named_tasks([text])


def test_a_plain_model_gets_the_prompt_and_reward_that_each_task_declares():
    gsm8k, aime = evaluation_tasks("owner/name", tasks=["gsm8k,aime24"], sets=["seed=3"])
    assert (gsm8k.name, reward_label(gsm8k.config), gsm8k.config.rollout.max_new_tokens) == (
        "gsm8k",
        "numeric + 0.1 format",
        512,
    )
    assert "<answer>" in gsm8k.config.prompt.system
    assert (aime.name, reward_label(aime.config), aime.config.rollout.max_new_tokens) == ("aime24", "boxed", 3072)
    assert r"\boxed" in aime.config.prompt.suffix
    assert {one.config.seed for one in (gsm8k, aime)} == {3}
    assert all(uses_task_defaults(one.config) for one in (gsm8k, aime))


def test_a_given_template_replaces_the_declared_prompt_but_a_limit_not():
    limited, worded, paid = (
        evaluation_tasks("owner/name", tasks=["math500"], sets=sets)[0].config
        for sets in (["prompt.max_prompt_tokens=99"], ["prompt.template=r1_zero"], ["reward=question_only"])
    )
    assert (limited.prompt.max_prompt_tokens, "step by step" in limited.prompt.system) == (99, True)
    assert (worded.prompt.template, worded.prompt.system, worded.prompt.suffix) == ("r1_zero", None, None)
    assert (worded.prompt.max_prompt_tokens, reward_label(worded)) == (1024, "boxed")
    assert (reward_label(paid), paid.prompt == limited.prompt.model_copy(update={"max_prompt_tokens": 1024})) == (
        "question_only",
        True,
    )
    assert not any(map(uses_task_defaults, (limited, worded, paid)))


def test_a_configuration_s_prompt_is_used_unless_task_defaults_are_set(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(
        'task = "gsm8k"\nreward = "r1_zero"\n[prompt]\ntemplate = "r1_zero"\n[rollout]\ntemperature = 0.5\n'
        'max_new_tokens = 9\n[evaluate]\ntasks = ["math500", {use = "gsm8k", path = "elsewhere"}]\n'
    )
    first, further, again = evaluation_tasks("owner/name", file)
    assert [one.name for one in (first, further, again)] == ["gsm8k", "math500", "gsm8k_2"]
    trained = evaluation_tasks("owner/name", file, keys={"evaluate": {"split": "train"}})
    assert [one.config.evaluate.split for one in trained] == ["train", "test", "test"]
    assert {one.config.prompt.template for one in (first, further)} == {"r1_zero"}
    assert again.config.task.options == {"path": "elsewhere"}
    assert all(one.config.evaluate.tasks == () for one in (first, further, again))
    (math,) = evaluation_tasks("owner/name", file, ["math500"], task_defaults=True)
    assert uses_task_defaults(math.config)
    assert (math.config.rollout.max_new_tokens, math.config.rollout.temperature) == (3072, 0.5)


def test_a_task_that_is_named_twice_is_refused():
    for tasks, sets in ((["gsm8k"], ["task.use=math500"]), (["gsm8k=x"], ["task.path=y"]), (["gsm8k"], ["task=math"])):
        with refused(ConfigError, key=sets[0].partition("=")[0], code="config.duplicate"):
            evaluation_tasks("owner/name", tasks=tasks, sets=sets)


def test_a_task_that_is_named_twice_gets_a_file_per_evaluation():
    assert [one.name for one in evaluation_tasks("owner/name", tasks=["aime24", "aime24"])] == ["aime24", "aime24_2"]


def test_a_function_from_python_is_not_confused_with_a_member(tmp_path):
    """The manifest contains only the function's name, marked so that it is not the name of a member."""

    def boxed(prompt, rollout):
        return 0.25

    saved = dump(validate({"reward": boxed}))
    assert saved["reward"]["use"].endswith("boxed (given from Python)")
    with refused(ConfigError, saved["reward"]["use"], key="reward") as caught:
        check_members_exist(validate(saved), tmp_path)
    assert caught.value.remedy
    assert dump(validate({"loss": clip}))["loss"]["use"] == "clip"


@pytest.mark.parametrize("reward", [{"use": "short_and_right"}, {"parts": [{"use": "r1_zero"}, {"use": "short"}]}])
def test_a_reward_or_task_that_does_not_exist_is_refused(tmp_path, reward):
    missing = reward.get("use", "short")
    with refused(ConfigError, missing, "file.py:function", key="reward", code="config.unknown_member"):
        check_members_exist(validate({"reward": reward}), tmp_path)
    with refused(ConfigError, "mine", "file.py:function", key="task", code="config.unknown_member"):
        check_members_exist(validate({"task": "mine"}), tmp_path)


def test_a_reward_in_an_existing_file_is_accepted(tmp_path):
    (tmp_path / "mine.py").write_text("def short(prompt, rollout):\n    return 1.0\n")
    check_members_exist(validate({"reward": {"parts": [{"use": "r1_zero"}, {"use": "mine.py:short"}]}}), tmp_path)


def test_the_resolved_configuration_is_toml_that_means_the_same():
    lora = {"rank": 4, "targets": ["q_proj"]}
    config = validate(
        {
            "model": {"path": 'a "quoted" \\ path ±', "lora": lora},
            "reward": {"parts": [{"use": "r1_zero"}, {"use": "format", "weight": 0.5}]},
            "task": {"use": "arithmetic", "levels": [2, 3], "points": {"1/2": 0.5, "a.b": {"größe 😀": 1}}},
            "select": ["all", {"use": "random", "keep_per_prompt": 0.5}],
            "evaluate": {"tasks": ["gsm8k", {"use": "math500", "path": "x"}]},
        }
    )
    assert validate(tomllib.loads(format_toml(config))) == config
