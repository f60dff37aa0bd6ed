"""`winnow score` and `winnow audit` on the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from refusals import check_printed_error
from winnow.commands import app


def winnow(*arguments: Any) -> Any:
    return CliRunner().invoke(app, [str(a) for a in arguments])


def saved(path: Path) -> Path:
    rows = [{"text": f"#### {i}", "answer": "1", "id": f"r{i}"} for i in range(3)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_score_prints_a_line_per_row_and_a_summary(tmp_path: Path) -> None:
    done = winnow("score", saved(tmp_path / "saved.jsonl"), "--reward", "gsm8k", "--workers", 2)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert [line.split()[1] for line in lines[:3]] == ["wrong", "correct", "wrong"]
    assert {"3", "2 wrong", "1 correct"} <= set(re.findall(r"\d+ (?:wrong|correct)|^\d+", lines[3]))


def test_score_takes_options_of_the_reward_and_writes_rows(tmp_path: Path) -> None:
    file, out = saved(tmp_path / "saved.jsonl"), tmp_path / "scored.jsonl"
    sets = ["--set", "reward.relative_tolerance=0.9", "--workers", 0]
    done = winnow("score", file, "--reward", "numeric", *sets, "-o", out)
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["id"], row["kind"]) for row in rows] == [("r0", "wrong"), ("r1", "correct"), ("r2", "wrong")]
    assert all(row["reason"] for row in rows)


@pytest.mark.parametrize(("texts", "exit_code"), [(["x", "y"], 1), (["x", "1"], 0)])
def test_score_fails_where_every_verification_failed(tmp_path: Path, texts: list[str], exit_code: int) -> None:
    (tmp_path / "ints.py").write_text("def ints(prompt, rollout):\n    return float(int(rollout.text))\n")
    lines = (json.dumps({"text": text, "answer": "1"}) + "\n" for text in texts)
    (tmp_path / "rows.jsonl").write_text("".join(lines))
    how = ("--reward", f"{tmp_path}/ints.py:ints", "--workers", 0)
    assert winnow("score", tmp_path / "rows.jsonl", *how, "-o", tmp_path / "out.jsonl").exit_code == exit_code
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == len(texts)


def test_score_refuses_an_unknown_reward_and_a_missing_file(tmp_path: Path) -> None:
    unknown = winnow("score", saved(tmp_path / "a.jsonl"), "--reward", "boxd")
    check_printed_error(unknown, "'boxd'", "'boxed'", code="config.unknown_member")
    missing = winnow("score", tmp_path / "none.jsonl", "--reward", "gsm8k")
    check_printed_error(missing, tmp_path / "none.jsonl", code="data.unreadable")


def test_audit_of_a_clean_task_and_of_one_that_leaks(tmp_path: Path) -> None:
    for split, numbers in {"train": (3, 4), "test": (5, 6)}.items():
        rows = [{"question": f"{i} plus {i}?", "answer": str(2 * i + 100)} for i in numbers]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sets = ["--set=verify.workers=0", *(f"--set=task.{split}={tmp_path}/{split}.jsonl" for split in ("train", "test"))]
    clean = winnow("audit", "jsonl", "--reward", "gsm8k", *sets)
    assert clean.exit_code == 0, clean.output
    assert clean.stdout.splitlines()[-1] == "clean"

    leak = {"question": "3  PLUS 3 ?", "answer": "six"}
    with (tmp_path / "test.jsonl").open("a") as file:
        file.write(json.dumps(leak) + "\n")
    leaking = winnow("audit", "jsonl", "--reward", "gsm8k", *sets)
    assert leaking.exit_code == 1
    assert "1 (20.0%)" in leaking.stdout  # of the golds
    assert [line for line in leaking.stdout.splitlines() if line.startswith("  train:") or " = " in line]


SLEEPING = """
import time
import winnow

@winnow.register("reward", "sleeping", example=str)
def reward(prompt, rollout):
    if prompt.answer == "7":
        time.sleep(3600)
    return float(rollout.text == prompt.answer)
"""


def test_audit_of_a_reward_that_sleeps_ends_and_names_the_gold(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SLEEPING)
    rows = [{"question": f"{i} plus 0?", "answer": str(i), "id": f"r{i}"} for i in (6, 7, 8)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sets = [f"--set=task.train={tmp_path}/train.jsonl", "--set=task.id=id", "--set=verify.timeout_seconds=0.5"]
    done = winnow("audit", "jsonl", "--reward", f"{tmp_path}/mine.py:reward", *sets)
    assert done.exit_code == 1, done.output
    assert [line.split(":")[:3] for line in done.stdout.splitlines() if line.startswith("  ")] == [
        ["  r7", " 7", " timeout"]
    ]


def test_audit_of_a_question_with_two_golds_fails(tmp_path: Path) -> None:
    rows = [{"question": "3 plus 3?", "answer": answer} for answer in ("106", "107")]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = winnow(
        "audit", "jsonl", "--reward", "gsm8k", f"--set=task.train={tmp_path}/train.jsonl", "--set=verify.workers=0"
    )
    assert done.exit_code == 1, done.output
    assert [line for line in done.stdout.splitlines() if "106" in line and "107" in line]


def test_score_reads_responses_from_parquet(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [{"response": f"#### {i}", "solution": ["1", "2"], "id": f"r{i}"} for i in range(4)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "saved.parquet")
    how = ("--reward", "gsm8k", "--workers", 0)
    done = winnow("score", tmp_path / "saved.parquet", *how, "-o", tmp_path / "out.jsonl")
    assert done.exit_code == 0, done.output
    scored = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(row["line"], row["id"], row["kind"]) for row in scored] == [
        (1, "r0", "wrong"), (2, "r1", "correct"), (3, "r2", "correct"), (4, "r3", "wrong"),
    ]  # fmt: skip
    pq.write_table(pa.table({"x": [1]}), tmp_path / "other.parquet")
    check_printed_error(winnow("score", tmp_path / "other.parquet", "--reward", "gsm8k"), code="data.malformed")
