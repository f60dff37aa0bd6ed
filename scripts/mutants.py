"""Put each bug of tests/mutants into a copy of the repository and see whether a test fails there.

    scripts/mutants                          all of them, and the unchanged copy, whose tests must pass
    scripts/mutants population-deviation clip-high-lost --jobs 1
    scripts/mutants --since REV --most 6     of those in files that changed since a revision, at most six
    scripts/mutants --rename OLD NEW         after a function or a module was renamed: rewrite the tables

A mutant is an entry of a table. `why` describes the bug and begins with "Shipped" if a release contained it.
`tests` are those that must fail. `edit` is one small change, or a list of them; mutant_edits.py lists the kinds:

    [[mutant]]
    name = "population-deviation"
    function = "winnow.algos.advantage:_std"
    edit = { constant = "1", by = "0" }
    tests = ["tests/oracle/test_advantage.py"]
    why = "Shipped by ...: the standard deviation has ddof 0."

Its tests run first, until one fails; with --full the whole suite follows if none does. The exit code is 1 if a mutant
survives, and 2 if one cannot be tried because its place does not exist or its tests cannot run. A mutant whose place
does not exist is always among those that are tried. A mutant is skipped, without an error, if no test fails and one of
its tests cannot run on this machine.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mutant_edits import CannotApply, mutated

REPOSITORY = Path(__file__).resolve().parents[1]
TABLES = REPOSITORY / "tests" / "mutants"
APPLY = "tests/unit/test_mutants_apply.py"  # excluded: in the mutated copy its own mutant no longer applies
CONTROL = "(unchanged)"
PASSED, FAILED = 0, 1  # pytest's exit codes for a verdict; any other code means that a test could not run
SECONDS_PER_TEST = "120"  # some bugs cause endless loops


class Untried(Exception):
    """The mutant could not be tried."""


class Skipped(Exception):
    """No test failed, and one of the tests that should fail does not run on this machine."""


@dataclass(frozen=True)
class Mutant:
    """A bug as edits of a function, or the control: no edit, and every test that a mutant names."""

    name: str
    why: str
    tests: tuple[str, ...]  # in pytest's syntax
    function: str = ""  # "package.module:name"
    edits: tuple[Mapping[str, str], ...] = ()

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Mutant:
        """A mutant from an entry of a table. Raises TypeError or KeyError."""
        edits = entry["edit"] if isinstance(entry["edit"], list) else [entry["edit"]]
        rest = {key: value for key, value in entry.items() if key != "edit"}
        return cls(**{**rest, "tests": tuple(entry["tests"]), "edits": tuple(edits)})

    def file_in(self, repository: Path) -> Path:
        """The path of its module."""
        module = repository / "src" / Path(*self.function.partition(":")[0].split("."))
        file = module.with_suffix(".py")  # first: caches of a former package may remain in its folder
        return file if file.is_file() else module / "__init__.py"


@dataclass(frozen=True)
class Verdict:
    """The result of a mutant."""

    name: str
    verdict: str  # killed, survived, skipped, passed (the control alone) or error
    by: str  # the test that failed, or why there is no verdict
    seconds: float


def read() -> dict[str, Mutant]:
    """Every mutant by name. Raises Untried for an invalid entry."""
    mutants: dict[str, Mutant] = {}
    for table in sorted(TABLES.glob("*.toml")):
        for entry in tomllib.loads(table.read_text(encoding="utf-8"))["mutant"]:
            try:
                mutant = Mutant.of(entry)
            except (KeyError, TypeError) as error:
                raise Untried(f"{table.name}: {entry.get('name', 'a mutant')}: {error}") from error
            if mutant.name in mutants:
                raise Untried(f"{table.name}: there are two mutants {mutant.name!r}")
            mutants[mutant.name] = mutant
    return mutants


def chosen(names: Sequence[str], *, since: str | None = None, most: int | None = None) -> list[Mutant]:
    """The mutants of these names, or all, after the control, which runs the tests of all of them.

    With `since` only those in files that changed since then; of more than `most`, a sample seeded by the revision. In
    both cases also those that no longer apply.
    """
    known = read()
    if unknown := [name for name in names if name not in known]:
        raise Untried(f"there is no mutant {unknown[0]!r}; known: {', '.join(sorted(known))}")
    mutants = [known[name] for name in names or sorted(known)]
    if since is not None:
        changed = set(git("diff", "--name-only", since).split())
        mutants = [one for one in mutants if one.file_in(REPOSITORY).relative_to(REPOSITORY).as_posix() in changed]
    if most is not None and len(mutants) > most:
        mutants = random.Random(git("rev-parse", "HEAD")).sample(mutants, most)
    if not names:
        mutants += [one for _, one in sorted(known.items()) if one not in mutants and why_not(one)]
    tests = dict.fromkeys(test for mutant in mutants for test in mutant.tests)
    return [Mutant(CONTROL, "", tuple(tests)), *mutants] if mutants else []


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True)
    if done.returncode != 0:
        raise Untried(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def try_out(mutant: Mutant, original: Path, *, full: bool) -> Verdict:
    """Copy the repository, apply the mutant, and run its tests."""
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="winnow-mutant-") as folder:
        try:
            copy = Path(folder) / "winnow"
            shutil.copytree(original, copy)
            if mutant.edits:
                mutant.file_in(copy).write_text(edited(mutant, copy), encoding="utf-8")
            by = first_failure(mutant.tests, copy)
            if by is None and full and mutant.edits:
                by = first_failure((f"--ignore={APPLY}",), copy)
            good, bad = ("survived", "killed") if mutant.edits else ("passed", "error")
            verdict = good if by is None else bad
        except Untried as error:
            verdict, by = "error", str(error)
        except Skipped as error:
            verdict, by = ("skipped" if mutant.edits else "passed"), str(error)
    return Verdict(mutant.name, verdict, by or "", time.perf_counter() - begin)


def copy_repository(target: Path) -> None:
    """Copy all files that git tracks or would track, as they are on the disk."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in set(listed.stdout.split("\0")):
        if (REPOSITORY / name).is_file():  # a deleted file is still listed
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, target / name)


