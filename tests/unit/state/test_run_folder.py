from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from refusals import refused
from winnow.errors import DataError, RunFolderError
from winnow.state.folder import RunFolder
from winnow.state.rollout_files import files_in
from winnow.state.saved_runs import read_manifest


def start(path, *, resume=False, **changes):
    """Start as a run does: lock the folder, then write the manifest."""
    folder = RunFolder.open(path, resume=resume)
    config = {"optimizer": {"learning_rate": 1e-4}, **changes}
    folder.record({"config": config, "versions": {"torch": "2.13.0"}})
    return folder


def listing(path):
    return {p.relative_to(path).as_posix(): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def test_a_new_folder_gets_a_manifest(tmp_path):
    with start(tmp_path / "deep" / "run") as folder:
        assert folder.before == {}

    written = json.loads((tmp_path / "deep" / "run" / "manifest.json").read_text())
    assert written["config"]["optimizer"]["learning_rate"] == 1e-4
    assert written["versions"] == {"torch": "2.13.0"}


def test_a_used_folder_is_refused_with_its_contents_and_two_remedies(tmp_path):
    start(tmp_path).close()
    (tmp_path / "metrics.jsonl").write_text('{"step":0}\n')
    (tmp_path / "checkpoints" / "step-000010").mkdir(parents=True)

    with refused(
        RunFolderError, "manifest.json", "metrics.jsonl", "step-000010", key="output", code="run_folder.taken"
    ) as error:
        start(tmp_path)

    assert all(word in error.value.remedy for word in ("resume", "output"))


DONE = '{"step":0,"budget/rollouts":8}\n'
EVALUATED = '{"step":0,"eval/seconds":1.0}\n'


@pytest.mark.parametrize("more", [[], ["metrics.jsonl"], ["metrics.jsonl", "rollouts", "checkpoints", "notes.txt"]])
def test_a_folder_is_new_until_a_launch_has_done_its_first_step(tmp_path, more):
    start(tmp_path).close()
    leave = {
        "metrics.jsonl": lambda path: path.write_text(EVALUATED + '{"step":0,"budget/rol'),
        "rollouts": lambda path: step_files(path, 0),
        "checkpoints": lambda path: (path / ".unfinished-step-000001").mkdir(parents=True),
        "notes.txt": lambda path: path.write_text("mine"),
    }
    for name in more:
        leave[name](tmp_path / name)
    start(tmp_path, seed=1).close()
    written = json.loads((tmp_path / "manifest.json").read_text())
    assert (written["config"]["seed"], written["changes"]) == (1, [])
    assert "notes.txt" not in more or (tmp_path / "notes.txt").read_text() == "mine"


def step_files(folder, *steps):
    folder.mkdir()
    for step in steps:
        (folder / f"step-{step:06d}.parquet").write_bytes(b"PAR1")


@pytest.mark.parametrize(
    "leave",
    [
        lambda run: (run / "metrics.jsonl").write_text(EVALUATED + DONE),
        lambda run: step_files(run / "rollouts", 0, 1),
        lambda run: (run / "rollouts").write_text("no folder"),
    ],
)
def test_a_folder_is_taken_once_a_launch_has_done_its_first_step(tmp_path, leave):
    start(tmp_path).close()
    leave(tmp_path)
    with refused(RunFolderError, tmp_path, key="output", code="run_folder.taken"):
        start(tmp_path)
    start(tmp_path, resume=True).close()


def test_a_pipe_in_place_of_a_log_is_not_read(tmp_path):
    start(tmp_path).close()
    os.mkfifo(tmp_path / "metrics.jsonl")
    with refused(RunFolderError, tmp_path, code="run_folder.taken"):
        start(tmp_path)


def test_a_log_that_cannot_be_listed_is_named(tmp_path):
    start(tmp_path / "run").close()
    (tmp_path / "run" / "rollouts").symlink_to("rollouts")
    with refused(RunFolderError, "rollouts", code="run_folder.unwritable"):
        RunFolder.open(tmp_path / "run", resume=False)
    with refused(DataError, "rollouts", code="data.unreadable"):
        files_in(tmp_path / "run")


def test_a_folder_in_place_of_the_manifest_is_named(tmp_path):
    (tmp_path / "run" / "manifest.json").mkdir(parents=True)
    with refused(RunFolderError, "manifest.json", code="run_folder.unreadable"):
        read_manifest(tmp_path / "run")
    assert list(files_in(tmp_path / "run")) == []


def test_a_refused_launch_leaves_the_folder_unlocked(tmp_path):
    start(tmp_path).close()
    (tmp_path / "metrics.jsonl").write_text(DONE)
    with refused(RunFolderError, code="run_folder.taken"):
        start(tmp_path)
    start(tmp_path, resume=True).close()


@pytest.mark.parametrize("name", ["notes.txt", "manifest.json"])
@pytest.mark.parametrize("resume", [False, True])
def test_a_foreign_folder_is_never_touched(tmp_path, name, resume):
    (tmp_path / name).write_text('{"name": "somebody else\'s"}')
    before = listing(tmp_path)

    with refused(RunFolderError, name, key="output", code="run_folder.foreign"):
        start(tmp_path, resume=resume)

    assert listing(tmp_path) == before


def test_a_file_is_not_a_folder(tmp_path):
    (tmp_path / "run").write_text("")
    with refused(RunFolderError, tmp_path / "run", key="output", code="run_folder.foreign"):
        start(tmp_path / "run")


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "run"
    with refused(RunFolderError, path, "Not a directory", key="output", code="run_folder.unwritable"):
        start(path)


@pytest.mark.parametrize("exists", [False, True])
def test_resuming_nothing_is_refused(tmp_path, exists):
    path = tmp_path if exists else tmp_path / "missing"
    with refused(RunFolderError, path, code="run_folder.missing"):
        start(path, resume=True)
    assert path.exists() == exists


def test_a_launch_interrupted_before_its_manifest_leaves_a_usable_folder(tmp_path):
    (tmp_path / ".lock").write_text("process 1 on gone\n")
    (tmp_path / ".manifest.json.draft").write_text('{"conf')
    start(tmp_path).close()


def test_a_second_launch_is_refused_with_the_process_of_the_first(tmp_path):
    with start(tmp_path):
        for resume in (False, True):
            with refused(RunFolderError, tmp_path, os.getpid(), code="run_folder.locked"):
                start(tmp_path, resume=resume)
    start(tmp_path, resume=True).close()


LAUNCH = """
import sys, pathlib
from winnow.errors import RunFolderError
from winnow.state.folder import RunFolder
sys.stdin.read(1)
try:
    RunFolder.open(pathlib.Path(sys.argv[1]), resume=False).record({"config": {}})
except RunFolderError:
    sys.exit(3)
print("running", flush=True)
sys.stdin.read()
"""


def test_of_two_simultaneous_launches_one_runs_and_sigkill_unlocks(tmp_path):
    run = tmp_path / "run"
    command = [sys.executable, "-c", LAUNCH, str(run)]
    launches = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)]
    for launch in launches:
        launch.stdin.write(b"go")
        launch.stdin.flush()
    printed = [launch.stdout.readline() for launch in launches]
    assert sorted(printed) == [b"", b"running\n"]

    winner = launches[printed.index(b"running\n")]
    winner.kill()
    codes = []
    for launch in launches:
        launch.stdin.close()
        codes.append(launch.wait(timeout=120))
        launch.stdout.close()
    assert sorted(codes) == [-signal.SIGKILL, 3]

    RunFolder.open(run, resume=True).close()


