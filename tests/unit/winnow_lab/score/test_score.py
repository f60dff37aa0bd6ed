from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import winnow
from refusals import check_printed_error, refused
from winnow.commands import app
from winnow.errors import DataError, RunFolderError
from winnow.state.logbook import read_rows
from winnow.verify.verifiers import Verifiers
from winnow_lab.score.folder import UnfinishedScores
from winnow_lab.scoring import Scored, count_rows, describe, score, summary


def verifiers(use: str = "gsm8k", workers: int = 0) -> Verifiers:
    return Verifiers({"use": use}, workers=workers, timeout_seconds=5.0, memory_mb=512, max_failure_share=0.01)


def written(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n\n" for row in rows), encoding="ascii")
    return path


def scored(path: Path, **how: Any) -> list[Scored]:
    with verifiers(**how) as room:
        return list(score(path, room))


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_keep_their_order_and_lines(tmp_path: Path, workers: int) -> None:
    rows = [{"response": f"#### {i % 3}", "answer": "1", "id": f"r{i}"} for i in range(600)]
    found = scored(written(tmp_path / "saved.jsonl", *rows), workers=workers)
    assert [s.id for s in found] == [f"r{i}" for i in range(600)]
    assert [s.line for s in found] == list(range(1, 1200, 2))
    assert [s.outcome.correct for s in found] == [i % 3 == 1 for i in range(600)]
    assert count_rows(tmp_path / "saved.jsonl") == 600


def test_a_row_has_outcome_reason_and_seconds(tmp_path: Path) -> None:
    file = written(
        tmp_path / "saved.jsonl",
        {"text": "#### 41", "gold": 42},
        {"completion": "none", "answer": "42"},
        {"output": "#### 42\n", "solution": "42", "id": 7},
    )
    wrong, unparsable, right = (s.row() for s in scored(file))
    assert (wrong["kind"], wrong["reward"], wrong["answer"]) == ("wrong", 0.0, "41")
    assert (unparsable["kind"], unparsable["id"]) == ("unparsable", "3")
    assert (right["kind"], right["reward"], right["id"]) == ("correct", 1.0, "7")
    assert len({row["reason"] for row in (wrong, unparsable, right)} - {""}) == 3
    assert all(row["seconds"] >= 0 for row in (wrong, unparsable, right))


def test_a_failure_is_a_row_and_the_next_row_is_scored(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("def bad(prompt, rollout):\n    return [][int(rollout.text)]\n")
    file = written(tmp_path / "saved.jsonl", *[{"text": str(i), "answer": "1"} for i in range(30)])
    found = scored(file, use=f"{tmp_path}/bad.py:bad")
    assert {s.outcome.cause for s in found} == {"raised"}
    assert found[0].row()["reward"] is None
    assert found[0].row()["reason"] == "raised: IndexError: list index out of range"
    assert [re.findall(r"\d+ \w+", line) for line in summary(found)] == [["30 responses", "30 failed"], ["30 raised"]]


@pytest.mark.parametrize("line", ["#### 1é".encode("latin-1"), b"\xff\xfe{}", '{"response": "1"}'.encode("utf-16")])
def test_a_line_of_another_encoding_is_refused_as_no_utf_8(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "saved.jsonl").write_bytes(line + b"\n")
    with refused(DataError, f"{tmp_path}/saved.jsonl:1", "UTF-8", code="data.malformed") as caught:
        count_rows(tmp_path / "saved.jsonl")
    assert "utf-16" not in str(caught.value).lower()


def test_a_mark_of_utf_8_at_the_beginning_is_no_part_of_a_row(tmp_path: Path) -> None:
    (tmp_path / "saved.jsonl").write_bytes(b'\xef\xbb\xbf{"response": "#### 1", "answer": "1"}\n')
    assert count_rows(tmp_path / "saved.jsonl") == 1


def test_a_described_row_is_safe_to_print(tmp_path: Path) -> None:
    rows = [{"text": "\\boxed{1\x1b[2J}", "answer": "2"}, {"text": "", "answer": "2"}]
    first, second = map(describe, scored(written(tmp_path / "saved.jsonl", *rows), use="question_only"))
    assert "\x1b" not in first
    assert "wrong" in first
    assert "unparsable" in second


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ('{"text": ', ()),
        ("[]", ("list",)),
        ('{"answer": "1"}', ("'text'", "'response'")),
        ('{"text": "1"}', ("'answer'",)),
        ('{"text": 1, "answer": "1"}', ("int",)),
    ],
)
def test_a_malformed_line_is_refused_with_its_number(tmp_path: Path, line: str, named: tuple[str, ...]) -> None:
    (tmp_path / "saved.jsonl").write_text(line + "\n")
    with refused(DataError, f"{tmp_path}/saved.jsonl:1", *named, code="data.malformed"):
        scored(tmp_path / "saved.jsonl")