def edited(mutant: Mutant, repository: Path) -> str:
    """The text of a mutant's module with the bug in it. Raises Untried if the mutant no longer applies."""
    try:
        text = mutant.file_in(repository).read_text(encoding="utf-8")
        return mutated(text, mutant.function.partition(":")[2], mutant.edits)
    except (CannotApply, FileNotFoundError) as error:
        raise Untried(f"{mutant.name} no longer applies to {mutant.function}: {error}; write it anew") from error


def why_not(mutant: Mutant) -> str:
    """Why a mutant no longer applies to this repository; empty if it does."""
    try:
        edited(mutant, REPOSITORY)
    except Untried as error:
        return str(error)
    return ""


def rename(old: str, new: str, tables: Path = TABLES) -> list[str]:
    """Write `new` for `old`, both names in code, in the mutants that no longer apply and then do. Returns their names.

    Only the function and the edits of a mutant change, not its name and its reason.
    """
    mended = []
    for table in sorted(tables.glob("*.toml")):
        head, *entries = re.split(r"(?m)^(?=\[\[mutant\]\])", table.read_text(encoding="utf-8"))
        for number, entry in enumerate(entries):
            lines = entry.splitlines(keepends=True)
            other = "".join(
                line if re.match("(name|why|tests) = ", line) else re.sub(rf"(?<!\w){re.escape(old)}(?!\w)", new, line)
                for line in lines
            )
            before, after = (Mutant.of(tomllib.loads(text)["mutant"][0]) for text in (entry, other))
            if before != after and why_not(before) and not why_not(after):
                entries[number] = other
                mended.append(after.name)
        table.write_text("".join([head, *entries]), encoding="utf-8")
    return mended


def first_failure(tests: Sequence[str], copy: Path) -> str | None:
    """The first test that fails in the copy; None if all pass. `tests` are in pytest's syntax. Raises Skipped."""
    imported = run_python(copy, "-c", "import winnow; print(winnow.__file__)")
    if not imported.stdout.startswith(str(copy)):
        raise Untried(f"winnow was imported from {imported.stdout.strip() or imported.stderr}, not from the copy")
    # a thread ends the process: an exception from a signal may strike where pytest cannot report it
    limit = ("--timeout", SECONDS_PER_TEST, "--timeout-method", "thread")
    done = run_python(copy, "-m", "pytest", "-x", "-p", "no:cacheprovider", *limit, *tests)
    if done.returncode == PASSED:
        if skipped := re.search(r"\b\d+ skipped\b", done.stdout):
            raise Skipped(skipped[0])
        return None
    if "+ Timeout +" in done.stdout:
        return f"a test that took more than {SECONDS_PER_TEST} s"
    named = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    if done.returncode != FAILED or named is None:
        raise Untried(f"pytest ended with status {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}")
    return named[1]


def run_python(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the copy, whose source precedes that of an editable install."""
    data = REPOSITORY.parent / "shared" / "data"
    environment = {"WINNOW_TEST_DATA": str(data), **os.environ, "PYTHONPATH": str(copy / "src")}
    return subprocess.run([sys.executable, *arguments], cwd=copy, env=environment, capture_output=True, text=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a mutant of the tables in tests/mutants")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time (default 2)")
    parser.add_argument("--full", action="store_true", help="run the whole suite on mutants that survive their tests")
    parser.add_argument("--since", metavar="REV", help="only mutants of files that changed since this revision")
    parser.add_argument("--rename", nargs=2, metavar=("OLD", "NEW"), help="rewrite the tables after a renaming")
    parser.add_argument("--most", type=int, help="maximum number of mutants; more are sampled")
    arguments = parser.parse_args()
    if arguments.rename:
        print("\n".join(rename(*arguments.rename)) or "no mutant applies again with the new name")
        return 0
    try:
        mutants = chosen(arguments.names, since=arguments.since, most=arguments.most)
    except Untried as error:
        print(error, file=sys.stderr)
        return 2
    if not mutants:
        print("no mutant is in a changed file")
        return 0
    begin, verdicts = time.perf_counter(), []
    width = max(len(mutant.name) for mutant in mutants)
    with tempfile.TemporaryDirectory(prefix="winnow-original-") as folder, ThreadPoolExecutor(arguments.jobs) as pool:
        original = Path(folder) / "winnow"  # a copy, so that edits during the run affect no mutant
        copy_repository(original)
        for verdict in pool.map(lambda mutant: try_out(mutant, original, full=arguments.full), mutants):
            verdicts.append(verdict)
            print(f"{verdict.name:{width}}  {verdict.verdict:8}  {verdict.seconds:5.0f} s  {verdict.by}", flush=True)
    killed = sum(verdict.verdict == "killed" for verdict in verdicts)
    print(f"{killed} of {len(mutants) - 1} mutants killed in {time.perf_counter() - begin:.0f} s")
    found = {verdict.verdict for verdict in verdicts}
    return 2 if "error" in found else 1 if "survived" in found else 0


if __name__ == "__main__":
    sys.exit(main())
