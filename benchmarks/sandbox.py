"""The cost of the sandbox, and whether it ever fails a correct program.

    python benchmarks/sandbox.py --runs 2000

For every layer that works on this machine it runs correct programs one at a time; the median is the cost of a run. It
then runs `runs` of them, twice as many at a time as there are cores, and counts wrong results (there must be none).
`unsafe` is the same start without any layer. With --undisturbed (root) those one at a time run at the highest priority,
before all other processes, for a few seconds. Writes benchmarks/results/<date>_sandbox.json.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any, get_args

import frame

from winnow.verify.sandbox import Limits, Program, Sandbox, SandboxError, choose
from winnow.verify.sandbox.choice import Preference

LIMITS = Limits(cpu_seconds=10, wall_seconds=30.0)

HONEST: tuple[tuple[bytes, bytes, bytes], ...] = (  # code, stdin, expected output
    (b"print(2 * int(input()))", b"21\n", b"42\n"),
    (b"print(sum(int(w) for w in input().split()))", b"1 2 3\n", b"6\n"),
    (b"n = int(input())\nprint(all(n % d for d in range(2, int(n ** 0.5) + 1)))", b"7919\n", b"True\n"),
    (b"import sys\nprint(len(sys.stdin.read().split()))", b"w " * 20_000, b"20000\n"),
    (b"from collections import Counter\nprint(Counter(input()).most_common(1)[0][0])", b"banana\n", b"a\n"),
    (b"def f(n): return n if n < 2 else f(n - 1) + f(n - 2)\nprint(f(15))", b"", b"610\n"),
    (b"print('x' * 50_000)", b"", b"x" * 50_000 + b"\n"),
    (
        b"import heapq\nh = list(map(int, input().split()))\nheapq.heapify(h)\nprint(heapq.heappop(h))",
        b"5 3 9\n",
        b"3\n",
    ),
)


def main() -> None:
    parser = frame.parser(__doc__, runs=2000, alone=100)
    parser.add_argument("--undisturbed", action="store_true")
    options = frame.parse(parser)
    load = os.getloadavg()
    found = {preference: _measure(preference, options) for preference in get_args(Preference) if preference != "auto"}
    report = {"user": os.geteuid(), "load_before": load, "layers": found}
    frame.finish("sandbox", report, options, packages=("winnow-rl",), show=("layers",))


def _measure(preference: Preference, options: argparse.Namespace) -> dict[str, Any]:
    try:
        sandbox = choose(preference)
    except SandboxError as error:
        return {"refused": str(error)}
    with _undisturbed() if options.undisturbed else contextlib.nullcontext():
        alone = _runs(sandbox, options.alone, at_once=1)
    return {
        "chosen": str(sandbox.layers),
        "alone": alone,
        "twice_the_cores": _runs(sandbox, options.runs, at_once=2 * (os.cpu_count() or 1)),
    }


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Use the scheduling policy first in, first out: no other process gets the core of a run."""
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def _runs(sandbox: Sandbox, count: int, *, at_once: int) -> dict[str, Any]:
    programs = [Program(code=code, stdin=stdin) for code, stdin, _ in HONEST]
    before, started = _cpu_seconds(), time.monotonic()
    seconds, spurious = [], []
    for place, run in sandbox.run_all([programs[i % len(programs)] for i in range(count)], LIMITS, at_once=at_once):
        seconds.append(run.seconds)
        if run.ending != "finished" or run.stdout != HONEST[place % len(HONEST)][2]:
            spurious.append(f"{place}: {run.ending} {run.detail}")
    elapsed = time.monotonic() - started
    return {
        "runs": count,
        "at_once": at_once,
        "spurious_failures": spurious,
        "median_ms": _ms(statistics.median(seconds)),
        "p99_ms": _ms(_quantile(seconds, 0.99)),
        "fastest_ms": _ms(min(seconds)),
        "runs_per_second": round(count / elapsed, 1),
        "cpu_ms_per_run": _ms((_cpu_seconds() - before) / count),
    }


def _cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))]


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 2)


if __name__ == "__main__":
    main()
