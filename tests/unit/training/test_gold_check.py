from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from refusals import refused
from winnow.commands import app
from winnow.config_file import load, override, validate
from winnow.core.members import Members
from winnow.errors import DataError
from winnow.evaluation.run import prepare
from winnow.evaluation.settings import EvaluationTask
from winnow.installed import is_installed
from winnow.other_names import as_toml
from winnow.recipes import recipe_paths
from winnow.records import Problem
from winnow.registry import register
from winnow.training.gold_check import SAMPLE, SECONDS, audit_command, check_golds, sample_of
from winnow.training.prompts import run_prompts
from winnow.training.resolve import resolve_members
from winnow.verify.verifiers import Verifiers

RAW = [f"It is {i}*7=<<{i}*7={7 * i}>>{7 * i}.\n#### {7 * i}" for i in range(20)]


def write(folder: Path, *golds: Any) -> str:
    rows = [{"question": f"{i} * 7?", "answer": gold} for i, gold in enumerate(golds)]
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(folder / "rows.jsonl")


def members(path: str, reward: Any = "boxed", **task: Any) -> Members:
    config = validate({"task": {"use": "jsonl", "train": path, **task}, "reward": reward})
    return resolve_members(config, Path.cwd())


def checked(of: Members, *, now: Any = lambda: 0.0, problems: list[Problem] | None = None) -> tuple[str, ...]:
    settings = {"timeout_seconds": 5.0, "memory_mb": 2048, "max_failure_share": 1.0}
    with Verifiers(of.reward, workers=0, base=of.base, **settings) as verifiers:
        return check_golds(of, problems or of.task("train"), verifiers, now)


def test_the_sample_is_drawn_by_the_seed() -> None:
    problems = [Problem(id=str(i), question="?", answer="1", task="t") for i in range(1000)]
    drawn = sample_of(problems, 0)
    assert len({one.id for one in drawn}) == len(drawn) == SAMPLE
    assert [int(one.id) for one in drawn] == sorted(int(one.id) for one in drawn)
    assert drawn == sample_of(problems, 0) != sample_of(problems, 1)
    assert sample_of(problems[:3], 0) == tuple(problems[:3])


def test_raw_gsm8k_golds_are_an_error_with_rows_and_remedy(tmp_path: Path) -> None:
    path = write(tmp_path, *RAW)
    with refused(DataError, f"{path}:1", f"{path}:3", "'boxed'", "20", key="reward", code="data.malformed") as caught:
        checked(members(path))
    assert caught.value.remedy.startswith("set task.extract=hashes")


@pytest.mark.parametrize("reward", ["boxed", "r1_zero", "tagged", "numeric", "question_only"])
def test_following_the_first_remedy_leads_to_a_clean_check(tmp_path: Path, reward: str) -> None:
    path = write(tmp_path, *RAW)
    with pytest.raises(DataError) as caught:
        checked(members(path, reward))
    (option,) = re.findall(r"set task\.(\w+=\w+)", caught.value.remedy)
    assert checked(members(path, reward, **dict([option.split("=")]))) == ()
    assert checked(members(path, "gsm8k")) == ()


def test_an_object_as_the_gold_is_an_error_and_its_remedy_is_followed(tmp_path: Path) -> None:
    path = write(tmp_path, *({"style": "rule", "ground_truth": str(i)} for i in range(5)))
    with pytest.raises(DataError) as caught:
        checked(members(path))
    (key,) = re.findall(r"task\.answer=([\w.]+)", caught.value.remedy)
    assert key == "answer.ground_truth"
    assert checked(members(path, answer=key)) == ()


@pytest.mark.parametrize("reward", ["equal", "contained"])  # the second raises TypeError for a number
def test_numbers_for_a_reward_of_texts_are_an_error_and_its_remedy_is_followed(tmp_path: Path, reward: str) -> None:
    compare = {"equal": lambda text, gold: text == gold, "contained": lambda text, gold: gold in text}[reward]
    own = register("reward", f"gold_check_number_{reward}", example=str)(
        lambda prompt, rollout: float(compare(rollout.text, prompt.answer))
    )
    path = write(tmp_path, 4, 15, 26)
    with refused(DataError, f"{path}:1", "int", key="reward", code="data.malformed") as caught:
        checked(members(path, {"use": own}))
    (written,) = re.findall(r"the field 'answer' as text \((.*?)\)", caught.value.remedy)
    assert written == '"4"'
    assert checked(members(write(tmp_path, "4", "15", "26"), {"use": own})) == ()