@pytest.mark.parametrize(
    ("data", "remedy"),
    [(b"\x1f\x8b\x08\x00", "gunzip"), (b"response,answer\n1,1\n", "csv"), (b'[{"text": "1"}]\n', "on lines")],
)
def test_a_file_of_another_form_is_refused_with_what_converts_it(tmp_path: Path, data: bytes, remedy: str) -> None:
    (tmp_path / "mine").write_bytes(data)
    with refused(DataError, tmp_path / "mine", remedy, code="data.unreadable"):
        scored(tmp_path / "mine")


def test_a_table_whose_gold_has_another_name_is_told_the_names(tmp_path: Path) -> None:
    pq.write_table(pa.table({"response": ["1"], "ground_truth": ["1"]}), tmp_path / "mine.parquet")
    with refused(DataError, "row 1", "'answer'", code="data.malformed"):
        scored(tmp_path / "mine.parquet")


@pytest.mark.parametrize("workers", [0, 1])
def test_plain_rows_have_no_log_probs(tmp_path: Path, workers: int) -> None:
    """A reward that declares that it reads them is refused; one that does not declare it fails on each row."""
    (tmp_path / "sure.py").write_text(
        "import winnow\n\n"
        '@winnow.register("reward", reads=("logprobs",))\n'
        f"def declared_{workers}(prompt, rollout):\n"
        "    'It stays registered, and is listed where a later test lists members.'\n"
        "    return float(rollout.logprobs.sum() > -1.0)\n\n"
        "def silent(prompt, rollout):\n    return float(rollout.logprobs.sum() > -1.0)\n"
    )
    file = written(tmp_path / "saved.jsonl", {"text": "1", "answer": "1"})
    with refused(DataError, f"{file}:1", "'logprobs'", code="data.incomplete"):
        scored(file, use=f"{tmp_path}/sure.py:declared_{workers}", workers=workers)
    (failed,) = scored(file, use=f"{tmp_path}/sure.py:silent", workers=workers)
    assert failed.outcome.cause == "raised"
    assert "logprobs" in failed.outcome.detail


COUNTED = "def counted(prompt, rollout):\n    return 1 - len(rollout.tokens) / 10\n"
ADDED = "def added(prompt, rollout):\n    return float(rollout.tokens.sum() + 10 * prompt.tokens.sum())\n"


@pytest.mark.parametrize("workers", [0, 1])
def test_tokens_are_those_of_the_row_or_an_error(tmp_path: Path, workers: int) -> None:
    """They are never an empty array, which a reward by length would pay for."""
    (tmp_path / "mine.py").write_text(COUNTED + ADDED)
    file = written(
        tmp_path / "saved.jsonl",
        {"text": "1", "answer": "1"},
        {"text": "1", "answer": "1", "length": 4},
        {"text": "1", "answer": "1", "tokens": [5, 6], "prompt_tokens": [1]},
        {"text": "1", "answer": "1", "tokens": ["5", "6"], "length": -1},
    )
    none, counted, listed, odd = scored(file, use=f"{tmp_path}/mine.py:counted", workers=workers)
    assert [counted.outcome.reward, listed.outcome.reward] == [0.6, 0.8]
    for failed in (none, odd):
        assert failed.outcome.cause == "raised"
        assert "'tokens'" in failed.outcome.detail
    *failed_, listed, _ = (s.outcome for s in scored(file, use=f"{tmp_path}/mine.py:added", workers=workers))
    assert [outcome.cause for outcome in failed_] == ["raised", "raised"]
    assert listed.reward == 21.0


def test_a_row_of_an_evaluation_gets_its_reward_again(tmp_path: Path) -> None:
    """The row has its number of tokens, its end and its verdict beside its text."""
    (tmp_path / "mine.py").write_text(
        COUNTED + "def ended(prompt, rollout):\n    return float(rollout.finish == 'length')\n"
    )
    evaluated = {"prompt_id": "p7", "prompt": "?", "answer": "1", "text": "1", "length": 8, "finish": "length"}
    rows = [evaluated | {"kind": "wrong", "reward": 1 - 0.8}, evaluated | {"kind": "correct", "reward": 1.0}]
    file = written(tmp_path / "task.jsonl", *rows)
    found = scored(file, use=f"{tmp_path}/mine.py:counted")
    assert [(s.id, s.outcome.reward, s.was) for s in found] == [("p7", 1 - 0.8, "wrong"), ("p7", 1 - 0.8, "correct")]
    assert numbers_of(found) == [["1", "2"], ["1", "2", "0.200", "0.600"]]
    assert [s.outcome.reward for s in scored(file, use=f"{tmp_path}/mine.py:ended")] == [1.0, 1.0]


