"""The folder of an evaluation: no file of the user is overwritten, and complete parts are kept."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

from refusals import refused
from winnow.config_file import validate
from winnow.errors import DataError, RunFolderError, resume_options
from winnow.evaluation.folder import EvaluationFolder, is_evaluation, read_rows, read_settings
from winnow.evaluation.run import PreparedTask

SETTINGS = {"tasks": {"t": {"config": {"seed": 1}, "prompts": "x"}}, "machine": {"torch": "2.13"}}


def row(i):
    return {
        "mode": "sampled", "prompt_id": f"p{i}", "prompt": "1 + 1?", "answer": "2", "task": "t", "meta": {}, "index": 0,
        "text": "2", "length": 1, "finish": "stop", "kind": "correct", "correct": True, "reward": 1.0, "parts": {},
        "answer_read": "2", "cause": None, "detail": "", "late": False,
    }  # fmt: skip


def opened(path, settings=SETTINGS, resume=False):
    return EvaluationFolder.open(path, settings, resume=resume)


def test_a_folder_that_is_not_empty_is_refused(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    for resume in (False, True):
        with refused(DataError, "mine.txt", code="data.exists"):
            opened(tmp_path, resume=resume)
    assert [path.name for path in tmp_path.iterdir() if path.name != ".lock"] == ["mine.txt"]
    (tmp_path / "file").write_text("")
    with refused(DataError, tmp_path / "file", code="data.unwritable"):
        opened(tmp_path / "file")


def test_complete_parts_are_kept_and_later_rows_removed(tmp_path):
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


def test_the_parts_of_an_evaluation_are_of_nearly_one_size():
    """An evaluation ends if all verdicts of a part fail: one bad problem is never the whole last part of many."""
    config = validate({"rollout": {"max_rollouts_at_once": 4}, "evaluate": {"rollouts_per_prompt": 2}})
    task = PreparedTask("t", SimpleNamespace(config=config), tuple(range(17)), 0, (), None, None)
    assert [len(part) for part in task.parts] == [6, 6, 5]


def test_an_evaluation_resumes_only_with_the_same_model_and_tasks(tmp_path):
    opened(tmp_path / "e").close()
    assert is_evaluation(tmp_path / "e")
    with refused(DataError, tmp_path / "e", code="data.exists") as caught:
        opened(tmp_path / "e")
    assert resume_options(caught.value) == {}  # the command line prints how to resume
    other = json.loads(json.dumps(SETTINGS))
    other["tasks"]["t"]["config"]["seed"] = 2
    with refused(DataError, "tasks.t.config.seed", code="data.changed"):
        opened(tmp_path / "e", other, resume=True)


def test_a_resume_may_raise_the_share_of_failures(tmp_path):
    """The error about too many of them advises it."""
    strict, loose = (
        {"tasks": {"t": {"config": {"verify": {"max_failure_share": share}}}}, "machine": {}} for share in (0.05, 0.5)
    )
    opened(tmp_path / "e", strict).close()
    opened(tmp_path / "e", loose, resume=True).close()


def test_a_resume_on_a_changed_machine_has_a_note_per_change(tmp_path):
    opened(tmp_path / "e").close()
    with opened(tmp_path / "e", {**SETTINGS, "machine": {"torch": "2.14"}}, resume=True) as folder:
        (note,) = folder.notes
    assert all(word in note for word in ("torch", "'2.13'", "'2.14'"))


def test_one_process_at_a_time(tmp_path):
    with opened(tmp_path / "e"), refused(RunFolderError, os.getpid(), code="run_folder.locked"):
        opened(tmp_path / "e", resume=True)


def test_unfinished_and_damaged_evaluations_are_refused(tmp_path):
    folder = tmp_path / "e"
    with opened(folder) as evaluation:
        evaluation.append("t", [row(0)])
        with refused(DataError, "t", 1, code="data.incomplete"):
            read_rows(folder, "t", 1)
        evaluation.finish({}, "report")
    assert read_rows(folder, "t", 1) == [row(0)]
    with refused(DataError, "t", 1, 2, code="data.incomplete"):
        read_rows(folder, "t", 2)
    for text in ('{"mode": 1}', json.dumps({**row(0), "length": "\x1b[31m"}), "[" * 100_000, "[]"):
        (folder / "t.jsonl").write_text(text + "\n")
        with refused(DataError, f"{folder / 't.jsonl'}:1", code="data.malformed"):
            read_rows(folder, "t", 1)
    for text, code in (("[]", "data.malformed"), ("[" * 100_000, "data.unreadable")):
        (folder / "settings.json").write_text(text)
        with refused(DataError, folder / "settings.json", code=code):
            read_settings(folder)
    with refused(DataError, tmp_path / "settings.json", code="data.unreadable"):
        read_settings(tmp_path)


def test_metrics_and_report_are_removed_when_rows_are_missing(tmp_path):
    with opened(tmp_path / "e") as folder:
        folder.append("t", [row(0), row(1)])
        folder.finish({}, "report")
        assert len(folder.complete_rows("t", [2])) == 2
        assert (tmp_path / "e" / "metrics.json").exists()
        assert len(folder.complete_rows("t", [2, 2])) == 2
    assert not (tmp_path / "e" / "metrics.json").exists()
    assert not (tmp_path / "e" / "report.txt").exists()
