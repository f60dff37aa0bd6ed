"""docs/troubleshooting.md lists errors by the code that the command line prints, and some of them are raised here."""

from __future__ import annotations

import functools
import re

import pytest
from doc_pages import PAGES, tokens
from typer.testing import CliRunner

from winnow.commands import app
from winnow.commands.command_line import BAD_INPUT
from winnow.errors import CODES

NAME = "docs/troubleshooting.md"
# No command raises them: the codes of whole classes are for packages that extend winnow.
INTERNAL = {code for code in CODES if "." not in code} | {"verifier.closed"}


@functools.cache
def codes_of_tables():
    """The first cell of each row of the tables whose first column is headed "code"."""
    rows, row = [], None
    for token in tokens(NAME):
        if token.type == "tr_open":
            row = []
        elif token.type == "tr_close":
            rows.append(row)
        elif token.type == "inline" and row is not None:
            row.append(token.content)
    tables = [place for place, cells in enumerate(rows) if cells[0] == "code"]
    heads = [place for place, cells in enumerate(rows) if not cells[0].startswith("`")]
    found = []
    for start in tables:
        end = min((head for head in heads if head > start), default=len(rows))
        found += [cells[0].strip("`") for cells in rows[start + 1 : end]]
    return found


def test_the_page_lists_each_code_a_command_can_raise_and_no_other():
    assert set(codes_of_tables()) == set(CODES) - INTERNAL


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
def test_a_command_prints_the_code_that_the_page_lists(arguments, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.toml").write_text("steps = 1\n")
    (tmp_path / "broken.toml").write_text("steps = [1\n")
    (tmp_path / "raises.py").write_text("raise RuntimeError('no')\n")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == BAD_INPUT, result.output
    assert re.findall(r"^error \(([\w.]+)\): ", result.output, flags=re.MULTILINE) == [code], result.output
    assert code in codes_of_tables()


def test_the_example_of_the_page_is_what_the_command_prints(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.toml").write_text("steps = 1\n")
    printed = CliRunner().invoke(app, ["train", "shop.toml", "--set", "stepz=3"]).output
    assert printed.strip() in PAGES[NAME]


def test_a_blank_for_the_sign_of_an_assignment_is_an_extra_argument():
    result = CliRunner().invoke(app, ["train", "c.toml", "--set", "steps", "60"])
    assert result.exit_code == BAD_INPUT
    assert "(60)" in result.output
