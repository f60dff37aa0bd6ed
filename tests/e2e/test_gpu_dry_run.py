"""The dry run of scripts/test-gpu: every part runs on a machine without a GPU, and writes what it promises."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import forked

REPOSITORY = Path(__file__).parents[2]
QUICK = ("update",)
MEASURING = ("generation", "layouts", "memory")
RUNS = ("tests", "published", "resume")  # a pytest, and runs: the suite has both without them


def script(python, parts, folder):
    """The script with this Python, in its dry run of some parts."""
    command = ["bash", str(REPOSITORY / "scripts" / "test-gpu"), "--dry-run", *parts, "--out", str(folder / "out")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHON": str(python), "TMPDIR": str(folder)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1100)


def written_by(parts, folder):
    """What the dry run of some parts has written, by part."""
    return read(script(sys.executable, parts, folder), parts, folder)


def read(done, parts, folder):
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    names = {path: path.stem.partition("_gpu_")[2].removesuffix("_dirty") for path in (folder / "out").iterdir()}
    written = {name: json.loads(path.read_text()) for path, name in names.items()}
    assert written.keys() == set(parts)
    assert not any("error" in found for found in written.values())
    return written


def test_the_script_hands_its_words_to_the_program_once_all_packages_are_found(tmp_path):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nif [ "$1" = - ]; then exec {sys.executable} "$@"; fi\necho "$@"\n')
    python.chmod(0o755)
    done = script(python, QUICK, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["benchmarks/gpu.py", "--dry-run", *QUICK, "--out", str(tmp_path / "out")]


@pytest.fixture
def copied(tmp_path):
    """A copy of the script, with a model in three files, and a Python whose `winnow fetch` copies its file."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(REPOSITORY / "scripts" / "test-gpu", tmp_path / "scripts")
    packed = tmp_path / ".published"
    packed.mkdir()
    for number, part in enumerate((b"first ", b"second ", b"third"), start=1):
        (packed / f"gguf.{number}").write_bytes(part)
    whole = hashlib.sha256(b"first second third").hexdigest()
    (packed / "SHA256SUMS").write_text(f"{whole}  ./model.gguf\n")
    (packed / "LICENSE").write_text("a licence")
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/sh\nif [ "$1" = - ]; then exit 0; fi\n'
        'if [ "$3" = fetch ]; then mkdir "$5" && cp "$4" "${4%/*}/LICENSE" "$5"; exit; fi\n'
        'echo "$@" "$WINNOW_PUBLISHED"\n'
    )
    python.chmod(0o755)

    def call(*arguments):
        environment = {name: value for name, value in os.environ.items() if name != "WINNOW_PUBLISHED"}
        command = ["bash", str(tmp_path / "scripts" / "test-gpu"), *arguments]
        return subprocess.run(command, env=environment | {"PYTHON": str(python)}, capture_output=True, text=True)

    return packed, call


def test_a_model_in_three_files_is_joined_once_and_named_to_the_parts(copied):
    packed, call = copied
    assert call("--unpack").stdout == ""
    assert (packed / "model" / "model.gguf").read_bytes() == b"first second third"
    assert (packed / "model" / "LICENSE").is_file()
    for number in (1, 2, 3):
        (packed / f"gguf.{number}").unlink()
    done = call("short", "--out", "here")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["benchmarks/gpu.py", "short", "--out", "here", str(packed / "model")]


@pytest.mark.parametrize("broken", [b"another ", None], ids=["damaged", "absent"])
def test_a_model_that_is_not_whole_is_not_used_and_the_parts_run(copied, broken):
    packed, call = copied
    (packed / "gguf.2").unlink()
    if broken is not None:
        (packed / "gguf.2").write_bytes(broken)
    done = call("short")
    assert done.returncode == 0
    assert ".published" in done.stderr
    assert done.stdout.split() == ["benchmarks/gpu.py", "short"]
    assert not (packed / "model").exists()


def test_a_part_that_measures_runs_in_its_smallest_size(tmp_path):
    """Without the script, in a fork."""
    arguments = ("--dry-run", *QUICK, "--out", tmp_path / "out")
    done = forked.python(REPOSITORY / "benchmarks" / "gpu.py", *arguments, env={"TMPDIR": str(tmp_path)})
    written = read(done, QUICK, tmp_path)
    assert all(record["tokens_per_second"] > 0 for record in written["update"]["records"])


@pytest.mark.slow  # most of a minute of computing; all parts start as the one above does
@pytest.mark.timeout(1200)
def test_the_other_parts_that_measure_run_in_their_smallest_size(tmp_path):
    written = written_by(MEASURING, tmp_path)
    sampled = {record["engine"] for record in written["generation"]["records"] if "tokens_per_second" in record}
    assert {"native", "generate"} <= sampled
    assert {record["layout"] for record in written["layouts"]["records"]} == {"padded", "packed"}
    assert all(record["tokens_per_second"] > 0 for record in written["layouts"]["records"])
    assert all(record["most_rollouts"] == 8 for record in written["memory"]["records"])


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_parts_that_train_and_test(tmp_path):
    """Half of the whole dry run's time; `scripts/test-gpu --dry-run` runs them too, before a machine is lent."""
    written = written_by(RUNS, tmp_path)
    assert written["tests"]["status"] == 0
    assert written["tests"]["passed"] == len(written["tests"]["tests"]) > 5
    assert written["resume"]["equal"] == "1 of 1"
    arms = written["published"]["records"]
    assert [(arm["sampled"], arm["trained"], arm["steps"]) for arm in arms] == [(4, 2, 1), (4, 4, 1)]
    assert [arm["counts"]["select/trained"] for arm in arms] == [2, 4]
    assert all(arm["seconds"]["update"] > 0 and len(arm["accuracy"]) == 2 for arm in arms)
