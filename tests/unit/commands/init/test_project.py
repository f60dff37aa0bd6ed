"""`winnow init`: the files that it writes train, and say what the recipe says."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from refusals import check_refusal, refusal_of, refused
from winnow.commands import app
from winnow.commands.init import write_project
from winnow.config_file import load
from winnow.config_keys import keys
from winnow.errors import ConfigError, DataError
from winnow.installed import is_installed
from winnow.recipes import recipe_paths
from winnow.registry import resolve
from winnow.state.logbook import read_metrics
from winnow.testing import check_member
from winnow.training.resolve import resolve_file
from winnow_lab.audit import audit_configured
from winnow_lab.scoring import build_config

SMALL = (
    "steps=1", "threads=1", "device=cpu", "rollout.prompts_per_step=4", "rollout.rollouts_per_prompt=4",
    "select.keep_per_prompt=2", "task.size=64", "evaluate.problems=4", "evaluate.rollouts_per_prompt=2",
    "verify.workers=0",
)  # fmt: skip


WITH_REWARD = [
    name
    for name, path in recipe_paths().items()
    if "environment" not in tomllib.loads(path.read_text(encoding="utf-8"))
]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty working directory. Folders whose rewards are imported have different names."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def comments(text):
    return " ".join(re.sub(r"(?m)^# ?", "", line) for line in text.splitlines() if line.startswith("#"))


@pytest.mark.parametrize("recipe", WITH_REWARD)
def test_the_configuration_is_the_recipes_with_a_reward_and_an_output_of_its_own(recipe, here):
    project = write_project(Path(f"a_{recipe}"), recipe)
    written = tomllib.loads(project.read_text(encoding="utf-8"))
    of_recipe = tomllib.loads(recipe_paths()[recipe].read_text(encoding="utf-8"))
    tags = of_recipe["reward"]["use"] == "r1_zero"  # its prompt requests what the written reward reads
    assert written.pop("reward") == ({"use": "reward.py:reward"} if tags else of_recipe["reward"])
    assert written.pop("output") == f"runs/a_{recipe}"
    assert written == {key: value for key, value in of_recipe.items() if key not in ("reward", "output")}
    if recipe == "smollm2_instructions" and not is_installed("if_verifiable"):
        pytest.skip("its reward needs the extra winnow-rl[instructions]")
    (reward,) = resolve_file(project).rewards
    assert (reward.entry.origin == str(here / project.with_name("reward.py"))) == tags


@pytest.mark.parametrize("recipe", WITH_REWARD)
def test_every_key_has_its_meaning_above_it_and_comments_of_the_recipe_stay(recipe):
    text = write_project(Path("mine"), recipe).read_text(encoding="utf-8")
    lines = text.splitlines()
    assert all(lines[number - 1].startswith("# ") for number, line in enumerate(lines) if re.match(r"\w+ = ", line))
    meanings = {key.name: key.meaning for key in keys()}
    assert all(meanings[name] in comments(text) for name in ("steps", "rollout.prompts_per_step", "evaluate.split"))
    assert all(len(line) <= 120 for line in lines)
    for line in recipe_paths()[recipe].read_text(encoding="utf-8").splitlines():
        of_line = line.partition("# ")[2]
        assert of_line in text or f"winnow train {recipe}" in line or f"winnow check {recipe}" in line
    assert f" {recipe} --set" not in text  # its commands name this configuration


def test_options_are_attributed_to_their_member():
    text = write_project(Path("mine"), "gvm_grpo").read_text(encoding="utf-8")
    (above,) = re.findall(r"# (.*)\nalpha = 1e-3\n", text)
    assert "gvm" in above
    assert "winnow list allocators" in above


def test_both_files_train_as_they_are_and_the_reward_is_the_files(here, monkeypatch):
    monkeypatch.setattr("winnow.commands.init.sizes", lambda project: ())  # a plan takes longer than the run
    made = CliRunner().invoke(app, ["init", "trained", "--recipe", "grpo"])
    assert made.exit_code == 0
    (command,) = re.findall(r"winnow (train \S+)\n", made.output)
    assert command == "train trained/config.toml"
    sets = [word for assignment in SMALL if "keep" not in assignment for word in ("--set", assignment)]
    trained = CliRunner().invoke(app, [*command.split(), *sets])
    assert trained.exit_code == 0, trained.output
    (row,) = (row for row in read_metrics(here / "runs" / "trained") if "budget/rollouts" in row)
    assert row["budget/rollouts"] == 16
    assert row["reward/part/right"] == row["reward/mean"]


def test_the_reward_passes_the_audit_as_its_file_says(monkeypatch):
    written = write_project(Path("audited")).with_name("reward.py").read_text()
    (task, reward) = re.findall(r"winnow audit (\S+) --reward (\S+)\n", written)[0]
    monkeypatch.chdir("audited")
    few = ["task.size=64", "verify.workers=0"]
    assert audit_configured(build_config(few, task=task, reward=reward), Path.cwd()).clean


def test_the_reward_pays_golds_that_are_numbers(here):
    project = write_project(Path("numbers"))
    rows = [{"question": f"What is {i} + 10?", "answer": i + 10} for i in range(3)]
    (here / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sets = ["task.train=sums.jsonl", "verify.workers=0"]
    config = build_config(sets, task="jsonl", reward=f"{project.with_name('reward.py')}:reward")
    found = audit_configured(config, here)
    assert found.golds == []
    assert found.gold_reward == 1.0


def test_two_folders_have_rewards_that_one_process_can_use():
    first, second = write_project(Path("a b")), write_project(Path("deeper/c"))
    assert "#     winnow train 'a b/config.toml'\n" in first.read_text(encoding="utf-8")
    for project in (first, second):
        resolve_file(project)
    assert load(second).output == "runs/c"


def test_a_folder_that_exists_is_refused_and_kept(here):
    (here / "mine").mkdir()
    (here / "mine" / "notes").write_text("mine")
    result = CliRunner().invoke(app, ["init", "mine"])
    assert result.exit_code == 2
    check_refusal(refusal_of(result), "mine", code="data.exists")
    assert [path.name for path in (here / "mine").iterdir()] == ["notes"]
    with refused(DataError, code="data.exists"):
        write_project(Path())


def test_an_unknown_recipe_and_a_name_that_cannot_be_printed_are_refused(here):
    with refused(ConfigError, "'grop'", "'grpo'", key="recipe", code="config.unknown_name"):
        write_project(Path("mine"), "grop")
    with refused(ConfigError, code="config.value"):
        write_project(Path("mi\nne"))
    assert list(here.iterdir()) == []


def test_a_recipe_with_an_environment_is_refused(here):
    with refused(ConfigError, "guess_number", key="recipe", code="config.combination"):
        write_project(Path("mine"), "guess_number")
    assert not (here / "mine").exists()


def test_the_command_prints_the_sizes_and_those_of_a_plan_before_any_run(here, monkeypatch):
    few = here / "few.toml"  # a plan reads every prompt
    text = recipe_paths()["arithmetic"].read_text(encoding="utf-8")
    few.write_text(text.replace("size = 4096", "size = 256"), encoding="utf-8")
    monkeypatch.setattr("winnow.commands.init.recipe_paths", lambda: {"arithmetic": few})
    result = CliRunner().invoke(app, ["init", "planned"])
    assert result.exit_code == 0, result.output
    assert "n = 16, m = 4, 32 prompts" in result.output
    for option in re.findall(r"--set '?(rollout\.[\w.]+=\d+)", result.output):
        load(here / "planned" / "config.toml", [option])
    assert "winnow plan planned/config.toml" in " ".join(result.output.split())


def test_without_its_model_a_project_has_the_command_of_a_plan_alone(here):
    result = CliRunner().invoke(app, ["init", "away", "--recipe", "gsm8k"])
    assert result.exit_code == 0, result.output
    assert "winnow plan away/config.toml" in " ".join(result.output.split())
    assert "its sizes" not in result.output


def test_the_written_reward_reads_the_last_answer_tag():
    project = write_project(Path("tags"), "arithmetic")
    function = resolve("reward", f"{project.with_name('reward.py')}:reward").function
    for text, right in {
        "<answer>12</answer>": True,
        "<answer>3</answer> <answer> 12\n</answer> more": True,
        "<answer>12</answer> <answer>3</answer>": False,
        "<answer>12</answer> <answer>3": True,  # the last one that is closed
        "12</answer>": False,
        "<answer>12": False,
        "": False,
    }.items():
        assert function(SimpleNamespace(answer=12), SimpleNamespace(text=text)) == {"right": float(right)}, text


def test_the_written_reward_meets_the_contract():
    """Within seconds: its time is linear in the text's length."""
    project = write_project(Path("contract"), "arithmetic")
    check_member(resolve("reward", f"{project.with_name('reward.py')}:reward"))