def test_some_refused_golds_are_a_warning_that_names_rows(tmp_path: Path) -> None:
    path = write(tmp_path, "1", "forty-two", "3", ["x", "4"], "y")
    (warning,) = checked(members(path, "numeric"))
    assert f"{path}:2" in warning
    assert f"{path}:5" in warning
    assert f"{path}:4" not in warning  # one of its golds is accepted
    assert "2 of 5" in warning
    assert "winnow audit jsonl" in warning


def test_the_command_of_a_message_tries_every_gold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "import winnow\n\n\n@winnow.register('reward', 'gold_check_mine', example=lambda gold: f'={gold}')\n"
        "def mine(prompt, rollout, *, mark: str = '='):\n"
        "    return float(rollout.text == mark + prompt.answer != '=3')\n"
    )
    path = write(tmp_path, *map(str, range(1, 9)))
    of = members(path, {"use": "mine.py:mine", "mark": "="}, meta=["a b", "c"], answer="answer")
    (warning,) = checked(of)
    (command,) = re.findall("`(.*)`", warning)
    assert audit_command(of) == f"`{command}`"
    done = CliRunner().invoke(app, shlex.split(command)[1:])
    assert done.exit_code == 1, done.output
    assert [line for line in done.stdout.splitlines() if f"{path}:3" in line]


def test_a_function_has_no_command(tmp_path: Path) -> None:
    @register("reward", "gold_check_function", example=str)
    def own(prompt: Any, rollout: Any) -> float:
        return float(rollout.text == "1")

    path = write(tmp_path, "1", "2")
    (warning,) = checked(members(path, {"use": own}))
    assert "winnow audit" not in warning


def test_a_sum_of_rewards_is_tried_by_the_part_that_decides(tmp_path: Path) -> None:
    path = write(tmp_path, *RAW)
    parts = [{"use": "boxed"}, {"use": "format", "weight": 0.1}]
    with refused(DataError, "'boxed'", key="reward", code="data.malformed"):
        checked(members(path, {"parts": parts}))
    assert checked(members(path, {"parts": [{"use": "gsm8k"}, *parts[1:]]})) == ()
    assert checked(members(path, {"parts": parts, "shaping": "if_wrong"}, extract="hashes")) == ()


def zero(prompt: Any, rollout: Any) -> float:
    return 0.0


def raising(prompt: Any, rollout: Any) -> float:
    raise ValueError("no verdict")


UNTRIED = {
    "no example": (zero, {}),
    "an example for other golds": (zero, {"example": lambda gold: gold["x"]}),
    "an example that is no text": (zero, {"example": lambda gold: 3}),
    "no verdict": (raising, {"example": str}),
}


@pytest.mark.parametrize("name", UNTRIED)
def test_nothing_follows_from_a_reward_that_cannot_be_tried(tmp_path: Path, name: str) -> None:
    function, traits = UNTRIED[name]
    own = register("reward", f"gold_check_{name.replace(' ', '_')}", **traits)(
        lambda prompt, rollout: function(prompt, rollout)
    )
    assert checked(members(write(tmp_path, "1", "2"), {"use": own})) == ()


def test_the_example_of_a_users_reward_is_for_its_default_options(tmp_path: Path) -> None:
    """With another option, its format may be another, so that it is no error if every gold is refused."""

    @register("reward", "gold_check_options", example=lambda gold: f"={gold}")
    def own(prompt: Any, rollout: Any, *, mark: str = "=") -> float:
        return float(rollout.text == f"{mark}{prompt.answer}" and prompt.answer != "bad")

    good, bad = write(tmp_path, "1", "2"), str(tmp_path / "bad.jsonl")
    Path(bad).write_text('{"question": "?", "answer": "bad"}\n')
    assert checked(members(good, {"use": own})) == ()
    assert len(checked(members(good, {"use": own, "mark": ":"}))) == 1
    with refused(DataError, "1", key="reward", code="data.malformed"):
        checked(members(bad, {"use": own}))