def test_a_row_of_an_evaluation_may_have_no_gold(tmp_path: Path) -> None:
    """Those of `ifbench` and `instructions` have rules in `meta`."""
    (tmp_path / "mine.py").write_text(
        "def ruled(prompt, rollout):\n    return float(prompt.answer is None and prompt.meta['rules'] == ['one'])\n"
    )
    row = {"prompt_id": "p7", "prompt": "?", "answer": None, "meta": {"rules": ["one"]}, "text": "1", "length": 8}
    (found,) = scored(written(tmp_path / "ifbench.jsonl", row), use=f"{tmp_path}/mine.py:ruled")
    assert (found.id, found.outcome.correct) == ("p7", True)
    with refused(DataError, "mine.jsonl:1", "'answer'", code="data.malformed"):
        scored(written(tmp_path / "mine.jsonl", {"text": "1", "answer": None}))


def numbers_of(rows: list[Scored]) -> list[list[str]]:
    """The numbers in the last two lines of a summary: of changed verdicts, and of changed rewards with both means."""
    return [re.findall(r"[\d.]*\d", line) for line in summary(rows)[-2:]]


def test_a_verdict_that_is_not_winnows_is_not_compared(tmp_path: Path) -> None:
    rows = [{"text": "1", "answer": "1", "kind": "addition", "reward": "high"}]
    (row,) = scored(written(tmp_path / "saved.jsonl", *rows))
    assert (row.was, row.earned) == (None, None)
    assert len(summary([row])) == 2


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with refused(DataError, tmp_path / "nothing.jsonl", code="data.unreadable"):
        count_rows(tmp_path / "nothing.jsonl")


def test_rollouts_of_a_run_get_their_rewards_again(smallest: Any) -> None:
    config = smallest()
    result = winnow.train(**config)
    found = scored(result.folder, use=config["reward"]["use"])
    rows = list(read_rows(result.folder))
    assert [s.outcome.reward for s in found] == [row["reward"] for row in rows]
    mean = sum(row["reward"] for row in rows) / len(rows)
    count = str(len(rows))
    assert numbers_of(found) == [["0", count], ["0", count, f"{mean:.3f}", f"{mean:.3f}"]]
    assert any(s.outcome.kind != s.was for s in scored(result.folder, use="length"))


def test_a_file_without_a_row_is_refused(tmp_path: Path) -> None:
    empty, output = tmp_path / "saved.jsonl", tmp_path / "scored.jsonl"
    empty.write_text("\n")
    result = CliRunner().invoke(app, ["score", str(empty), "--reward", "boxed", "-o", str(output)])
    check_printed_error(result, "saved.jsonl", code="data.empty")
    assert list(tmp_path.iterdir()) == [empty]


def test_a_malformed_row_is_refused_before_the_first_verdict(tmp_path: Path) -> None:
    """Else the rows before it could not be resumed: the repaired file is another one."""
    file = written(tmp_path / "saved.jsonl", *[{"text": "#### 1", "answer": "1"}] * 600, {"answer": "1"})
    asked = ["score", str(file), "--reward", "gsm8k", "--workers", "0", "-o", str(tmp_path / "scored.jsonl")]
    check_printed_error(CliRunner().invoke(app, asked), "saved.jsonl:1201", code="data.malformed")
    assert list(tmp_path.iterdir()) == [file]


def test_a_folder_of_the_name_that_rows_are_kept_in_stays(tmp_path: Path) -> None:
    file, notes = written(tmp_path / "saved.jsonl", {"text": "#### 1", "answer": "1"}), tmp_path / "scored.unfinished"
    notes.mkdir()
    (notes / "notes.txt").write_text("years of work")
    asked = ["score", str(file), "--reward", "gsm8k", "--workers", "0", "-o", str(tmp_path / "scored")]
    check_printed_error(CliRunner().invoke(app, asked), "notes.txt", code="data.exists")
    assert [path.name for path in notes.iterdir()] == ["notes.txt"]


def test_rows_that_another_call_still_verifies_are_in_use(tmp_path: Path) -> None:
    with (
        UnfinishedScores.open(tmp_path / "scored.jsonl", {}, resume=False),
        refused(RunFolderError, os.getpid(), code="run_folder.locked"),
    ):
        UnfinishedScores.open(tmp_path / "scored.jsonl", {}, resume=False)


def test_the_texts_of_another_trainers_log_are_scored() -> None:
    found = scored(Path(__file__).parents[3] / "fixtures" / "verl_run")
    assert len(found) == 160
    assert {s.was for s in found} <= {"correct", "wrong"}


def test_a_log_without_golds_has_a_remedy_that_can_be_followed(tmp_path: Path) -> None:
    run = Path(shutil.copytree(Path(__file__).parents[3] / "fixtures" / "trl_run", tmp_path / "run"))
    (run / "winnow.toml").write_text("reward_weights = { short = 0.5, right = 1.0 }\n")
    with refused(DataError, "JSON lines", code="data.incomplete"):
        scored(run)
