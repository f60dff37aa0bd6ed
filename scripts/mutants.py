"""Put each bug of tests/mutants into a copy of the repository and see whether a test fails there.

    scripts/mutants                          all of them, and the unchanged copy, whose tests must pass
    scripts/mutants ddof-zero clip-high-lost --jobs 1
    scripts/mutants --since REV --most 6     of those in files that changed since a revision, at most six

A mutant is an entry of a table: what the bug is and who shipped it, the tests that are to fail, and the text it
replaces, which must stand in its file exactly once:

    [[mutant]]
    name = "clip-high-lost"
    bug = "..."
    kills = ["tests/oracle/test_loss.py"]
    [[mutant.edit]]
    file = "src/winnow/algos/loss.py"
    old = "..."
    new = "..."

Its tests run first, until one fails; with --full the whole suite follows where none does. Exits with 1 when a mutant
survives, with 2 when one cannot be tried: its text is no longer there, or its tests cannot run. One that lives where a
test of it skips (there is no browser, say) is told and held against nobody.
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
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
TABLES = REPOSITORY / "tests" / "mutants"
APPLY = "tests/unit/test_mutants_apply.py"  # no mutant applies where it already has been
CONTROL = "(unchanged)"
PASSED, FAILED = 0, 1  # of pytest's exit codes, those that judge a test; the others say that it could not run
SECONDS_PER_TEST = "120"  # some bugs never end


class Untried(Exception):
    """The mutant could be neither killed nor let live."""


class Skipped(Exception):
    """No test failed, and one that was to fail does not run on this machine."""


@dataclass(frozen=True)
class Edit:
    """One replacement in one file."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutant:
    """A bug as edits, or the control: no edit, and every test that a mutant names."""

    name: str
    bug: str
    kills: tuple[str, ...]  # tests, as pytest takes them
    edits: tuple[Edit, ...]


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant."""

    name: str
    verdict: str  # killed, survived, skipped, passed (the control alone) or error
    by: str  # the test that failed, or why nothing could be said
    seconds: float


def read() -> dict[str, Mutant]:
    """Every mutant by name. Raises Untried for an entry that is not as it should be."""
    mutants: dict[str, Mutant] = {}
    for table in sorted(TABLES.glob("*.toml")):
        for entry in tomllib.loads(table.read_text(encoding="utf-8"))["mutant"]:
            try:
                edits = tuple(Edit(**edit) for edit in entry.pop("edit"))
                mutant = Mutant(edits=edits, **{**entry, "kills": tuple(entry["kills"])})
            except (KeyError, TypeError) as error:
                raise Untried(f"{table.name}: {entry.get('name', 'a mutant')}: {error}") from error
            if mutant.name in mutants:
                raise Untried(f"{table.name}: there are two mutants {mutant.name!r}")
            mutants[mutant.name] = mutant
    return mutants


def chosen(names: Sequence[str], *, since: str | None = None, most: int | None = None) -> list[Mutant]:
    """The mutants of these names, or all, after the control that runs what all of them name.

    With `since` only those in files that changed since then; of more than `most`, a sample that the revision decides.
    """
    known = read()
    if unknown := [name for name in names if name not in known]:
        raise Untried(f"there is no mutant {unknown[0]!r}; known: {', '.join(sorted(known))}")
    mutants = [known[name] for name in names or sorted(known)]
    if since is not None:
        changed = set(git("diff", "--name-only", since).split())
        mutants = [mutant for mutant in mutants if any(edit.file in changed for edit in mutant.edits)]
    if most is not None and len(mutants) > most:
        mutants = random.Random(git("rev-parse", "HEAD")).sample(mutants, most)
    tests = dict.fromkeys(test for mutant in mutants for test in mutant.kills)
    return [Mutant(CONTROL, "", tuple(tests), ()), *mutants] if mutants else []


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True)
    if done.returncode != 0:
        raise Untried(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def try_out(mutant: Mutant, original: Path, *, full: bool) -> Verdict:
    """Copy, patch, test."""
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="winnow-mutant-") as folder:
        try:
            copy = Path(folder) / "winnow"
            shutil.copytree(original, copy)
            apply(mutant, copy)
            by = first_failure(mutant.kills, copy)
            if by is None and full and mutant.edits:
                by = first_failure((f"--ignore={APPLY}",), copy)
            verdict = judge(mutant, by)
        except Untried as error:
            verdict, by = "error", str(error)
        except Skipped as error:
            verdict, by = ("skipped" if mutant.edits else "passed"), str(error)
    return Verdict(mutant.name, verdict, by or "", time.perf_counter() - begin)


def judge(mutant: Mutant, by: str | None) -> str:
    if not mutant.edits:
        return "passed" if by is None else "error"
    return "survived" if by is None else "killed"


def copy_repository(target: Path) -> None:
    """Everything that git tracks or would track, as it stands on the disk."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in set(listed.stdout.split("\0")):
        if (REPOSITORY / name).is_file():  # a deleted file is still listed
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, target / name)


