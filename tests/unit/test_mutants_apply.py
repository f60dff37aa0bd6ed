"""Lists the mutants of tests/mutants that no longer apply; `scripts/mutants` runs them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import mutants

MOST = 100  # each costs a run of its tests, and a change of the code that it describes


def test_every_mutant_names_tests_that_exist():
    known = mutants.read()
    assert len(known) <= MOST
    assert [(mutant.name, test) for mutant in known.values() for test in mutant.tests if not exists(test)] == []


def test_every_mutant_applies():
    stale = [why for mutant in mutants.read().values() if (why := mutants.why_not(mutant))]
    assert stale == [], "after a renaming: scripts/mutants --rename OLD NEW"


@pytest.mark.parametrize(
    ("table", "old", "new"),
    [
        ("algorithms", "_former_std", "_std"),  # the mutated function
        ("reporting", "former_line", "one_line"),  # a name in an edit
        ("algorithms", "winnow.algos.former", "winnow.algos.advantage"),  # a module
    ],
)
def test_a_renaming_rewrites_the_mutants_that_no_longer_apply(tmp_path, table, old, new):
    text = (mutants.TABLES / f"{table}.toml").read_text(encoding="utf-8")
    stale = re.sub(rf"(?<!\w){re.escape(new)}(?!\w)", old, text)
    (tmp_path / f"{table}.toml").write_text(stale, encoding="utf-8")
    assert mutants.rename("no_such_name", "no_such_name_too", tmp_path) == []
    assert mutants.rename(old, new, tmp_path)
    assert (tmp_path / f"{table}.toml").read_text(encoding="utf-8") == text != stale


def some(*, of: str) -> dict[str, mutants.Mutant]:
    """The mutants of a module and four others: to see whether a mutant applies, its module is parsed."""
    known = mutants.read().items()
    here = {name: mutant for name, mutant in known if mutant.function.startswith(f"{of}:")}
    return here | dict([(name, mutant) for name, mutant in known if name not in here][:4])


def test_a_mutant_that_no_longer_applies_is_always_tried(monkeypatch):
    stale = mutants.Mutant("stale", "", (), "winnow.algos.loss:no_such", ({"drop": "if"},))
    known = {**some(of="winnow.algos.loss"), "stale": stale}
    monkeypatch.setattr(mutants, "read", lambda: known)
    monkeypatch.setattr(mutants, "git", lambda *arguments: "README.md\n")
    assert mutants.chosen([], since="HEAD")[1:] == [stale]


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
    known = some(of="winnow.algos.loss")
    monkeypatch.setattr(mutants, "read", lambda: known)
    monkeypatch.setattr(mutants, "git", lambda *arguments: "src/winnow/algos/loss.py\nREADME.md\n")
    control, *others = mutants.chosen([], since="HEAD")
    assert not control.edits
    assert {mutant.function for mutant in others} == {"winnow.algos.loss:clip", "winnow.algos.loss:value_loss"}
    assert control.tests == tuple(dict.fromkeys(test for mutant in others for test in mutant.tests))
    assert len(mutants.chosen([], most=3)) == 4
