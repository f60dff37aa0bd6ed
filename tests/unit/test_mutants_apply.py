"""Lists the mutants of tests/mutants that no longer apply; `scripts/mutants` runs them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import mutants

MOST = 100  # each costs a run of its tests, and a change of the code that it describes


def test_every_mutant_applies_and_names_tests_that_exist():
    known = mutants.read()
    assert len(known) <= MOST
    wrong = []
    for mutant in known.values():
        wrong += [f"{mutant.name}: there is no test {test}" for test in mutant.tests if not exists(test)]
        try:
            mutants.edited(mutant, mutants.REPOSITORY)
        except mutants.Untried as error:
            wrong.append(str(error))
    assert wrong == []


def exists(test: str) -> bool:
    file, _, function = test.partition("::")
    source = mutants.REPOSITORY / file
    return source.is_file() and f"def {function.partition('[')[0]}" in source.read_text(encoding="utf-8")


def test_a_mutant_of_a_module_that_is_gone_is_reported():
    mutant = mutants.Mutant("one", "", (), "winnow.no_such_module:f", ({"drop": "if"},))
    with pytest.raises(mutants.Untried, match="one"):
        mutants.edited(mutant, mutants.REPOSITORY)


def test_an_unknown_mutant_is_refused_with_the_names_that_exist():
    with pytest.raises(mutants.Untried, match=min(mutants.read())):
        mutants.chosen(["no-such-mutant"])


def test_only_the_mutants_of_changed_files_are_chosen(monkeypatch):
    monkeypatch.setattr(mutants, "git", lambda *arguments: "src/winnow/algos/loss.py\nREADME.md\n")
    control, *others = mutants.chosen([], since="HEAD")
    assert not control.edits
    assert {mutant.function for mutant in others} == {"winnow.algos.loss:clip"}
    assert control.tests == tuple(dict.fromkeys(test for mutant in others for test in mutant.tests))
    assert len(mutants.chosen([], most=3)) == 4