def apply(mutant: Mutant, copy: Path) -> None:
    for edit in mutant.edits:
        text = (copy / edit.file).read_text(encoding="utf-8")
        if text.count(edit.old) != 1:
            raise Untried(f"{mutant.name}: its text stands {text.count(edit.old)} times in {edit.file}; write it anew")
        (copy / edit.file).write_text(text.replace(edit.old, edit.new), encoding="utf-8")


def first_failure(tests: Sequence[str], copy: Path) -> str | None:
    """The first test that fails in the copy; None when all pass. `tests` as pytest takes them. Raises Skipped."""
    imported = run_python(copy, "-c", "import winnow; print(winnow.__file__)")
    if not imported.stdout.startswith(str(copy)):
        raise Untried(f"winnow was imported from {imported.stdout.strip() or imported.stderr}, not from the copy")
    done = run_python(copy, "-m", "pytest", "-x", "-p", "no:cacheprovider", "--timeout", SECONDS_PER_TEST, *tests)
    if done.returncode == PASSED:
        if skipped := re.search(r"\b\d+ skipped\b", done.stdout):
            raise Skipped(skipped[0])
        return None
    named = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    if done.returncode != FAILED or named is None:
        raise Untried(f"pytest ended with status {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}")
    return named[1]


def run_python(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python in the copy, whose source goes before an editable install's."""
    data = REPOSITORY.parent / "shared" / "data"
    environment = {"WINNOW_TEST_DATA": str(data), **os.environ, "PYTHONPATH": str(copy / "src")}
    return subprocess.run([sys.executable, *arguments], cwd=copy, env=environment, capture_output=True, text=True)


def row(verdict: Verdict, width: int) -> str:
    return f"{verdict.name:{width}}  {verdict.verdict:8}  {verdict.seconds:5.0f} s  {verdict.by}"


def status(verdicts: Sequence[Verdict]) -> int:
    found = {verdict.verdict for verdict in verdicts}
    return 2 if "error" in found else 1 if "survived" in found else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a mutant of the tables in tests/mutants")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time (default 2)")
    parser.add_argument("--full", action="store_true", help="run the whole suite on what its own tests let live")
    parser.add_argument("--since", metavar="REV", help="only mutants of files that changed since this revision")
    parser.add_argument("--most", type=int, help="a sample of at most so many")
    arguments = parser.parse_args()
    try:
        mutants = chosen(arguments.names, since=arguments.since, most=arguments.most)
    except Untried as error:
        print(error, file=sys.stderr)
        return 2
    if not mutants:
        print("no mutant lies in a file that changed")
        return 0
    begin, verdicts = time.perf_counter(), []
    width = max(len(mutant.name) for mutant in mutants)
    with tempfile.TemporaryDirectory(prefix="winnow-original-") as folder, ThreadPoolExecutor(arguments.jobs) as pool:
        original = Path(folder) / "winnow"  # so that work that goes on meanwhile concerns no mutant
        copy_repository(original)
        for verdict in pool.map(lambda mutant: try_out(mutant, original, full=arguments.full), mutants):
            verdicts.append(verdict)
            print(row(verdict, width), flush=True)
    killed = sum(verdict.verdict == "killed" for verdict in verdicts)
    print(f"{killed} of {len(mutants) - 1} mutants killed in {time.perf_counter() - begin:.0f} s")
    return status(verdicts)


if __name__ == "__main__":
    sys.exit(main())
