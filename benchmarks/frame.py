"""Shared parts of the benchmarks: options, threads, contestants in turns, and dated results.

A result is benchmarks/results/<date>_<name>.json, with the settings that reproduce it. A tree with uncommitted changes
is refused before a measurement; with --dirty it is measured, and the file's name ends in _dirty.

With --quick, a benchmark runs with the settings of benchmarks/quick.py, which take seconds and measure nothing: this
shows that it still runs. Its result is written to a temporary folder and removed.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import os
import platform
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import quick

HERE = Path(__file__).parent
RESULTS = HERE / "results"
MEASURED = (  # paths that a measurement depends on; pages and results may have uncommitted changes
    *("src", "benchmarks", "configs", "examples", "scripts", "tests", "pyproject.toml", "constraints.txt"),
    *(":(exclude)benchmarks/results", ":(exclude)tests/documentation"),
)
DIRTY = " with uncommitted changes"
QUICK = "WINNOW_QUICK_BENCHMARK"  # set in the environment with --quick, so that no process writes a result
COMMIT = "WINNOW_MEASURED_COMMIT"  # set in the environment by begin(), so that a benchmark's processes inherit it
PACKAGES = ("winnow-rl", "torch", "transformers")
# Freed memory is returned to the system at once.
AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
T = TypeVar("T")
Turn = dict[str, tuple[T, float]]  # contestant -> its result and its seconds


def parser(doc: str | None, **integers: int | tuple[int, str]) -> argparse.ArgumentParser:
    """A parser with --dirty and options for integers: `max_tokens=(64, "of a rollout")` is --max-tokens, default 64."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in integers.items():
        value, meaning = default if isinstance(default, tuple) else (default, None)
        made.add_argument(f"--{name.replace('_', '-')}", type=int, default=value, help=meaning)
    made.add_argument("--dirty", action="store_true", help="measure although there are uncommitted changes")
    made.add_argument("--quick", action="store_true", help="run in seconds, with tiny settings; keep no result")
    return made


