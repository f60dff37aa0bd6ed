"""docs/data.md, from-verl.md and from-trl.md: each command trains two steps on a file in its layout, as it is."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from doc_pages import PAGES
from rows_of_layouts import ROWS, TABLES, write_files
from typer.testing import CliRunner

from winnow.commands import app
from winnow.state.logbook import read_rows

INLINE = ("--set", "verify.workers=0")  # a process that imports computer algebra costs more than all else
SMALL = {
    "steps": 2, "rollout.prompts_per_step": 2, "rollout.rollouts_per_prompt": 4, "rollout.max_new_tokens": 4,
    "select.use": "max_variance", "select.keep_per_prompt": 2, "evaluate.problems": 2, "threads": 1, "device": "cpu",
}  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every file that a command names."""
    folder = tmp_path_factory.mktemp("layouts")
    write_files(folder)
    return folder


@pytest.fixture(autouse=True)
def _beside_them(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files)


def commands(page: str) -> list[list[str]]:
    """Those in the page that name a file of rows."""
    text = PAGES[page].replace("\\\n", " ")
    lines = re.findall(r"(?m)^winnow (?:train|audit) .*$", text)
    return [shlex.split(line)[1:] for line in lines if re.search(r"task\.(path|train)=", line)]


def invoke(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 0, done.output
    return done.output


TRAINED = [
    pytest.param(command, id=f"{page.split('/')[-1].split('.')[0]}-{place}")
    for page in ("docs/data.md", "docs/from-verl.md", "docs/from-trl.md")
    for place, command in enumerate(commands(page))
    if command[0] == "train"
]


def test_the_pages_have_a_command_for_each_of_six_layouts() -> None:
    named = {word.split("=")[1] for command in commands("docs/data.md") for word in command if "task.path=" in word}
    assert named >= {*TABLES, "openrlhf.jsonl"} - {"train.parquet", "test.parquet"}
    assert len(TRAINED) == 8


@pytest.mark.parametrize("command", TRAINED)
def test_rows_of_a_layout_train_two_steps_as_they_are(command: list[str], tmp_path: Path) -> None:
    sets = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    output = invoke(*command, *sets, *INLINE, "--output", str(tmp_path / "run"))
    assert "refuses the gold" not in " ".join(output.split())
    rows = list(read_rows(tmp_path / "run"))
    assert {row["step"] for row in rows} == {0, 1}
    for row in rows:
        a, b = map(int, re.findall(r"(\d+) (?:plus|\+) (\d+)", row["prompt"])[-1])
        golds = row["answer"] if isinstance(row["answer"], list) else [row["answer"]]
        assert str(a + b) in [gold.strip("$") for gold in golds]
        assert ("Put the answer in a box." in row["prompt"]) == ("trl.parquet" in " ".join(command))


@pytest.mark.parametrize("command", TRAINED)
def test_the_golds_of_a_layout_are_accepted(command: list[str]) -> None:
    sets = [word for word in command if word.startswith("task.") and not word.startswith("task.use=")]
    reward = "gsm8k" if "reward.use=gsm8k" in command else "boxed"
    given = [word for each in sets for word in ("--set", each)]
    lines = invoke("audit", "jsonl", "--reward", reward, *given, *INLINE).splitlines()
    counts = [re.fullmatch(r"(?:train|validation|test) +(\d+) problems", line) for line in lines]
    assert sum(int(count[1]) for count in counts if count) >= ROWS
    assert any(line.endswith("rejects: 0 (0.0%)") for line in lines), lines


def test_the_audit_of_the_page() -> None:
    command = next(command for command in commands("docs/data.md") if command[0] == "audit")
    assert any(line.endswith("rejects: 0 (0.0%)") for line in invoke(*command, *INLINE).splitlines())
