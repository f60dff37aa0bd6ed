"""The files of docs/verifiers.md do what the page says of them."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from doc_pages import PAGES, blocks
from typer.testing import CliRunner

from winnow.commands import app
from winnow.config_file import validate
from winnow.records import CAUSES, Prompt, Rollout
from winnow.registry import resolve
from winnow.rewards.contract import JUNK
from winnow.rewards.outcomes import to_outcome
from winnow.rewards.programs import read_tests
from winnow_lab.audit import CONSTANTS

PAGE = "docs/verifiers.md"
FILES = {re.match(r"# (\S+)\n", block.text)[1]: block.text for block in blocks(PAGE) if block.language == "python"}


def test_the_forms_of_tests_on_the_page_are_read():
    forms = re.findall(r'`(\{"(?:tests|function)": .*?\]\})`', PAGES[PAGE])
    assert [read_tests(json.loads(form))[0] for form in forms] == ["", "double"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with every file of the page: one for all tests, as a registered name stays."""
    folder = tmp_path_factory.mktemp("verifiers")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    rows = (f'{{"question": "What is {i} + 2?", "answer": "{i + 2}"}}\n' for i in range(60))
    (folder / "problems.jsonl").write_text("".join(rows))
    return folder


@pytest.fixture(autouse=True)
def _beside_them(files, monkeypatch):
    monkeypatch.chdir(files)


def judged(name, text, gold="42"):
    tokens = np.zeros(4, np.int64)
    prompt = Prompt(id="p", tokens=tokens, text="?", answer=gold, task="page")
    rollout = Rollout(index=0, tokens=tokens, logprobs=np.zeros(4), text=text, finish="stop", version=0)
    return to_outcome(resolve("reward", f"rewards.py:{name}").function(prompt, rollout), name=name)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("<answer>41</answer> <answer> 42 </answer>", "correct"),
        ("<answer>142</answer>", "wrong"),
        ("it is 42", "unparsable"),
        ("<answer></answer>", "unparsable"),
    ],
)
def test_the_reward_reads_what_it_says(text, kind):
    assert judged("tagged_number", text).kind == kind


def test_parts_sum_and_the_first_decides():
    right, wrong = (judged("short_and_right", f"<answer>{n}</answer>") for n in (42, 41))
    assert (right.correct, right.reward) == (True, pytest.approx(1 + 0.2 - 4 / 200))
    assert (wrong.correct, wrong.reward) == (False, 0.0)


def test_its_tests_pass():
    names: dict[str, object] = {}
    exec(FILES["test_rewards.py"], names)
    for name in ("test_the_contract", "test_options"):
        names[name]()  # type: ignore[operator]


def test_the_audit_is_clean():
    command = ["audit", "jsonl", "--set", "task.path=problems.jsonl", "--set", "verify.workers=0"]
    result = CliRunner().invoke(app, [*command, "--reward", "rewards.py:tagged_number"])
    assert result.output.endswith("\nclean\n"), result.output


def test_numbers_and_causes_are_those_of_the_code():
    assert set(re.findall(r"(?m)^\|[^|]+\| (\w+) \|[^|]+\|$", PAGES[PAGE])) >= set(CAUSES)
    text, verify = " ".join(PAGES[PAGE].split()), validate({}).verify
    assert f"`verify.timeout_seconds` ({verify.timeout_seconds:g})" in text
    assert f"`verify.memory_mb` ({verify.memory_mb})" in text
    assert f"`verify.max_failure_share` ({verify.max_failure_share:.0%})" in text
    assert len(JUNK) == 14
    assert "fourteen kinds of junk" in text
    assert len(CONSTANTS) == 17
    assert "seventeen constant answers" in text
