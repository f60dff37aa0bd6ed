"""What pages show of commands is what these print: errors, and what they read in the logs of tests/fixtures. The codes
that docs/commands.md names exist.
"""

from __future__ import annotations

import itertools
import re
import shlex

import pytest
from doc_pages import PAGES, REPOSITORY, blocks, words
from typer.testing import CliRunner

from winnow.commands import app
from winnow.commands.command_line import BAD_INPUT
from winnow.errors import CODES

SHOWN = [
    (page, block.text)
    for page in PAGES
    for block in blocks(page)
    if block.language == "text" and block.text.startswith("$ winnow ")
]


def test_the_codes_of_the_table_exist():
    table = PAGES["docs/commands.md"].partition("| code | what to do |")[2].partition("\n\n")[0]
    codes = set(re.findall(r"`([a-z_]+\.[a-z_]+)`", "".join(row.split("|")[1] for row in table.splitlines()[2:])))
    assert len(codes) > 10
    assert codes <= set(CODES)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["train", "c.toml", "--set", "stepz=3"], "config.unknown_key"),
        (["train", "c.toml", "--set", "steps"], "config.unreadable"),
        (["train", "broken.toml"], "config.unreadable"),
        (["train", "c.toml", "--set", "reward=mine.function"], "config.unknown_member"),
        (["train", "c.toml", "--set", 'task={use="jsonl", path="nope.jsonl"}'], "data.missing"),
        (["train", "c.toml", "--set", "terms=[{coefficient=0.1}]"], "config.missing_key"),
        (["train", "c.toml", "--set", "reward=none.py:function"], "config.user_code"),
        (["train", "c.toml", "--set", "reward=raises.py:function"], "config.user_code"),
        (["train", "c.toml", "--set", 'loss={use="clip", low=0.3}'], "config.unknown_key"),
        (["train", "c.toml", "--set", "rollout.rollouts_per_prompt=2"], "config.combination"),
        (["train", "c.toml", "--set", "model.path=nowhere/at/all"], "data.missing"),
        (["train", "c.toml", "--set", "device=mps"], "config.value"),
        (["train", "c.toml", "--output", "full"], "run_folder.foreign"),
        (["train", "c.toml", "--resume"], "run_folder.missing"),
        (["fetch", "gsm8k", "full"], "data.exists"),
        (["list", "losers"], "config.unknown_name"),
    ],
)  # fmt: skip
def test_a_command_prints_the_code_of_its_error(arguments, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.toml").write_text("steps = 1\n")
    (tmp_path / "broken.toml").write_text("steps = [1\n")
    (tmp_path / "raises.py").write_text("raise RuntimeError('no')\n")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == BAD_INPUT, result.output
    assert re.findall(r"^error \(([\w.]+)\): ", result.output, flags=re.MULTILINE) == [code], result.output


@pytest.mark.parametrize(("page", "text"), SHOWN, ids=[page for page, _ in SHOWN])
def test_an_error_is_printed_as_a_page_shows_it(page, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.toml").write_text("steps = 1\n")
    command, _, printed = text.partition("\n")
    output = CliRunner().invoke(app, shlex.split(command.removeprefix("$ winnow "))).output
    assert output.split() == printed.split()


READ = [
    (page, command, after.text)
    for page in PAGES
    for before, after in itertools.pairwise(blocks(page))
    for command in [line for line in before.commands() if line.startswith("winnow ")][-1:]
    if before.language == "sh" and after.language == "text" and " tests/fixtures/" in command
]


@pytest.mark.parametrize(("page", "command", "text"), READ, ids=[page for page, *_ in READ])
def test_what_a_command_reads_in_a_log_is_printed_as_a_page_shows_it(page, command, text, monkeypatch):
    """The page may leave lines out."""
    monkeypatch.chdir(REPOSITORY)
    name, arguments = words(command)
    printed = iter(CliRunner().invoke(app, [name, *arguments]).output.splitlines())
    lost = [line for line in text.splitlines() if line != "..." and line not in printed]
    assert lost == []


def test_pages_show_errors_and_logs():
    assert len(SHOWN) >= 3
    assert {page for page, *_ in READ} == {"docs/others.md", "docs/planner.md"}


def test_a_blank_for_the_sign_of_an_assignment_is_an_extra_argument():
    result = CliRunner().invoke(app, ["train", "c.toml", "--set", "steps", "60"])
    assert result.exit_code == BAD_INPUT
    assert "(60)" in result.output
