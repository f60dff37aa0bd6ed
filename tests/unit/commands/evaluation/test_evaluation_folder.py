"""The folder of an evaluation: nothing of the user's is overwritten, and what is written whole is kept."""

from __future__ import annotations

import json

import pytest

from winnow.commands.evaluation.evaluation_folder import EvaluationFolder
from winnow.errors import DataError, RunFolderError
from winnow.report.evaluations.saved_evaluation import is_evaluation, read_rows, read_settings

SETTINGS = {"tasks": {"t": {"config": {"seed": 1}, "prompts": "x"}}, "machine": {"torch": "2.13"}}


def row(i):
    return {
        "mode": "sampled", "prompt_id": f"p{i}", "prompt": "1 + 1?", "answer": "2", "task": "t", "meta": {}, "index": 0,
        "text": "2", "length": 1, "finish": "stop", "kind": "correct", "correct": True, "reward": 1.0, "parts": {},
        "answer_read": "2", "cause": None, "detail": "", "late": False,
    }  # fmt: skip


def opened(path, settings=SETTINGS, resume=False):
    return EvaluationFolder.open(path, settings, resume=resume)


def test_a_folder_with_anything_in_it_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    for resume in (False, True):
        with pytest.raises(DataError, match=r"already holds mine\.txt; choose another folder"):
            opened(tmp_path, resume=resume)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot use the folder"):
        opened(tmp_path / "file")


def test_parts_that_are_whole_are_kept_and_what_follows_is_removed(tmp_path):
    with opened(tmp_path / "e") as folder:
        folder.append("t", [row(i) for i in range(3)])
        folder.append("t", [row(i) for i in range(3, 5)])
    file = tmp_path / "e" / "t.jsonl"
    with file.open("ab") as end:
        end.write(json.dumps(row(5)).encode() + b"\n" + b'{"mode"')
    with opened(tmp_path / "e", resume=True) as folder:
        assert folder.complete_rows("t", [3, 2, 2]) == [row(i) for i in range(5)]
        assert len(file.read_bytes().splitlines()) == 5
        assert folder.complete_rows("t", [4, 4]) == [row(i) for i in range(4)]
        assert folder.complete_rows("t", [9]) == []
        assert file.read_bytes() == b""
        assert folder.complete_rows("other", [9]) == []


def test_an_evaluation_goes_on_only_with_the_same_questions(tmp_path):
    opened(tmp_path / "e").close()
    assert is_evaluation(tmp_path / "e")
    with pytest.raises(DataError, match=r"already holds an evaluation; resume it"):
        opened(tmp_path / "e")
    other = json.loads(json.dumps(SETTINGS))
    other["tasks"]["t"]["config"]["seed"] = 2
    with pytest.raises(DataError, match=r"asks otherwise: tasks\.t\.config\.seed differ; ask the same"):
        opened(tmp_path / "e", other, resume=True)
    with opened(tmp_path / "e", {**SETTINGS, "machine": {"torch": "2.14"}}, resume=True) as folder:
        assert folder.notes == (
            "torch was '2.13' when the evaluation began and is '2.14' now: the remaining rollouts may be others than "
            "they would have been",
        )


def test_one_process_at_a_time(tmp_path):
    with opened(tmp_path / "e"), pytest.raises(RunFolderError, match="is in use by process"):
        opened(tmp_path / "e", resume=True)


def test_what_is_not_finished_or_damaged_is_not_read(tmp_path):
    with opened(tmp_path / "e") as folder:
        folder.append("t", [row(0)])
        with pytest.raises(DataError, match="is not finished: t has 1 rollouts of 1; resume it"):
            read_rows(tmp_path / "e", "t", 1)
        folder.finish({}, "report")
    assert read_rows(tmp_path / "e", "t", 1) == [row(0)]
    with pytest.raises(DataError, match="is not finished: t has 1 rollouts of 2"):
        read_rows(tmp_path / "e", "t", 2)
    for text in ('{"mode": 1}', json.dumps({**row(0), "length": "\x1b[31m"}), "[" * 100_000, "[]"):
        (tmp_path / "e" / "t.jsonl").write_text(text + "\n")
        with pytest.raises(DataError, match=r"t\.jsonl:1: this line is no rollout"):
            read_rows(tmp_path / "e", "t", 1)
    for text in ("[]", "[" * 100_000):
        (tmp_path / "e" / "settings.json").write_text(text)
        with pytest.raises(DataError, match=r"settings\.json"):
            read_settings(tmp_path / "e")
    with pytest.raises(DataError, match="name the folder of an evaluation"):
        read_settings(tmp_path)


def test_numbers_of_what_has_to_go_on_are_removed(tmp_path):
    with opened(tmp_path / "e") as folder:
        folder.append("t", [row(0), row(1)])
        folder.finish({}, "report")
        assert len(folder.complete_rows("t", [2])) == 2
        assert (tmp_path / "e" / "metrics.json").exists()
        assert len(folder.complete_rows("t", [2, 2])) == 2
    assert not (tmp_path / "e" / "metrics.json").exists()
    assert not (tmp_path / "e" / "report.txt").exists()
