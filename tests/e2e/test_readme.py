"""The README and the pages that it leads to first are part of the program: their commands and their code run, and their
tables name what there is."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import winnow
from chat_templates import render_here
from winnow import testing
from winnow.commands import app
from winnow.commands.list import keys
from winnow.config import Config
from winnow.config_file import load
from winnow.errors import CODES
from winnow.families import FAMILIES
from winnow.recipes import find_config, recipe_paths
from winnow.records import PromptStats
from winnow.registry import members
from winnow.state.logbook import read_metrics
from winnow.training.resolve import resolve_file, resolve_members

REPOSITORY = Path(__file__).parents[2]
PAGES = ("README.md", "docs/commands.md", "docs/extending.md", "configs/README.md")
TEXTS = [(REPOSITORY / page).read_text(encoding="utf-8") for page in PAGES]
README = "\n".join(text.partition("\n## In a file\n")[0] for text in TEXTS)  # test_extending.py runs the rest
PYTHON, TOML = (re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL) for language in ("python", "toml"))
SHOWN = re.findall(r"^    (winnow .*)$", README.replace("\\\n", ""), flags=re.MULTILINE)
NAMED = re.findall(r"`(winnow [a-z][^`]*)`", README)
SMALL = (
    "threads=1", "device=cpu", "rollout.prompts_per_step=4", "rollout.rollouts_per_prompt=4", "evaluate.problems=4",
    "evaluate.rollouts_per_prompt=2", "select.keep_per_prompt=2", "task.size=64",
    "verify.workers=0", "evaluate.greedy=false",
)  # fmt: skip


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch):
    """Chat templates are rendered here, and not in a fork of this process for each of many commands."""
    render_here(monkeypatch)


SMALLER = (
    'steps=1, task={"use": "arithmetic", "size": 64}, rollout={"prompts_per_step": 4}, '
    'evaluate={"problems": 8, "rollouts_per_prompt": 2, "greedy": False}'
)


def smaller(code):
    """The same code with fewer steps, prompts and problems."""
    found, count = re.subn(r'steps=\d,\s+evaluate=\{"problems": 32\}', SMALLER, code)
    assert count == 1
    return found


def words(command):
    """What a shell hands to `winnow`: its command, and the arguments of that. CONFIG is any configuration."""
    _, name, *arguments = shlex.split(command, comments=True)
    return name, ["arithmetic" if argument == "CONFIG" else argument for argument in arguments]


def run(name, arguments):
    result = CliRunner().invoke(app, [name, *arguments])
    assert result.exit_code == 0, (name, arguments, result.output, result.exception)
    return result.output


@pytest.mark.parametrize("command", [*SHOWN, *NAMED])
def test_every_command_has_the_options_it_is_shown_with(command):
    name, arguments = words(command)
    typer.main.get_command(app).commands[name].make_context(name, list(arguments))


@pytest.mark.parametrize("command", [c for c in SHOWN if words(c)[0] in ("train", "check") and "first/" not in c])
def test_every_configuration_it_shows_is_sound(command):
    _, (file, *options) = words(command)
    sets = [value for option, value in itertools.pairwise(options) if option == "--set"]
    resolve_file(find_config(file, REPOSITORY), sets)


@pytest.mark.parametrize("assignment", re.findall(r"`--set '([^']+)'`", README))
def test_every_override_it_names_is_sound(assignment):
    resolve_file(find_config("arithmetic", REPOSITORY), [assignment])


INSIDE = ("--set", "verify.workers=0")
LESS = {  # of its work, by command
    "score": INSIDE,
    "eval": (*INSIDE, "--samples", "2"),  # for 8
    "audit": (*INSIDE, "--set", "task.size=16"),  # for 4096
    "plan": ("--draws", "20"),  # for 200
}


def test_what_to_do_next_runs_as_it_stands(tmp_path, monkeypatch):
    """In order, on the demo's configuration made small: 2 steps for 60, 3 for 90, and 8 problems for 128.

    What `winnow init` says of sizes, after a plan that takes seconds, has a test in tests/unit/commands/init.
    """
    monkeypatch.setattr("winnow.commands.init.sizes", lambda project: ())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(REPOSITORY / "configs")
    done = []
    for command in SHOWN:
        for was, now in (("=60", "=2"), ("=90", "=3"), ("-000090", "-000003"), ("--problems 128", "--problems 8")):
            command = command.replace(was, now)
        name, arguments = words(command)
        if any("gsm8k" in argument for argument in arguments):
            continue  # wants a download
        if arguments[-2:] == ["--ranks", "auto"]:
            arguments = arguments[:-2]  # test_ranks_auto.py tests the number
        if "--ranks" in arguments:
            continue  # test_ranks_launch.py launches ranks, tests/with_ray those on Ray, which is not installed here
        if name == "sweep" or arguments == ["sweeps/pods"]:
            continue  # takes minutes; test_sweep.py reads its file, runs a small one and compares it
        if name == "train":
            own = [*SMALL] if any(word.startswith("steps=") for word in arguments) else [*SMALL, "steps=1"]
            arguments += [part for key in own for part in ("--set", key)]
        done.append((name, run(name, [*arguments, *LESS.get(name, ())])))
    assert [name for name, _ in done] == [
        "train",
        "list",
        "init",
        "train",
        "train",
        "show",
        "plot",
        "report",
        "train",
        "eval",
        "chat",
        "push",
        "score",
        "replay",
        "plan",
        "export",
        "audit",
    ]
    assert "\nstep 1 " in dict(done)["show"]
    assert (tmp_path / "runs" / "mine" / "plot.png").stat().st_size > 20_000
    assert (tmp_path / "runs" / "mine" / "report.html").stat().st_size > 100_000
    assert [row["step"] for row in read_metrics(tmp_path / "runs" / "mine") if "budget/rollouts" in row] == [0, 1, 2]
    assert len(json.loads((tmp_path / "runs" / "history.json").read_text())) == 3


def test_the_configuration_for_problems_of_your_own_trains(tmp_path, monkeypatch):
    (toml,) = TOML
    (example,) = re.findall(r"# (\{.*\})$", toml, flags=re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    rows = [{**json.loads(example), "question": f"What is {i} + 2?", "answer": f"{i + 2}"} for i in range(100)]
    (tmp_path / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "mine.toml").write_text(toml)
    config = load(tmp_path / "mine.toml", ["model.path=bundled"])
    assert len(resolve_members(config, base=tmp_path).task("train")) > 50
    (audit,) = (command for command in NAMED if command.startswith("winnow audit"))
    name, arguments = words(audit)
    run(name, [*arguments, "--set", "verify.workers=0"])  # with exit code 0: no fault is found


def test_the_reward_of_your_own_runs(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    exec(smaller(PYTHON[0]), {"__name__": "__main__"})
    assert (tmp_path / "runs" / "short" / "metrics.jsonl").is_file()
    assert capfd.readouterr().out
    (last,) = (row for row in read_metrics(tmp_path / "runs" / "short") if row["step"] == 1)
    assert last["eval/accuracy_sampled"] > 0


def test_the_selector_and_the_allocator_of_your_own_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mine = {"__name__": "__main__"}
    exec(smaller(PYTHON[1]), mine)
    steps = [row for row in read_metrics(tmp_path / "runs" / "undecided") if "budget/rollouts" in row]
    assert [row["budget/rollouts"] for row in steps] == [64]
    testing.check_selector(mine["finished"])
    testing.check_allocator(mine["undecided"])


def test_there_is_no_code_that_is_not_run():
    assert (len(PYTHON), len(TOML)) == (2, 1)
    others = set(re.findall(r"(?m)^```(\w+)$", README)) - {"python", "toml"}
    assert others == {"sh", "text"}  # commands, which tests/documentation checks, and what they print


def test_what_an_allocator_sees_is_told_in_full():
    table = README.partition("| `PromptStats` |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)`", table, flags=re.MULTILINE)) == set(PromptStats.__dataclass_fields__)


def test_public_names_exist():
    names = set(re.findall(r"`winnow\.([a-z_]+)", README)) - {"testing"}
    assert "train" in names
    assert names <= set(winnow.__all__)
    assert all(hasattr(testing, name) for name in re.findall(r"`(?:winnow\.testing\.)?(check_\w+)`", README))


def test_keys_it_names_exist():
    options = {
        f"{family.key}.{option}"
        for family in FAMILIES.values()
        for entry in members(family.name).values()
        for option in entry.options
    }
    known = {key.name for key in keys()} | {"rollout.engine", "model.lora"} | options | set(CODES)
    named = {
        name
        for name in re.findall(r"`([a-z]+(?:\.[a-z_]+)+)`", README)
        if name.partition(".")[0] in Config.model_fields
    }
    assert named <= known


def test_nothing_is_left_to_fill_in():
    assert "@@" not in README


@pytest.mark.parametrize("family", FAMILIES)
def test_the_table_has_the_arguments_of_every_family(family):
    (row,) = (line for line in README.splitlines() if line.startswith(f"| {family} |"))
    assert f"`({', '.join(FAMILIES[family].positional)}, *, ...)" in row


def test_every_recipe_is_named():
    for name in recipe_paths():
        assert re.search(rf"\b{name}\b", README), name


def test_links_of_the_configurations_lead_somewhere():
    """Those of README.md and docs are followed by tests/documentation/test_links.py."""
    for target in re.findall(r"\]\(([^)#]+)\)", (REPOSITORY / PAGES[-1]).read_text(encoding="utf-8")):
        assert (REPOSITORY / "configs" / target).exists(), target


def test_no_command_writes_where_git_would_show_it():
    ignored = (REPOSITORY / ".gitignore").read_text(encoding="utf-8").splitlines()
    written = [tomllib.loads((REPOSITORY / "configs/sweeps/pods.toml").read_text(encoding="utf-8"))["output"]]
    for command in (*SHOWN, *NAMED):
        name, arguments = words(command)
        written += [path for option, path in itertools.pairwise(arguments) if option in ("--output", "-o", "--json")]
        written += arguments[1:] if name == "fetch" else []
    assert len(written) > 4
    assert [path for path in written if f"/{path.partition('/')[0]}/" not in ignored] == []
