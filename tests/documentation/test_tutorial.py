"""docs/tutorial.md does what it says: its files are written and its commands run in its order, with fewer steps."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
from pathlib import Path

import pytest
from doc_pages import blocks, words
from typer.testing import CliRunner

from winnow import open_run
from winnow.commands import app
from winnow.registry import resolve
from winnow.testing import check_member

PAGE = "docs/tutorial.md"
# As a reader would: fewer steps than the page's 40 and 20, fewer held-out problems, and the trainer runs the reward.
FEWER = {"step-000040": "step-000005", "steps=20": "steps=8", "steps=5": "steps=1"}
SMALL = (
    "threads=1", "device=cpu", "verify.workers=0", "evaluate.problems=16", "evaluate.every=0", "evaluate.greedy=false",
)  # fmt: skip
FUNCTION = ("rollout.prompts_per_step=2", "evaluate.problems=2")  # of section 7, whose run nobody reads


class Reader:
    """Somebody who goes through the page in a folder; `said` holds what each command printed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said: dict[str, str] = {}

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text.replace("steps = 40", "steps = 5"))

    def run(self, command: str) -> None:
        first, *rest = command.split()
        if first in ("mkdir", "cd"):
            return
        if first == "python":
            runpy.run_path(rest[0], run_name="__main__")
            return
        for shown, done in FEWER.items():
            command = command.replace(shown, done)
        name, arguments = words(command)
        smaller = (*SMALL, *(FUNCTION if "runs/function" in command else ()))
        small = [part for assignment in smaller for part in ("--set", assignment)]
        if name in ("train", "check"):
            arguments = [arguments[0], *small, *arguments[1:]]
        if name == "eval":
            arguments += ["--set", "threads=1", "--set", "verify.workers=0", "--samples", "2"]
        if name in ("audit", "score"):
            arguments += ["--set", "verify.workers=0"]
        if "task.most" in command and name == "audit":
            arguments += ["--set", "task.size=50"]  # for 400
        result = CliRunner().invoke(app, [name, *arguments])
        assert result.exit_code == (1 if "mentioned" in command else 0), (command, result.output, result.exception)
        self.said[command] = result.output


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    """The page, gone through once."""
    reader = Reader(tmp_path_factory.mktemp("shop"))
    here, patch = contextlib.chdir(reader.folder), pytest.MonkeyPatch.context()
    with here, patch as patched, contextlib.redirect_stdout(io.StringIO()):
        patched.setattr("winnow.models.products.SECONDS", 0.0)  # `check` times products for half a second
        for block in blocks(PAGE):
            if block.language in ("python", "toml"):
                (name,) = re.findall(r"\A# (\S+)\n", block.text)
                reader.write(name, block.text)
            elif block.language == "sh":
                for command in block.commands():
                    reader.run(command)
    return reader


def said(reader, beginning):
    (text,) = (text for command, text in reader.said.items() if command.startswith(beginning))
    return text


def test_the_audit_finds_what_the_first_reward_pays(reader):
    found = said(reader, "winnow audit jsonl --set task.path=shop.jsonl --reward mine.py:mentioned")
    assert "1: the constant answer '-1' is paid" in found
    assert found.endswith("not clean\n")
    mended = said(reader, "winnow audit jsonl --set task.path=shop.jsonl --reward mine.py:exact")
    assert mended.endswith("\nclean\n")


def test_the_policy_learns(reader):
    before, after = open_run(reader.folder / "runs" / "exact").evaluations()["eval/accuracy_sampled"][[0, -1]]
    assert before < 0.6
    assert after > before + 0.2


def test_rollouts_are_shown_with_the_words_that_are_explained(reader):
    shown = said(reader, "winnow show runs/exact --step 0")
    assert "\nstep 0  jsonl-" in shown
    assert "  trained\n" in shown
    assert "not selected" in shown
    assert said(reader, "winnow plot").startswith("reward  ")


def test_the_evaluation_says_how_far_apart_the_two_are(reader):
    assert re.search(
        r"jsonl, sampled: .* points \(.*\), p = .* \(paired test over 64 problems\)", said(reader, "winnow eval")
    )
    assert (reader.folder / "evals" / "exact" / "report.txt").is_file()


def test_the_reward_that_is_gamed_rises_while_accuracy_falls(reader):
    run = open_run(reader.folder / "runs" / "brief")
    reward, short = (run.metrics()[name] for name in ("reward/mean", "reward/part/short"))
    assert reward[-1] > reward[0] + 0.2
    assert short[-1] > short[0] + 0.4
    held_out = run.evaluations()["eval/accuracy_sampled"]
    assert held_out[-1] < held_out[0] - 0.2
    rewards = re.search(r"(\S+) of 2,048 rewards differ: mean (\S+), in the file (\S+)\n", said(reader, "winnow score"))
    assert rewards is not None
    differ, exact, brief = (float(number.replace(",", "")) for number in rewards.groups())
    assert differ > 1500
    assert exact < brief / 2


def test_the_function_is_a_task(reader):
    assert said(reader, "winnow audit shop.py:shop").endswith("\nclean\n")
    assert open_run(reader.folder / "runs" / "function").config["task"]["use"].endswith("shop.py:shop")


def test_a_run_is_read_as_shown(reader, monkeypatch):
    """The block of docs/runs.md."""
    monkeypatch.chdir(reader.folder)
    (block,) = (block for block in blocks("docs/runs.md") if block.language == "python")
    Path("runs/mine").symlink_to("exact")
    names: dict[str, object] = {}
    text = block.text.replace("step=50", "step=4").replace("checkpoints[60]", "checkpoints[5]")
    exec(text.replace("run.rollouts(", "columns = run.rollouts("), names)
    assert set(names["columns"]) == {"step", "prompt_id", "reward", "length"}
    assert len(names["columns"]["reward"]) == 256


def test_the_rewards_of_the_page_meet_their_contract(tmp_path):
    """As docs/verifiers.md tests a reward. Under other names: the page's own stay registered."""
    checked = []
    for number, block in enumerate(block for block in blocks(PAGE) if 'register("reward"' in block.text):
        text = block.text.replace('register("reward", "', 'register("reward", "contract_of_')
        (tmp_path / f"rewards_{number}.py").write_text(text)
        for name in re.findall(r'register\("reward", "contract_of_(\w+)"', text):
            check_member(resolve("reward", f"rewards_{number}.py:{name}", base=tmp_path))
            checked.append(name)
    assert checked == ["mentioned", "exact", "brief"]
