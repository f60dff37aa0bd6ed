"""Each message that docs/troubleshooting.md quotes is one that winnow says; some are said here."""

from __future__ import annotations

import ast
import re

import pytest
from doc_pages import PAGES, REPOSITORY
from typer.testing import CliRunner

from winnow.cli import app
from winnow.commands.exit_codes import BAD_INPUT

PAGE = PAGES["docs/troubleshooting.md"]
MESSAGES = [
    row.split("|")[1].strip().strip("`")
    for section in re.split(r"(?m)^## ", PAGE)
    if "| message |" in section
    for row in section.partition("| message |")[2].partition("\n\n")[0].splitlines()[2:]
]
HOLE = "\0"


def texts() -> list[str]:
    """Every text of the source, a hole where a value is put in."""
    found = []
    for path in (REPOSITORY / "src" / "winnow").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else HOLE for part in node.values)
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


TEXTS = texts()


@pytest.mark.parametrize("message", MESSAGES)
def test_the_message_is_in_the_source(message):
    fragments = [re.escape(part.strip()) for part in message.split("...")]
    wanted = re.compile(".*".join(fragments), flags=re.DOTALL)
    assert any(wanted.search(text) for text in TEXTS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "c.toml", "--set", "stepz=3"], "unknown key ..."),
        (["train", "c.toml", "--set", "steps"], "--set ... is not an assignment"),
        (["train", "broken.toml"], "not valid TOML"),
        (["train", "c.toml", "--set", "reward=mine.function"], "no ... is called ..."),
        (["train", "c.toml", "--set", 'task={use="jsonl", path="nope.jsonl"}'], "there is no file ..."),
        (["train", "c.toml", "--set", "terms=[{coefficient=0.1}]"], "... is missing"),
        (["train", "c.toml", "--set", "reward=none.py:function"], "there is no file ..."),
        (["train", "c.toml", "--set", "reward=raises.py:function"], "importing ... raised"),
        (["train", "c.toml", "--set", 'loss={use="clip", low=0.3}'], "has no such option"),
        (["train", "c.toml", "--set", "rollout.rollouts_per_prompt=2"], "select.keep_per_prompt = ... is above ..."),
        (["train", "c.toml", "--set", "model.path=nowhere/at/all"], "model.path: there is no folder ..."),
        (["train", "c.toml", "--set", "device=mps"], "device: 'mps' has no float64"),
        (["train", "c.toml", "--output", "full"], "is not empty and not a winnow run"),
        (["train", "c.toml", "--resume"], "there is no run to resume in"),
        (["audit", "arithmetic", "--reward", "plain.py:plain"], "does not say how an answer is phrased"),
        (["fetch", "gsm8k", "full"], "already exists; choose another"),
    ],
)  # fmt: skip
def test_the_message_is_said(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.toml").write_text("steps = 1\n")
    (tmp_path / "broken.toml").write_text("steps = [1\n")
    (tmp_path / "raises.py").write_text("raise RuntimeError('no')\n")
    (tmp_path / "plain.py").write_text("def plain(prompt, rollout):\n    return 1.0\n")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == BAD_INPUT, result.output
    assert re.search(".*".join(map(re.escape, message.split("..."))), " ".join(result.output.split())), result.output
    assert any(quoted.startswith(message) for quoted in MESSAGES)


def test_a_blank_for_the_sign_of_an_assignment_is_said_as_the_page_says():
    said = CliRunner().invoke(app, ["train", "c.toml", "--set", "steps", "60"]).output
    assert "Got unexpected extra argument(s) (60)" in said
    assert "Got unexpected extra argument(s) (60)" in PAGE


def test_the_page_is_read():
    assert len(MESSAGES) > 40
