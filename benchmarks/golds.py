"""Does every gold of the seven files verify against itself, and what does a constant answer earn?

    python benchmarks/golds.py

Prints a table, names every gold that fails, and writes benchmarks/results/<date>_golds.json. Files and rewards are
those of FILES, which tests/unit/rewards/math_equivalence/test_math_golds.py checks too.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import dated
from math_pairs import DATA

import winnow.rewards  # noqa: F401  (registers them)
from winnow.commands.audit import Finding, constants, failing_golds, phrasing
from winnow.records import Problem
from winnow.registry import resolve
from winnow.tasks.gsm8k import gsm8k
from winnow.tasks.jsonl import jsonl
from winnow.tasks.math import math500
from winnow.verify import Verifiers

Load = Callable[[Path], list[Problem]]


def _jsonl(name: str, *, boxed: bool = False) -> Load:
    return lambda folder: jsonl("test", test=str(folder / f"{name}.jsonl"), question="problem", boxed=boxed)


def _gsm8k_train(folder: Path) -> list[Problem]:
    return gsm8k("train", path=str(folder)) + gsm8k("validation", path=str(folder))


FILES: dict[str, tuple[str, Load]] = {
    "gsm8k_train": ("gsm8k", _gsm8k_train),
    "gsm8k_test": ("gsm8k", lambda folder: gsm8k("test", path=str(folder))),
    "math500": ("boxed", lambda folder: math500("test", path=str(folder))),
    "minerva_math": ("boxed", _jsonl("minerva_math", boxed=True)),
    "olympiad_bench": ("boxed", _jsonl("olympiad_bench")),
    "aime24": ("boxed", _jsonl("aime24")),
    "amc23": ("boxed", _jsonl("amc23")),
}

# Golds that do not verify against themselves, by (file, gold), and why. At most 1% of a file.
KNOWN: dict[tuple[str, str], str] = {}


def check(name: str, folder: Path, *, workers: int = 1) -> tuple[list[Problem], list[Finding]]:
    """The problems of a file, and those of its golds that fail."""
    reward, load = FILES[name]
    problems = load(folder)
    with _verifiers(reward, workers) as verifiers:
        return problems, failing_golds(problems, phrasing(resolve("reward", reward)), verifiers)


def _verifiers(reward: str, workers: int) -> Verifiers:
    return Verifiers({"use": reward}, workers=workers, timeout_seconds=5.0, memory_mb=2048, max_failure_share=1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="the folder with the seven files")
    folder = parser.parse_args().data
    rows = []
    print(f"{'file':<16}{'reward':<9}{'golds':>6}{'fail':>6}{'percent':>9}   best constant")
    for name, (reward, _) in FILES.items():
        problems, failures = check(name, folder)
        with _verifiers(reward, 1) as verifiers:
            paid, (best, share) = constants(problems, phrasing(resolve("reward", reward)), verifiers)
        percent = 100 * len(failures) / len(problems)
        print(f"{name:<16}{reward:<9}{len(problems):>6}{len(failures):>6}{percent:>8.2f}%   {best!r} {share:.1%}")
        for failure in failures:
            print(f"    {failure.gold}: {KNOWN.get((name, failure.gold), failure.reason)}")
        row = {"file": name, "reward": reward, "golds": len(problems), "percent_failing": round(percent, 3)}
        row["failures"] = [[f.gold, KNOWN.get((name, f.gold), f.reason)] for f in failures]
        row |= {"constants_paid_without_being_the_gold": len(paid), "best_constant": [best, round(share, 4)]}
        rows.append(row)
    print(f"written: {dated.write('golds', {'files': rows}, packages=('winnow-rl', 'math-verify', 'sympy'))}")


if __name__ == "__main__":
    main()
