from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from winnow.errors import RunFolderError
from winnow.state.folder import RunFolder


def manifest(**changes):
    config = {
        "seed": 0,
        "steps": 100,
        "output": "runs/a",
        "optimizer": {"learning_rate": 1e-4},
        "select": [{"use": "x"}],
    }
    return {"config": {**config, **changes}, "versions": {"torch": "2.13.0"}, "threads": 1}


def start(path, *, resume=False, **changes):
    return RunFolder.open(path, resume=resume, manifest=manifest(**changes))


def listing(path):
    return {p.relative_to(path).as_posix(): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def test_a_new_folder_gets_a_manifest(tmp_path):
    with start(tmp_path / "deep" / "run") as folder:
        assert folder.notices == ()

    written = json.loads((tmp_path / "deep" / "run" / "manifest.json").read_text())
    assert written["config"]["optimizer"]["learning_rate"] == 1e-4
    assert written["versions"] == {"torch": "2.13.0"}


def test_a_used_folder_is_refused_with_its_contents_and_both_ways_out(tmp_path):
    start(tmp_path).close()
    (tmp_path / "metrics.jsonl").write_text('{"step":0}\n')
    (tmp_path / "checkpoints" / "step-000010").mkdir(parents=True)

    with pytest.raises(RunFolderError) as error:
        start(tmp_path)

    for word in ("manifest.json, metrics.jsonl", "step-000010", "--resume", "--set output="):
        assert word in str(error.value)


def test_a_launch_that_ended_before_its_first_row_leaves_the_folder_new(tmp_path):
    start(tmp_path).close()
    start(tmp_path, seed=1).close()
    written = json.loads((tmp_path / "manifest.json").read_text())
    assert (written["config"]["seed"], written["changes"]) == (1, [])


def test_a_refused_launch_leaves_the_folder_unlocked(tmp_path):
    start(tmp_path).close()
    (tmp_path / "metrics.jsonl").write_text('{"step":0}\n')
    with pytest.raises(RunFolderError):
        start(tmp_path)
    start(tmp_path, resume=True).close()


@pytest.mark.parametrize("name", ["notes.txt", "manifest.json"])
@pytest.mark.parametrize("resume", [False, True])
def test_a_foreign_folder_is_never_touched(tmp_path, name, resume):
    (tmp_path / name).write_text('{"name": "somebody else\'s"}')
    before = listing(tmp_path)

    with pytest.raises(RunFolderError, match=f"not a winnow run.*{name}"):
        start(tmp_path, resume=resume)

    assert listing(tmp_path) == before


def test_a_file_is_not_a_folder(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(RunFolderError, match="is a file"):
        start(tmp_path / "run")


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match=r"cannot use the run folder .*Not a directory"):
        start(tmp_path / "file" / "run")


@pytest.mark.parametrize("exists", [False, True])
def test_resuming_nothing_is_refused(tmp_path, exists):
    path = tmp_path if exists else tmp_path / "missing"
    with pytest.raises(RunFolderError, match="no run to resume"):
        start(path, resume=True)
    assert path.exists() == exists


def test_a_launch_killed_before_its_manifest_leaves_a_usable_folder(tmp_path):
    (tmp_path / ".lock").write_text("process 1 on gone\n")
    (tmp_path / ".manifest.json.draft").write_text('{"conf')
    start(tmp_path).close()


def test_resume_names_every_key_that_differs(tmp_path):
    start(tmp_path).close()
    before = listing(tmp_path)

    with pytest.raises(RunFolderError) as error:
        start(tmp_path, resume=True, seed=1, optimizer={"learning_rate": 1e-3}, select=[])

    assert "seed was 0 and is now 1" in str(error.value)
    assert "optimizer.learning_rate was 0.0001 and is now 0.001" in str(error.value)
    assert "select was [{'use': 'x'}] and is now []" in str(error.value)
    assert listing(tmp_path) == before


def test_a_key_that_only_one_side_has_differs(tmp_path):
    start(tmp_path).close()
    with pytest.raises(RunFolderError, match="extra was None and is now 3"):
        start(tmp_path, resume=True, extra=3)


def test_resume_allows_more_steps_and_tells_what_changed(tmp_path):
    start(tmp_path).close()
    new = manifest(steps=200, output="runs/moved", checkpoint={"every": 5})
    new["versions"]["torch"] = "2.11.0"
    new["threads"] = 2

    with RunFolder.open(tmp_path, resume=True, manifest=new) as folder:
        assert [notice.partition(";")[0] for notice in folder.notices] == [
            "steps was 100 and is now 200",
            "checkpoint was None and is now {'every': 5}",
            "versions.torch was '2.13.0' and is now '2.11.0'",
            "threads was 1 and is now 2",
        ]

    written = json.loads((tmp_path / "manifest.json").read_text())
    assert written["config"]["steps"] == 200
    assert written["changes"] == list(folder.notices)


def test_a_second_launch_is_refused_and_told_who_holds_the_folder(tmp_path):
    with start(tmp_path):
        for resume in (False, True):
            with pytest.raises(RunFolderError, match=f"in use by process {os.getpid()} on "):
                start(tmp_path, resume=resume)
    start(tmp_path, resume=True).close()


LAUNCH = """
import sys, pathlib
from winnow.errors import RunFolderError
from winnow.state.folder import RunFolder
sys.stdin.read(1)
try:
    RunFolder.open(pathlib.Path(sys.argv[1]), resume=False, manifest={"config": {}})
except RunFolderError:
    sys.exit(3)
print("running", flush=True)
sys.stdin.read()
"""


def test_of_two_simultaneous_launches_exactly_one_runs_and_death_frees_the_folder(tmp_path):
    run = tmp_path / "run"
    command = [sys.executable, "-c", LAUNCH, str(run)]
    launches = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)]
    for launch in launches:
        launch.stdin.write(b"go")
        launch.stdin.flush()
    heard = [launch.stdout.readline() for launch in launches]
    assert sorted(heard) == [b"", b"running\n"]

    winner = launches[heard.index(b"running\n")]
    winner.kill()
    codes = []
    for launch in launches:
        launch.stdin.close()
        codes.append(launch.wait(timeout=120))
        launch.stdout.close()
    assert sorted(codes) == [-signal.SIGKILL, 3]

    RunFolder.open(run, resume=True, manifest={"config": {}}).close()


def test_a_forked_worker_does_not_keep_the_folder_of_a_dead_trainer(tmp_path):
    folder = start(tmp_path)
    (until_closed, closing), (ready, say_ready) = os.pipe(), os.pipe()
    worker = os.fork()
    if worker == 0:
        os.close(closing)
        os.write(say_ready, b"!")
        os.read(until_closed, 1)
        os._exit(0)
    os.read(ready, 1)
    folder.close()  # as the kernel would at the trainer's death

    start(tmp_path, resume=True).close()

    for descriptor in (until_closed, closing, ready, say_ready):
        os.close(descriptor)
    os.waitpid(worker, 0)


def test_the_door_and_the_readers_import_no_torch():
    modules = "winnow.state.folder, winnow.state.history, winnow.state.logbook"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