def parse(made: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the options. If `threads` is one of them, torch uses that many.

    Calls `begin`, except if there is an option `write` that was not given.
    """
    if "--quick" in sys.argv[1:]:
        os.environ[QUICK] = "1"
        _make_quick(made)
    options = made.parse_args()
    if getattr(options, "write", True):
        begin(dirty=options.dirty)
    if "threads" in options:
        import torch  # imported late: the sandbox's programs are timed from a process without torch

        torch.set_num_threads(options.threads)
    return options


def _make_quick(made: argparse.ArgumentParser) -> None:
    """Give the options their quick settings as defaults, also those that are required otherwise."""
    settings = quick.settings_of(Path(sys.argv[0]).stem)
    for action in made._actions:
        if action.dest in settings:
            action.default, action.required = settings.pop(action.dest), False
            if not action.option_strings:
                action.nargs = "*" if action.nargs in ("+", "*") else "?"
    if settings:
        raise SystemExit(f"benchmarks/quick.py has settings that are no options here: {', '.join(settings)}")


def begin(*, dirty: bool) -> None:
    """Record the measured commit. Exits if the tree has uncommitted changes, unless they are accepted."""
    if COMMIT in os.environ or QUICK in os.environ:
        return
    changes = _git("status", "--porcelain", "--untracked-files=all", "--", *MEASURED).splitlines()
    if changes and not dirty:
        shown = "\n".join(changes[:10])
        sys.exit(f"the result would describe no commit; commit these changes, or measure with --dirty:\n{shown}")
    head = _git("rev-parse", "HEAD").strip() or "unknown: no git history here"
    os.environ[COMMIT] = head + DIRTY * bool(changes)


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """Call the work. Returns its result and its seconds."""
    start = time.perf_counter()
    return work(), time.perf_counter() - start


def paired(rounds: int, contestants: Mapping[str, Callable[[int], T]], *, warm_up: int = 1) -> list[Turn[T]]:
    """Run all contestants in turn, for `rounds` rounds in one process, so that a busy machine slows all of them.

    The seed is the number of the round, from 1; it is 0 for the warm-up, which is omitted from the result.
    """
    for contestant in contestants.values():
        for _ in range(warm_up):
            contestant(0)
    return [
        {name: timed(lambda run=run, seed=seed: run(seed)) for name, run in contestants.items()}  # type: ignore[misc]
        for seed in range(1, rounds + 1)
    ]


def median_ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """The median over the rounds of the ratio within a round."""
    return round(statistics.median(a / b for a, b in zip(above, below, strict=True)), 3)


def median(values: Sequence[float], digits: int = 5) -> float:
    """The values, rounded."""
    return round(statistics.median(values), digits)


def runs_of(folder: Path) -> Iterator[tuple[str, int, list[dict[str, float]]]]:
    """(label, seed, rows of its metrics) of every run in the folder of a sweep that has begun."""
    from winnow.state.logbook import read_metrics  # imported late, as torch is above

    for path in sorted(folder.glob("*/seed-*/metrics.jsonl")):
        yield path.parts[-3], int(path.parts[-2].removeprefix("seed-")), read_metrics(path.parent)


def interval(values: Sequence[float]) -> dict[str, float]:
    """The mean over seeds, and its 95% interval."""
    import numpy as np

    from winnow.algos.intervals import over_seeds

    low, high = over_seeds(np.array(values))
    return {"mean": round(statistics.fmean(values), 5), "low": round(low, 5), "high": round(high, 5)}


def finish(
    name: str,
    report: Mapping[str, Any],
    options: argparse.Namespace | None = None,
    *,
    packages: Sequence[str] = PACKAGES,
    show: Sequence[str] = (),
) -> None:
    """Print parts of the report, and write it with the options as its settings."""
    if show:
        print(json.dumps({part: report[part] for part in show}, indent=1))
    given = {name: _shared(value) for name, value in vars(options or argparse.Namespace()).items() if name != "quick"}
    settings = {"settings": given} if options is not None else {}
    print(f"written: {write(name, settings | dict(report), packages=packages)}")


def write(
    name: str, report: Mapping[str, Any], *, packages: Sequence[str] = PACKAGES, folder: Path | None = None
) -> Path:
    """Date, command, commit, versions and hardware, then the report itself; in `folder`, else benchmarks/results.

    Calls `begin` without --dirty if the script has not. In quick form, the file is removed with its temporary folder.
    """
    begin(dirty=False)
    if QUICK in os.environ:
        folder = quick.folder()
    full = {
        "date": datetime.date.today().isoformat(),
        "command": shlex.join(["python", *map(_shared, sys.argv)]),
        "commit": os.environ.get(COMMIT, "quick"),
        "versions": {"python": platform.python_version(), **{package: _version(package) for package in packages}},
        "hardware": {
            "machine": platform.machine(),
            "kernel": platform.release(),
            "cpu": cpu(),
            "cores": os.cpu_count(),
            "load_average": os.getloadavg(),
        },
        **report,
    }
    path = _free(folder or RESULTS, f"{full['date']}_{name}{'_dirty' if full['commit'].endswith(DIRTY) else ''}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(full, indent=1, ensure_ascii=True) + "\n", encoding="ascii")
    return path


@functools.cache  # within one run, a second write replaces the first
def _free(folder: Path, name: str) -> Path:
    """A path that does not overwrite the result of another run: the second one of a day is <name>_2."""
    stems = (name, *(f"{name}_{number}" for number in range(2, 1000)))
    return next(path for path in (folder / f"{stem}.json" for stem in stems) if not path.exists())


def _shared(value: Any) -> Any:
    """An argument without this machine's paths: relative to the repository, or the name of a path outside it."""
    if not isinstance(value, (str, Path)) or not (Path(value).is_absolute() or ".." in Path(value).parts):
        return str(value) if isinstance(value, Path) else value
    path, root = Path(os.path.abspath(value)), HERE.parent
    return str(path.relative_to(root)) if path.is_relative_to(root) else path.name


def _git(*arguments: str) -> str:
    """What git prints; empty without git."""
    if shutil.which("git") is None:
        return ""
    return subprocess.run(["git", *arguments], cwd=HERE.parent, capture_output=True, text=True).stdout


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
