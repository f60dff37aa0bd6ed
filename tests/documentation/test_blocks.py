"""Every block of code in docs/*.md is checked: commands by the command line's own parser, TOML by the configuration's,
Python by a test that runs it.

README.md has tests of its own (tests/e2e/test_readme.py). The indented blocks of design.md are drawings, not commands.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
import shlex
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import typer
from doc_pages import PAGES, REPOSITORY, blocks, words

from winnow import registry
from winnow.commands import app
from winnow.config_file import load, validate
from winnow.engines.scripted import Scripted
from winnow.environments.replay import OPENING
from winnow.environments.tool_class import schemas, tool_environment
from winnow.recipes import find_config, recipe_paths
from winnow.testing import check_correction, check_engine
from winnow.training.resolve import resolve_members
from winnow_lab.sweep.file import configurations, read_sweep_file

COMMANDS = typer.main.get_command(app).commands
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OF_COMMANDS = [page for page in PAGES if page not in ("README.md", "docs/design.md")]
LANGUAGES = {"", "sh", "toml", "python", "json", "text"}  # "": indented, which are commands; or reference.md's lists

# What is neither winnow nor a file of this repository, and why no test starts it.
OTHER_PROGRAMS = {
    "torchrun": "several machines; tests/e2e/test_ranks_launch.py starts it on one",
    "cd": "the shell's own",
    "mkdir": "the shell's own",
}
# Where each block of Python is run, by its page and first line; or why it is not.
PYTHON = {
    "docs/engines.md": {
        "from winnow.memory.plan import MemoryPart": "test_an_engine_of_your_own_is_registered_as_shown",
        "from winnow.engines.process.engine import SecondProcess": "tests/e2e/second_engine.py does the same",
    },
    "docs/environments.md": {
        "# game.py": "tests/e2e/test_environments.py",
        "# store.py": "test_the_tools_of_the_page_answer_calls",
    },
    "docs/extending.md": {
        "import numpy as np": "tests/e2e/test_readme.py",
        "# mine.py": "tests/e2e/test_extending.py",
        "# mypkg/members.py": "tests/e2e/test_extending.py",
        "# test_mine.py": "tests/e2e/test_extending.py",
    },
    "docs/from-trl.md": {"# winnow: one in, one out": "test_the_reward_of_the_page_is_a_reward"},
    "docs/from-verl.md": {
        '# winnow: data_source is prompt.meta["data_source"]': "test_the_reward_of_the_page_is_a_reward"
    },
    "docs/off-policy.md": {"import torch": "test_a_correction_of_your_own_meets_its_contract"},
    "docs/others.md": {"# mypkg/logs.py": "tests/unit/commands/test_installed_commands.py"},
    "docs/runs.md": {"import winnow": "test_a_run_is_read_as_shown"},
    "docs/spending-the-budget.md": {
        "import numpy as np": "test_the_rules_of_the_page_meet_their_contracts_or_fail_as_stated",
        "# The first prompt is solved sometimes, the second always, the third rarely.": (
            "test_the_functions_of_arrays_return_what_the_page_has"
        ),
    },
    "docs/statistics.md": {"import numpy as np": "test_an_interval_is_printed_as_shown"},
    "docs/tutorial.md": dict.fromkeys(("# make_problems.py", "# mine.py", "# shop.py"), "test_the_policy_learns"),
    "docs/verifiers.md": {
        "# rewards.py": "test_the_reward_reads_what_it_says",
        "# test_rewards.py": "test_its_tests_pass",
    },
    "docs/watching.md": {
        "import winnow": "test_a_run_is_diagnosed_as_shown",
        "# mine.py": "test_a_tracker_of_your_own_posts_what_it_is_told",
    },
}


@functools.cache
def every_block():
    """Read when a test runs: to read all pages takes a second, and every worker collects all tests."""
    return [block for page in OF_COMMANDS for block in blocks(page)]


def shells(page):
    for block in blocks(page):
        if block.language == "sh" or (not block.language and page != "docs/reference.md"):
            yield from block.commands()


@contextlib.contextmanager
def named(text):
    """An error in the block says which of a page's lines or blocks it is of."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"of: {text}")
        raise


def test_every_block_says_what_it_is():
    assert len(every_block()) > 100
    assert not [(block.page, block.first) for block in every_block() if block.language not in LANGUAGES]


@pytest.mark.parametrize("page", OF_COMMANDS)
def test_a_command_exists_and_takes_the_options_it_is_shown_with(page):
    for command in shells(page):
        with named(command):
            check_command(page, command)


