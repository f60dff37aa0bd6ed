"""scripts/published-model keeps a complete folder, refuses another one, and leaves nothing where it fails."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
SCRIPT = REPOSITORY / "scripts" / "published-model"
NO_PIP = 'case "$*" in *pip*) exit 9;; esac\n'  # no test installs anything
OTHER_WEIGHTS = '#!/bin/sh\nmkdir -p "$3"\necho other > "$3/model.safetensors"\n'  # another file than expected


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


def test_winnow_is_not_installed_again_into_an_environment_that_has_it(run, tmp_path, monkeypatch):
    """Without a stamp, as after `pip install -e .`: the environment's Python imports this clone."""
    empty = tmp_path / "empty"
    empty.mkdir()
    for name in ("pyarrow", "scipy", "torch", "transformers"):  # each is imported there, which takes seconds
        (empty / f"{name}.py").touch()
    monkeypatch.setenv("PYTHONPATH", f"{empty}{os.pathsep}{REPOSITORY / 'src'}")
    (tmp_path / "venv" / ".winnow-installed").unlink()
    done = run(str(tmp_path / "model"), winnow=OTHER_WEIGHTS, python=f'#!/bin/sh\n{NO_PIP}exec {sys.executable} "$@"\n')
    assert "expects" in done.stderr  # it has reached the model
    assert "installing winnow" not in done.stdout


def test_winnow_is_installed_into_an_environment_without_it(run, tmp_path):
    (tmp_path / "venv" / ".winnow-installed").unlink()
    done = run(str(tmp_path / "model"), winnow=OTHER_WEIGHTS, python=f"#!/bin/sh\n{NO_PIP}exit 1\n")
    assert "installing winnow" in done.stdout
    assert done.returncode == 9


def test_the_card_of_the_package_s_model_has_the_model_s_name(tmp_path):
    """The script's edit of the card that `winnow fetch` writes for a GGUF file."""
    (command,) = (line.strip() for line in SCRIPT.read_text().splitlines() if line.strip().startswith("sed -i"))
    card = tmp_path / "README.md"
    card.write_text("# Another name\n\n- organization: A\n- licence: B\n")
    subprocess.run(["bash", "-c", f"model={tmp_path}; {command}"], check=True)
    assert card.read_text().splitlines() == [
        "# SmolLM2-135M-Instruct", "", "- name in the file: Another name", "- organization: A", "- licence: B",
    ]  # fmt: skip


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
        {"winnow": OTHER_WEIGHTS},
    ],
    ids=["no source", "other weights"],
)
def test_nothing_is_left_where_it_fails(programs, run, tmp_path):
    done = run(str(tmp_path / "cache" / "model"), **programs)
    assert done.returncode not in (0, 2)
    assert list((tmp_path / "cache").iterdir()) == []


def test_an_environment_belongs_to_the_clone_that_was_installed_last(tmp_path):
    venv, log = tmp_path / "venv", tmp_path / "log"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").write_text('#!/bin/sh\necho "$PWD $*" >>"$LOG"\n')
    (venv / "bin" / "python").chmod(0o755)
    one, two = tmp_path / "one", tmp_path / "two"
    for clone in (one, two):
        (clone / "scripts").mkdir(parents=True)
        for name in ("pyproject.toml", "constraints.txt", "scripts/environment"):
            shutil.copy(REPOSITORY / name, clone / name)
    path = f"{venv / 'bin'}:{os.environ['PATH']}"
    env = {**os.environ, "VIRTUAL_ENV": str(venv), "PATH": path, "LOG": str(log)}
    act = ["bash", "-euo", "pipefail", "-c", "source scripts/environment; install_winnow test"]
    for clone in (one, one, two, one):
        subprocess.run(act, cwd=clone, env=env, check=True, capture_output=True)
    assert [line.split()[0] for line in log.read_text().splitlines() if " -e " in line] == [*map(str, (one, two, one))]


def made_by(folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """scripts/environment in a folder, without an active environment."""
    env = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"} | more
    command = ["bash", "-eu", "-c", f"source '{REPOSITORY}/scripts/environment'"]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)


def test_an_environment_of_another_folder_is_refused(tmp_path):
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / ".venv" / "bin" / "activate").write_text("export VIRTUAL_ENV=/elsewhere/.venv\n")
    done = made_by(tmp_path)
    assert (done.returncode, "/elsewhere/.venv" in done.stderr) == (2, True)


def test_an_old_python_is_refused_before_an_environment_is_made(tmp_path):
    old = tmp_path / "python"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    done = made_by(tmp_path, PYTHON=str(old))
    assert (done.returncode, "3.11" in done.stderr, (tmp_path / ".venv").exists()) == (2, True, False)


def test_the_page_of_durations_stays_where_no_new_one_can_be_made(tmp_path):
    for name in ("scripts", "tests"):
        (tmp_path / name).mkdir()
    for name, text in {"test": "#!/bin/sh\n", "environment": "", "durations.py": "raise SystemExit(1)\n"}.items():
        (tmp_path / "scripts" / name).write_text(text)
        (tmp_path / "scripts" / name).chmod(0o755)
    shutil.copy(REPOSITORY / "scripts" / "durations", tmp_path / "scripts")
    (tmp_path / "tests" / "durations.md").write_text("old")
    assert subprocess.run([tmp_path / "scripts" / "durations"]).returncode != 0
    assert (tmp_path / "tests" / "durations.md").read_text() == "old"