def test_a_forked_worker_does_not_keep_the_lock_of_its_trainer(tmp_path):
    folder = start(tmp_path)
    (until_closed, closing), (ready, ready_sender) = os.pipe(), os.pipe()
    worker = os.fork()
    if worker == 0:
        os.close(closing)
        os.write(ready_sender, b"!")
        os.read(until_closed, 1)
        os._exit(0)
    os.read(ready, 1)
    folder.close()  # as the kernel would at the trainer's death

    start(tmp_path, resume=True).close()

    for descriptor in (until_closed, closing, ready, ready_sender):
        os.close(descriptor)
    os.waitpid(worker, 0)


def test_the_modules_of_folder_manifest_and_logs_import_no_torch():
    modules = "winnow.state.folder, winnow.state.manifest, winnow.state.history, winnow.state.logbook"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("version", [2, 0, "1", None, [1]])
@pytest.mark.parametrize("resume", [False, True])
def test_a_manifest_of_another_format_is_refused_and_not_changed(tmp_path, version, resume):
    text = json.dumps({"winnow_run": version, "config": {}})
    (tmp_path / "manifest.json").write_text(text)
    with refused(RunFolderError, tmp_path / "manifest.json", repr(version), 1, code="run_folder.unreadable"):
        RunFolder.open(tmp_path, resume=resume)
    assert (tmp_path / "manifest.json").read_text() == text