def check_command(page, command):
    first, *rest = shlex.split(command, comments=True)
    if first == "winnow":
        name, arguments = words(command)
        assert name in COMMANDS
        COMMANDS[name].make_context(name, list(arguments))
    elif first == "python" and any(block.first == f"# {rest[0]}" for block in blocks(page)):
        return  # a file that the page shows
    elif first == "python" and rest[0] == "-c":
        compile(rest[1], page, "exec")
    elif first in ("python", "pytest"):
        (file,) = (REPOSITORY / word for word in rest if word.endswith(".py") or word.startswith("tests/"))
        assert file.exists()
    elif first == "pip":
        (extras,) = re.findall(r"winnow-rl\[([\w,]+)\]", command)
        assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])
    elif first.startswith("scripts/"):
        assert (REPOSITORY / first).exists()
        behind = (REPOSITORY / "benchmarks" / name for name in ("gpu.py", "frame.py"))
        source = "".join(path.read_text(encoding="utf-8") for path in (REPOSITORY / first, *behind))
        assert all(word in source for word in rest if word.startswith("--"))
    else:
        assert first in OTHER_PROGRAMS


def overrides(command):
    """(the configuration's file or recipe, assignments) of a command that takes both."""
    _, arguments = words(command)
    sets = [value for option, value in itertools.pairwise(arguments) if option == "--set"]
    sets += [argument.removeprefix("--set=") for argument in arguments if argument.startswith("--set=")]
    named = (a for a in arguments if a.endswith(".toml") or a in recipe_paths())
    return next(named, None), sets


@pytest.mark.parametrize("page", OF_COMMANDS)
def test_the_keys_that_a_command_sets_exist(page):
    for command in shells(page):
        if re.match(r"winnow (train|check|profile|eval|audit|score) .*(--set|\.toml)", command):
            with named(command):
                file, sets = overrides(command)
                path = find_config(file or "arithmetic", REPOSITORY)
                load(path if path.is_file() else recipe_paths()["arithmetic"], sets)


@pytest.mark.parametrize("page", OF_COMMANDS)
def test_a_block_of_toml_is_what_winnow_reads(page, tmp_path):
    for number, block in enumerate(block for block in blocks(page) if block.language == "toml"):
        with named(block.text):
            check_toml(block, tmp_path / str(number))


def check_toml(block, folder):
    table = tomllib.loads(block.text)
    if "project" in table:
        return  # of a package: tests/e2e/test_extending.py
    if "seeds" in table:
        folder.mkdir(parents=True)
        (folder / "sweep.toml").write_text(block.text)
        file, text = read_sweep_file(folder / "sweep.toml")
        assert configurations(file, folder / "sweep.toml", text)
        return
    config = validate(table, source=block.page, text=block.text)
    if ".py:" not in block.text and "vllm" not in block.text:
        resolve_members(config, base=REPOSITORY / "configs")


def test_every_block_of_python_names_the_test_that_runs_it_or_a_reason():
    there = {(block.page, block.first) for block in every_block() if block.language == "python"}
    said = {(page, first): test for page, tests in PYTHON.items() for first, test in tests.items()}
    assert there == set(said)
    for test in said.values():
        assert (REPOSITORY / test.split()[0]).is_file() or f"def {test}(" in every_test(), test


def every_test() -> str:
    return "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))


def python(page, first):
    (block,) = (block for block in blocks(page) if block.language == "python" and block.first == first)
    return block.text


def test_an_interval_is_printed_as_shown(capsys):
    exec(python("docs/statistics.md", "import numpy as np"), {})
    assert capsys.readouterr().out in [block.text for block in blocks("docs/statistics.md")]


def test_a_correction_of_your_own_meets_its_contract():
    names: dict = {}
    exec(python("docs/off-policy.md", "import torch"), names)
    check_correction(names["token_mask"])


def test_an_engine_of_your_own_is_registered_as_shown(monkeypatch):
    monkeypatch.setattr(registry, "_ENTRIES", {family: dict(known) for family, known in registry._ENTRIES.items()})
    names = {
        "MyEngine": lambda context, cache: Scripted(context, lambda prompt, index: "1 2 3 4 5 6 7"[: 2 * index + 1])
    }
    exec(python("docs/engines.md", "from winnow.memory.plan import MemoryPart"), names)
    check_engine(names["mine"])
    traits = registry.members("engine")["mine"].traits
    assert (traits.memory.__name__, traits.job.__name__) == ("memory", "job")
    assert traits.may_change == ("cache_mb_per_row",)


def test_the_tools_of_the_page_answer_calls():
    names: dict[str, Any] = {"__name__": "store"}
    exec(python("docs/environments.md", "# store.py"), names)
    meta = {"stock": 12, OPENING: " There are 12 boxes."}
    prompt = SimpleNamespace(answer=None, meta=meta)
    turns = tool_environment(names["Store"])(prompt, "<call>move 11 left</call>", np.random.default_rng(0))
    assert next(turns) == "error: a shelf has room for 10 boxes"
    assert turns.send("<call>move 10 left</call>") == "2 boxes are left"
    assert turns.send("<call>move 2 right</call>") == "0 boxes are left"
    with pytest.raises(StopIteration) as end:
        turns.send("done")
    assert end.value.value == 1.0
    assert [each["function"]["name"] for each in schemas(names["Store"])] == ["move"]