def test_a_gold_that_the_reward_cannot_read_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path, {"tests": [{"stdin": "1", "stdout": "1"}]}, {"tests": ["assert f(1) == 1"]})
    with refused(DataError, f"{path}:2", "'code_tests'", "test 1", key="task", code="data.malformed"):
        checked(members(path, "code_tests"))


def test_a_gold_of_an_evaluation_that_the_reward_cannot_read_is_an_error(tmp_path: Path) -> None:
    held_out = tmp_path / "held_out.jsonl"
    held_out.write_text('{"question": "?", "answer": {"tests": ["assert f(1) == 1"]}}\n')
    train = write(tmp_path, {"tests": [{"stdin": "1", "stdout": "1"}]})
    of = members(train, "code_tests", validation=str(held_out))
    for read in (run_prompts, lambda of: prepare([EvaluationTask("jsonl", of.config, Path.cwd())])):
        with refused(DataError, f"{held_out}:1", "'code_tests'", "test 1", key="task", code="data.malformed"):
            read(of)


def test_programs_as_plain_text_are_not_tried(tmp_path: Path) -> None:
    """The example of `code_tests` is a program in a fence."""
    of = resolve_members(validate({"task": {"use": "programs", "size": 1}, "reward": "code_tests"}), Path.cwd())
    assert checked(of) == ()
    text = {"use": "code_tests", "program": "text"}
    of = resolve_members(validate({"task": {"use": "programs", "size": 4}, "reward": text}), Path.cwd())
    assert checked(of) == ()


def test_a_pattern_of_ones_own_is_not_tried(tmp_path: Path) -> None:
    assert checked(members(write(tmp_path, "1", "2"), {"use": "pattern", "pattern": "^x$"})) == ()


def test_tests_and_environments_are_not_tried(tmp_path: Path) -> None:
    path = write(tmp_path, {"tests": [{"stdin": "1\n", "stdout": "2\n"}]})
    assert checked(members(path, "code_tests")) == ()
    game = resolve_members(validate({"task": "guess_number", "environment": "guess_number"}), Path.cwd())
    assert checked(game) == ()


def test_a_slow_reward_is_tried_on_few_golds(tmp_path: Path) -> None:
    """The clock advances by a second at each look: a few golds are tried after the first, and not all of the sample."""
    judged = []

    def slow(prompt: Any, rollout: Any) -> float:
        judged.append(rollout.text)
        return 1.0

    register("reward", "gold_check_slow", example=str)(slow)
    path = write(tmp_path, *map(str, range(SAMPLE)))
    seconds = iter(range(10_000))
    assert checked(members(path, {"use": slow}), now=lambda: SECONDS * next(seconds)) == ()
    assert 0 < len(judged) < SAMPLE / 2


@pytest.mark.parametrize("recipe", sorted(recipe_paths()))
def test_no_recipe_is_refused(recipe: str, test_data: Path) -> None:
    if recipe == "smollm2_instructions" and not is_installed("if_verifiable"):
        pytest.skip("needs the extra winnow-rl[instructions]")
    file = recipe_paths()[recipe]
    sets = {"gsm8k": [f"task.path={test_data}"], "arithmetic": [f"task.size={SAMPLE}"]}
    of = resolve_members(load(file, sets.get(str(load(file).task.use), [])), file.parent)
    problems = list(sample_of(of.task("train"), of.config.seed))
    assert checked(of, problems=problems) == ()


def test_the_command_of_a_message_holds_no_secret(tmp_path: Path) -> None:
    @register("reward", "gold_check_secret", example=str)
    def own(prompt: Any, rollout: Any, *, api_key: str = "") -> float:
        return float(rollout.text == prompt.answer != "2")

    (warning,) = checked(members(write(tmp_path, "1", "2"), {"use": "gold_check_secret", "api_key": "sk-7"}))
    assert "sk-7" not in warning
    assert "reward.api_key=" in warning


@pytest.mark.parametrize("value", [{"mode": "easy", "a b": ["x", "😀"]}, "an 😀", ["a", "b c"], "plain", 3])
def test_an_option_is_written_as_set_reads_it(value: Any) -> None:
    data: dict[str, Any] = {}
    override(data, f"task.x={as_toml(value)}")
    assert data["task"]["x"] == value
