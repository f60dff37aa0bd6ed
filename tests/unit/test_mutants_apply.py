"""The bugs of tests/mutants still fit the source; `scripts/mutants` shows that the suite catches each of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PATCHES = sorted((REPOSITORY / "tests" / "mutants").glob("*.patch"))


def header(patch: Path) -> tuple[str, list[str]]:
    """What the bug is, and the tests that are to fail."""
    before, _, _ = patch.read_text(encoding="utf-8").partition("\n--- ")
    bug, _, tests = before.partition("\nKills:")
    return " ".join(bug.split()), tests.split()


def test_there_are_mutants():
    assert len(PATCHES) >= 21


@pytest.mark.parametrize("patch", PATCHES, ids=lambda p: p.stem)
def test_a_patch_applies_to_the_source_alone(patch, tmp_path):
    """In a copy: git says nothing of a patch whose files lie outside the repository it is called in."""
    lines = patch.read_text(encoding="utf-8").splitlines()
    changed = [line.removeprefix("+++ b/") for line in lines if line.startswith("+++ ")]
    assert changed
    for name in changed:
        assert name.startswith("src/winnow/")
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((REPOSITORY / name).read_bytes())
    done = subprocess.run(["git", "apply", "--check", patch], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, f"make {patch.name} anew: {done.stderr}"


@pytest.mark.parametrize("patch", PATCHES, ids=lambda p: p.stem)
def test_a_patch_says_what_the_bug_is_and_which_tests_catch_it(patch):
    bug, tests = header(patch)
    assert len(bug.split()) >= 8
    assert bug.endswith(".")
    assert tests
    for test in tests:
        file, _, function = test.partition("::")
        source = REPOSITORY / file
        assert source.is_file(), test
        assert f"def {function.partition('[')[0]}(" in source.read_text(encoding="utf-8") or not function, test


def test_an_unknown_mutant_is_refused_with_the_names_that_exist():
    script = [sys.executable, REPOSITORY / "scripts" / "mutants.py", "no-such-mutant"]
    done = subprocess.run(script, capture_output=True, text=True)
    assert done.returncode == 2
    assert f"there is no mutant 'no-such-mutant'; known: {PATCHES[0].stem}" in done.stderr
