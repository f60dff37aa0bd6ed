"""The bugs of tests/mutants still fit the source; `scripts/mutants` shows that the suite catches each of them."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
TABLES = sorted((REPOSITORY / "tests" / "mutants").glob("*.toml"))
MUTANTS = [mutant for table in TABLES for mutant in tomllib.loads(table.read_text(encoding="utf-8"))["mutant"]]


def test_there_are_mutants_and_each_has_a_name_of_its_own():
    assert len({mutant["name"] for mutant in MUTANTS}) == len(MUTANTS) >= 80


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant["name"])
def test_what_a_mutant_replaces_stands_in_the_source_once_and_what_it_leaves_is_python(mutant):
    left: dict[str, str] = {}
    for edit in mutant["edit"]:
        assert edit["file"].startswith("src/winnow/")
        assert edit["old"] != edit["new"]
        text = (REPOSITORY / edit["file"]).read_text(encoding="utf-8")
        found = text.count(edit["old"])
        assert found == 1, f"write {mutant['name']} anew: its text stands {found} times in {edit['file']}"
        left[edit["file"]] = left.get(edit["file"], text).replace(edit["old"], edit["new"])
    for file, text in left.items():
        if file.endswith(".py"):
            ast.parse(text, file)


def test_a_mutant_says_what_the_bug_is_and_which_tests_catch_it():
    for name, bug, kills in ((mutant["name"], mutant["bug"], mutant["kills"]) for mutant in MUTANTS):
        assert len(bug.split()) >= 8, name
        assert bug.endswith("."), name
        assert kills, name
        for test in kills:
            file, _, function = test.partition("::")
            source = REPOSITORY / file
            assert source.is_file(), test
            assert f"def {function.partition('[')[0]}(" in source.read_text(encoding="utf-8") or not function, test


def test_an_unknown_mutant_is_refused_with_the_names_that_exist():
    script = [sys.executable, REPOSITORY / "scripts" / "mutants.py", "no-such-mutant"]
    done = subprocess.run(script, capture_output=True, text=True)
    assert done.returncode == 2
    assert f"there is no mutant 'no-such-mutant'; known: {min(m['name'] for m in MUTANTS)}" in done.stderr
