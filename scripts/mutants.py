"""Put each bug of tests/mutants into a copy of the repository and see whether a test fails there.

    scripts/mutants                          all of them, and the unchanged copy, whose tests must pass
    scripts/mutants ddof-zero clip-high-lost --jobs 1

A patch begins with what the bug is and who shipped it, in one sentence, and the tests that are to fail:

    Kills: tests/oracle/test_advantage.py tests/e2e/test_train.py::test_the_budget_adds_up

Those run first, until one fails; with --full the whole suite follows where none does. Exits with 1 when a mutant
survives, with 2 when one cannot be tried: its patch no longer applies, or its tests cannot run.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PATCHES = REPOSITORY / "tests" / "mutants"
APPLY = "tests/unit/test_mutants_apply.py"  # no patch applies where it already has been
CONTROL = "(unchanged)"
PASSED, FAILED = 0, 1  # of pytest's exit codes, those that judge a test; the others say that it could not run
SECONDS_PER_TEST = "120"  # some bugs never end


class Untried(Exception):
    """The mutant could be neither killed nor let live."""


@dataclass(frozen=True)
class Mutant:
    """A bug as a patch, or the control: no patch, and every test that a mutant names."""

    name: str
    patch: Path | None
    bug: str
    kills: tuple[str, ...]  # tests, as pytest takes them


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant."""

    name: str
    verdict: str  # killed, survived, passed (the control alone) or error
    by: str  # the test that failed, or why nothing could be said
    seconds: float


def read(patch: Path) -> Mutant:
    """A patch's header. Raises Untried when the bug or its tests are not named."""
    header, diff, _ = patch.read_text(encoding="utf-8").partition("\n--- ")
    bug, kills, tests = header.partition("\nKills:")
    if not (bug.strip() and tests.split() and diff and kills):
        raise Untried(f"{patch.name}: a patch begins with a sentence and a line `Kills: tests/...`, then the diff")
    return Mutant(patch.stem, patch, " ".join(bug.split()), tuple(tests.split()))


def chosen(names: Sequence[str]) -> list[Mutant]:
    """The mutants of these names, or all, after the control that runs what all of them name."""
    patches = {patch.stem: patch for patch in sorted(PATCHES.glob("*.patch"))}
    if unknown := [name for name in names if name not in patches]:
        raise Untried(f"there is no mutant {unknown[0]!r}; known: {', '.join(patches)}")
    mutants = [read(patches[name]) for name in names or patches]
    tests = dict.fromkeys(test for mutant in mutants for test in mutant.kills)
    return [Mutant(CONTROL, None, "", tuple(tests)), *mutants]


def try_out(mutant: Mutant, original: Path, *, full: bool) -> Verdict:
    """Copy, patch, test."""
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="winnow-mutant-") as folder:
        try:
            copy = Path(folder) / "winnow"
            shutil.copytree(original, copy)
            apply(mutant, copy)
            by = first_failure(mutant.kills, copy)
            if by is None and full and mutant.patch is not None:
                by = first_failure((f"--ignore={APPLY}",), copy)
            verdict = judge(mutant, by)
        except Untried as error:
            verdict, by = "error", str(error)
    return Verdict(mutant.name, verdict, by or "", time.perf_counter() - begin)


def judge(mutant: Mutant, by: str | None) -> str:
    if mutant.patch is None:
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
    if mutant.patch is None:
        return
    # A repository around the copy would make git skip its files without a word.
    alone = {**os.environ, "GIT_CEILING_DIRECTORIES": str(copy.parent)}
    done = subprocess.run(["git", "apply", str(mutant.patch)], cwd=copy, env=alone, capture_output=True, text=True)
    if done.returncode != 0:
        raise Untried(f"{mutant.patch.name} no longer applies; make it anew: {done.stderr.strip()}")


def first_failure(tests: Sequence[str], copy: Path) -> str | None:
    """The first test that fails in the copy; None when all pass. `tests` as pytest takes them."""
    imported = run_python(copy, "-c", "import winnow; print(winnow.__file__)")
    if not imported.stdout.startswith(str(copy)):
        raise Untried(f"winnow was imported from {imported.stdout.strip() or imported.stderr}, not from the copy")
    done = run_python(copy, "-m", "pytest", "-x", "-p", "no:cacheprovider", "--timeout", SECONDS_PER_TEST, *tests)
    if done.returncode == PASSED:
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
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="a mutant: a patch of tests/mutants without its ending"
    )
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time (default 2)")
    parser.add_argument("--full", action="store_true", help="run the whole suite on what its own tests let live")
    arguments = parser.parse_args()
    try:
        mutants = chosen(arguments.names)
    except Untried as error:
        print(error, file=sys.stderr)
        return 2
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
