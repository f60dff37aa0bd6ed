"""docs/data.md, from-verl.md and from-trl.md: each command trains two steps on a file in its layout, as it is.

The rows are made here, in the columns and types of the published files:

- verl: what its script for GSM8K writes (examples/data_preprocess/gsm8k.py): one user message that ends with the
  request for `####`, the gold as text in the struct reward_model, and in extra_info the split, the place, the raw
  question and the worked solution.
- TRL: trl-lib/DeepMath-103K on the hub has two columns, `prompt` (a list of structs with content and role) and
  `solution` (text). A system message may come first, as in TRL's example script.
- open-instruct: allenai/RLVR-GSM has `messages`, `ground_truth` and `dataset`; newer sets of the same project have
  lists of texts in the last two.
- prime-rl and verifiers: `question`, `answer` and `info`, whose value is an object or, as in INTELLECT-3-RL, its JSON.
- OpenRLHF: its PromptDataset reads the field `--input_key` (default "input"), text or messages, the field
  `--label_key`, and `datasource`.
- Big-Math: SynthLabsAI/Big-Math-RL-Verified has problem, answer and source as text, domain as a list of texts, and
  llama8b_solve_rate as a float64 that may be null.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from doc_pages import PAGES
from typer.testing import CliRunner

from winnow.commands import app
from winnow.state.logbook import read_rows

ROWS = 40
PAIRS = [(i, i + 1) for i in range(ROWS)]
MESSAGES = pa.list_(pa.struct([("content", pa.string()), ("role", pa.string())]))
SMALL = {
    "steps": 2, "rollout.prompts_per_step": 2, "rollout.rollouts_per_prompt": 4, "rollout.max_new_tokens": 4,
    "select.use": "max_variance", "select.keep_per_prompt": 2, "evaluate.problems": 2, "threads": 1, "device": "cpu",
}  # fmt: skip


def user(text: str) -> dict[str, str]:
    return {"content": text, "role": "user"}


def verl(start: int = 0) -> pa.Table:
    told = 'Let\'s think step by step and output the final answer after "####".'
    rows = [
        {
            "data_source": "openai/gsm8k",
            "prompt": [user(f"What is {a} plus {b}? {told}")],
            "ability": "math",
            "reward_model": {"ground_truth": str(a + b), "style": "rule"},
            "extra_info": {
                "answer": f"{a} + {b} = <<{a}+{b}={a + b}>>{a + b}\n#### {a + b}",
                "index": place,
                "question": f"What is {a} plus {b}?",
                "split": "train",
            },
        }
        for place, (a, b) in enumerate((start + a, b) for a, b in PAIRS)
    ]
    return pa.Table.from_pylist(rows)


def trl() -> pa.Table:
    system = {"content": "Put the answer in a box.", "role": "system"}
    rows = [{"prompt": [system, user(f"{a} plus {b}?")], "solution": f"${a + b}$"} for a, b in PAIRS]
    return pa.Table.from_pylist(rows, pa.schema([("prompt", MESSAGES), ("solution", pa.string())]))


def open_instruct() -> pa.Table:
    kinds = pa.schema(
        [("messages", MESSAGES), ("ground_truth", pa.list_(pa.string())), ("dataset", pa.list_(pa.string()))]
    )
    rows = [
        {"messages": [user(f"{a} plus {b}?")], "ground_truth": [str(a + b), f"{a + b}.0"], "dataset": ["math"]}
        for a, b in PAIRS
    ]
    return pa.Table.from_pylist(rows, kinds)


def prime_rl() -> pa.Table:
    info = json.dumps({"source": "made", "level": 1})
    kinds = pa.schema([("question", pa.large_string()), ("answer", pa.large_string()), ("info", pa.large_string())])
    rows = [{"question": f"{a} plus {b}?", "answer": str(a + b), "info": info} for a, b in PAIRS]
    return pa.Table.from_pylist(rows, kinds)


def big_math() -> pa.Table:
    return pa.table(
        {
            "problem": [f"What is ${a} + {b}$?" for a, b in PAIRS],
            "answer": [str(a + b) for a, b in PAIRS],
            "source": ["made"] * ROWS,
            "domain": [["Mathematics -> Algebra -> Prealgebra"]] * ROWS,
            "llama8b_solve_rate": pa.array([None, *[0.5] * (ROWS - 1)], pa.float64()),
        }
    )


def openrlhf() -> list[dict[str, Any]]:
    """Text in some rows and messages in others, which the same program reads."""
    texts = [f"{a} plus {b}?" for a, b in PAIRS]
    inputs = [text if place % 2 else [user(text)] for place, text in enumerate(texts)]
    return [{"input": i, "label": str(a + b), "datasource": "m"} for i, (a, b) in zip(inputs, PAIRS, strict=True)]


TABLES: dict[str, Callable[[], pa.Table]] = {
    "verl.parquet": verl,
    "train.parquet": verl,
    "test.parquet": lambda: verl(100),
    "trl.parquet": trl,
    "open_instruct.parquet": open_instruct,
    "prime_rl.parquet": prime_rl,
    "big_math.parquet": big_math,
}


def commands(page: str) -> list[list[str]]:
    """Those in the page that name a file of rows."""
    text = PAGES[page].replace("\\\n", " ")
    lines = re.findall(r"(?m)^winnow (?:train|audit) .*$", text)
    return [shlex.split(line)[1:] for line in lines if re.search(r"task\.(path|train)=", line)]


def write_files(folder: Path) -> None:
    for name, table in TABLES.items():
        pq.write_table(table(), folder / name)
    (folder / "openrlhf.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in openrlhf()), encoding="utf-8")
    (toml,) = re.findall(r"(?ms)^```toml\n(.*?)^```", PAGES["docs/data.md"])
    for name in ("rows.toml", "run.toml"):
        (folder / name).write_text(toml, encoding="utf-8")


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
def test_rows_of_a_layout_train_two_steps_as_they_are(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path)
    sets = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    output = invoke(*command, *sets, "--output", "run")
    assert "refuses the gold" not in " ".join(output.split())
    rows = list(read_rows(tmp_path / "run"))
    assert {row["step"] for row in rows} == {0, 1}
    for row in rows:
        a, b = map(int, re.findall(r"(\d+) (?:plus|\+) (\d+)", row["prompt"])[-1])
        golds = row["answer"] if isinstance(row["answer"], list) else [row["answer"]]
        assert str(a + b) in [gold.strip("$") for gold in golds]
        assert ("Put the answer in a box." in row["prompt"]) == ("trl.parquet" in " ".join(command))


@pytest.mark.parametrize("command", TRAINED)
def test_the_golds_of_a_layout_are_accepted(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path)
    sets = [word for word in command if word.startswith("task.") and not word.startswith("task.use=")]
    reward = "gsm8k" if "reward.use=gsm8k" in command else "boxed"
    lines = invoke("audit", "jsonl", "--reward", reward, *(w for each in sets for w in ("--set", each))).splitlines()
    counts = [re.fullmatch(r"(?:train|validation|test) +(\d+) problems", line) for line in lines]
    assert sum(int(count[1]) for count in counts if count) >= ROWS
    assert any(line.endswith("rejects: 0 (0.0%)") for line in lines), lines


def test_the_audit_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path)
    (command,) = [command for command in commands("docs/data.md") if command[0] == "audit"]
    assert any(line.endswith("rejects: 0 (0.0%)") for line in invoke(*command).splitlines())
