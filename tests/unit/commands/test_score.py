from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import winnow
from winnow.commands.score import Scored, count_rows, describe, score, summary
from winnow.errors import DataError
from winnow.state.logbook import read_rows
from winnow.verify import Verifiers


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
    assert (wrong["kind"], wrong["reward"], wrong["answer"], wrong["reason"]) == ("wrong", 0.0, "41", "not the gold")
    assert (unparsable["kind"], unparsable["reason"], unparsable["id"]) == (
        "unparsable",
        "no answer could be read",
        "3",
    )
    assert (right["kind"], right["reward"], right["id"]) == ("correct", 1.0, "7")
    assert all(row["seconds"] >= 0 for row in (wrong, unparsable, right))


def test_failures_are_rows_not_the_end(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("def bad(prompt, rollout):\n    return [][int(rollout.text)]\n")
    file = written(tmp_path / "saved.jsonl", *[{"text": str(i), "answer": "1"} for i in range(30)])
    found = scored(file, use=f"{tmp_path}/bad.py:bad")
    assert {s.outcome.cause for s in found} == {"raised"}
    assert found[0].row()["reward"] is None
    assert found[0].row()["reason"] == "raised: IndexError: list index out of range"
    assert summary(found) == ["30 responses: 30 failed", "failed: 30 raised"]


def test_a_line_for_a_person_is_safe_to_print(tmp_path: Path) -> None:
    rows = [{"text": "\\boxed{1\x1b[2J}", "answer": "2"}, {"text": "", "answer": "2"}]
    first, second = map(describe, scored(written(tmp_path / "saved.jsonl", *rows), use="question_only"))
    assert "\x1b" not in first
    assert "wrong" in first
    assert "no answer could be read" in second


@pytest.mark.parametrize(
    ("line", "finding"),
    [
        ("{", "line 1: not JSON"),
        ("[]", "line 1: a row is a JSON object, found list"),
        ('{"answer": "1"}', "line 1: there is no response; name it 'text' or 'response'"),
        ('{"text": "1"}', "line 1: there is no gold; name it 'answer'"),
        ('{"text": 1, "answer": "1"}', "line 1: the response must be text, found int"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, finding: str) -> None:
    (tmp_path / "saved.jsonl").write_text(line + "\n")
    with pytest.raises(DataError, match=finding):
        scored(tmp_path / "saved.jsonl")


@pytest.mark.parametrize("workers", [0, 1])
def test_plain_rows_hold_no_log_probs(tmp_path: Path, workers: int) -> None:
    """A reward that reads them is refused, and one that has not said so fails, instead of judging none."""
    (tmp_path / "sure.py").write_text(
        "import winnow\n\n"
        '@winnow.register("reward", reads=("logprobs",))\n'
        f"def asks_{workers}(prompt, rollout):\n"
        "    'It stays registered, and is listed where a later test lists members.'\n"
        "    return float(rollout.logprobs.sum() > -1.0)\n\n"
        "def silent(prompt, rollout):\n    return float(rollout.logprobs.sum() > -1.0)\n"
    )
    file = written(tmp_path / "saved.jsonl", {"text": "1", "answer": "1"})
    with pytest.raises(DataError, match=r"saved.jsonl, line 1: there are no 'logprobs'.*; score a run folder"):
        scored(file, use=f"{tmp_path}/sure.py:asks_{workers}", workers=workers)
    (failed,) = scored(file, use=f"{tmp_path}/sure.py:silent", workers=workers)
    assert failed.outcome.cause == "raised"
    assert "has not said that it reads rollout.logprobs" in failed.outcome.detail


COUNTED = "def counted(prompt, rollout):\n    return 1 - len(rollout.tokens) / 10\n"
ADDED = "def added(prompt, rollout):\n    return float(rollout.tokens.sum() + 10 * prompt.tokens.sum())\n"


@pytest.mark.parametrize("workers", [0, 1])
def test_tokens_are_the_rows_own_or_an_error(tmp_path: Path, workers: int) -> None:
    """Never an empty array, which a reward of length would pay for."""
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
        assert "saved without the tokens that the reward reads; write them" in failed.outcome.detail
    *failed_, listed, _ = (s.outcome for s in scored(file, use=f"{tmp_path}/mine.py:added", workers=workers))
    assert [outcome.cause for outcome in failed_] == ["raised", "raised"]
    assert listed.reward == 21.0


def test_a_line_of_an_evaluation_earns_what_it_did(tmp_path: Path) -> None:
    """Its number of tokens, its end and its verdict stand beside its text."""
    (tmp_path / "mine.py").write_text(
        COUNTED + "def ended(prompt, rollout):\n    return float(rollout.finish == 'length')\n"
    )
    evaluated = {"prompt_id": "p7", "prompt": "?", "answer": "1", "text": "1", "length": 8, "finish": "length"}
    rows = [evaluated | {"kind": "wrong", "reward": 1 - 0.8}, evaluated | {"kind": "correct", "reward": 1.0}]
    file = written(tmp_path / "task.jsonl", *rows)
    found = scored(file, use=f"{tmp_path}/mine.py:counted")
    assert [(s.id, s.outcome.reward, s.was) for s in found] == [("p7", 1 - 0.8, "wrong"), ("p7", 1 - 0.8, "correct")]
    assert summary(found)[-2:] == [
        "1 of 2 verdicts differ from those in the file",
        "1 of 2 rewards differ: mean 0.200, in the file 0.600",
    ]
    assert [s.outcome.reward for s in scored(file, use=f"{tmp_path}/mine.py:ended")] == [1.0, 1.0]


def test_what_a_row_says_in_other_words_is_not_compared(tmp_path: Path) -> None:
    rows = [{"text": "1", "answer": "1", "kind": "addition", "reward": "high"}]
    (row,) = scored(written(tmp_path / "saved.jsonl", *rows))
    assert (row.was, row.earned) == (None, None)
    assert len(summary([row])) == 2


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"name a \.jsonl file or a run folder"):
        count_rows(tmp_path / "nothing.jsonl")


def test_a_runs_own_rollouts_score_as_they_did(smallest: Any) -> None:
    config = smallest()
    result = winnow.train(**config)
    found = scored(result.folder, use=config["reward"]["use"])
    rows = list(read_rows(result.folder))
    assert [s.outcome.reward for s in found] == [row["reward"] for row in rows]
    mean = sum(row["reward"] for row in rows) / len(rows)
    assert summary(found)[-2:] == [
        f"0 of {len(rows)} verdicts differ from those in the file",
        f"0 of {len(rows)} rewards differ: mean {mean:.3f}, in the file {mean:.3f}",
    ]
    assert any(s.outcome.kind != s.was for s in scored(result.folder, use="length"))
