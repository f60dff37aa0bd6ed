from __future__ import annotations

import subprocess
import sys

import pytest

from refusals import refused
from winnow.errors import DataError, RunFolderError
from winnow_lab.sweep_folder import Contents, LedgerLine, SweepFolder, read_contents, read_sweep, run_of_sweep

TWO = Contents({"pods": {"steps": 4}, "grpo": {"select": "all"}}, seeds=(1, 0), baseline="grpo", inputs={})


def made(path, *entries):
    with SweepFolder.open(path, resume=False) as folder:
        folder.describe(TWO)
        for label, seed, status, alone in entries:
            folder.note(LedgerLine(label, seed, status, alone, None if status == "began" else 0))
    return path


def begun(folder, label, seed):
    run = folder / label / f"seed-{seed}"
    run.mkdir(parents=True)
    (run / "manifest.json").write_text("{}")
    return run


def test_runs_are_in_the_order_of_labels_and_seeds_and_not_finished(tmp_path):
    runs = read_sweep(made(tmp_path / "s"))

    assert [run.name for run in runs] == ["pods/seed-1", "pods/seed-0", "grpo/seed-1", "grpo/seed-0"]
    assert runs[0].path == tmp_path / "s" / "pods" / "seed-1"
    assert not any(run.finished or run.alone for run in runs)


def test_a_run_is_finished_by_its_last_launch_and_alone_by_all(tmp_path):
    folder = made(
        tmp_path / "s",
        *[("pods", 1, "began", True), ("pods", 1, "stopped", True), ("pods", 1, "finished", True)],
        *[("pods", 0, "began", False), ("pods", 0, "began", True), ("pods", 0, "finished", True)],
        *[("grpo", 1, "finished", True), ("grpo", 1, "failed", True)],
        ("grpo", 0, "finished", True),  # whose folder is gone
    )
    for label, seed in (("pods", 1), ("pods", 0), ("grpo", 1)):
        begun(folder, label, seed)

    assert [run.finished for run in read_sweep(folder)] == [True, True, False, False]
    assert [run.alone for run in read_sweep(folder)] == [True, False, True, True]


def test_the_run_of_a_sweep_is_found_from_its_folder(tmp_path):
    folder = made(tmp_path / "s")

    assert run_of_sweep(begun(folder, "grpo", 0)).name == "grpo/seed-0"
    assert run_of_sweep(folder / "other" / "seed-0") is None
    assert run_of_sweep(begun(tmp_path / "t", "grpo", 0)) is None


def test_a_used_folder_needs_a_resume_and_an_unused_one_a_start(tmp_path):
    folder = made(tmp_path / "s")
    with refused(RunFolderError, folder, 0, 4, key="output", code="run_folder.taken"):
        SweepFolder.open(folder, resume=False)
    with refused(RunFolderError, tmp_path / "new", code="run_folder.missing"):
        SweepFolder.open(tmp_path / "new", resume=True)
    (tmp_path / "notes.txt").write_text("mine")
    with refused(RunFolderError, "notes.txt, s", key="output", code="run_folder.foreign"):
        SweepFolder.open(tmp_path, resume=False)
    with SweepFolder.open(folder, resume=True) as resumed:
        assert resumed.before == TWO


def test_two_processes_cannot_launch_runs_in_one_folder(tmp_path):
    code = (
        "import pathlib, sys; from winnow.errors import WinnowError\n"
        "from winnow_lab.sweep_folder import SweepFolder\n"
        "try: SweepFolder.open(pathlib.Path(sys.argv[1]), resume=True)\n"
        "except WinnowError as error: print(error.code)"
    )
    with SweepFolder.open(made(tmp_path / "s"), resume=True):
        other = subprocess.run([sys.executable, "-c", code, str(tmp_path / "s")], capture_output=True, text=True)

    assert other.stdout == "run_folder.locked\n"


def test_an_incomplete_last_line_of_the_ledger_is_removed(tmp_path):
    folder = made(tmp_path / "s", ("pods", 1, "began", True))
    with (folder / "ledger.jsonl").open("a") as ledger:
        ledger.write('{"label": "pods", "se')
    assert read_sweep(folder)[0].alone
    with SweepFolder.open(folder, resume=True) as resumed:
        resumed.note(LedgerLine("pods", 1, "failed", False, 1))
    assert not read_sweep(folder)[0].alone


@pytest.mark.parametrize(
    "line",
    [
        '{"label": 1}',
        "[]",
        '{"label": [], "seed": 1, "status": "began", "alone": true}',
        '{"label": "pods", "seed": 1, "status": "begun", "alone": true}',
        '{"label": "pods", "seed": 1, "status": "began", "alone": true, "host": "a"}',
    ],
)
def test_a_wrong_line_of_the_ledger_is_refused_by_number(tmp_path, line):
    folder = made(tmp_path / "s")
    (folder / "ledger.jsonl").write_text(f"{line}\n")
    with refused(DataError, "ledger.jsonl, line 1", code="data.malformed"):
        read_sweep(folder)


@pytest.mark.parametrize(
    "text", ["3", '"winnow_sweep"', "[]", '{"winnow_sweep": 1, "labels": {}, "seeds": [0], "baseline": null}']
)
def test_a_file_that_describes_no_sweep_is_refused_by_its_name(tmp_path, text):
    (tmp_path / "sweep.json").write_text(text)
    with refused(RunFolderError, "sweep.json", code="run_folder.damaged"):
        read_contents(tmp_path)


def test_a_launch_that_was_cancelled_before_its_start_does_not_count(tmp_path):
    with SweepFolder.open(tmp_path / "s", resume=False) as folder:
        folder.describe(TWO)
        for status, alone, code in [("began", False, None), ("stopped", False, None), ("began", True, None)]:
            folder.note(LedgerLine("pods", 1, status, alone, code))

    assert [(run.launched, run.alone) for run in read_sweep(tmp_path / "s")] == [(True, True)] + [(False, False)] * 3
