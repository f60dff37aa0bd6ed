"""Measurements that need a GPU, in parts of at most 9 minutes each, without a network (CONTRIBUTING.md).

    scripts/test-gpu all --out FOLDER             # every part within 40 minutes
    scripts/test-gpu short --out FOLDER           # the most valuable measurements within 10 minutes
    scripts/test-gpu update --out FOLDER          # a part on a GPU: FOLDER/<date>_gpu_update.json
    scripts/test-gpu --dry-run --out FOLDER       # every part in the smallest size on a CPU, as a smoke test
    scripts/test-gpu generation --native graphs=false    # native with other options, too

    tests       the gpu tests
    published   a published model learns arithmetic in bfloat16, with PODS and with all of its rollouts
    resume      runs under deterministic = true, killed and resumed, give equal bytes
    generation  native, generate and continuous batching, for 8 to 512 concurrent rollouts, random weights
    update      tokens per second, model FLOP utilisation, and peak memory with the memory plan
    layouts     an update on rollouts of unequal lengths, padded and packed
    memory      the most rollouts that train together on a card of 48 GiB, with each technique on and off

Each part writes its results after every measurement. The file lists measurements that were skipped for lack of time.
With a plan (`all`, `short`), the parts share one limit: a part that ends early leaves its time to the later ones.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import subprocess
import sys
import time
import tomllib
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from xml.etree import ElementTree

import frame
import torch
from gpu_generation import generation
from gpu_lab import SHORT, TINY, Lab, Sizes
from gpu_published import published
from gpu_resume import resume
from gpu_update import layouts, memory, updates

TEST_DEVICE = "WINNOW_TEST_GPU"  # the device of tests/gpu
OUT_OF_TIME = "session-timeout"  # in the output of pytest-timeout
QUICK_TESTS = "sums or repeatable or rounding or masters or manifest or waits"  # of the dry run, a second each


def tests(lab: Lab) -> None:
    """One record per test. Warnings of other versions of torch are printed, and are no failures."""
    with TemporaryDirectory(prefix="winnow-gpu-") as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "tests/gpu", "-p", "no:cacheprovider"]
        command += ["-o", "filterwarnings=default"]
        command += ["-q", "-rfEs", "--tb=short", f"--junitxml={report}", f"--basetemp={folder}/tests"]
        seconds = max(60.0, lab.left)  # no test starts later
        command += [f"--session-timeout={seconds:.0f}", *(["-k", QUICK_TESTS] if lab.dry else [])]
        environment = {**os.environ, TEST_DEVICE: lab.device.type}
        done = subprocess.run(
            command, cwd=frame.HERE.parent, env=environment, capture_output=True, text=True, timeout=seconds + 60.0
        )
        print((done.stdout + done.stderr)[-6000:], flush=True)
        if report.exists():
            for case in ElementTree.parse(report).iter("testcase"):
                lab.found.setdefault("tests", []).append(_outcome(case))
    lab.found["status"] = done.returncode
    outcomes = [test["outcome"] for test in lab.found.get("tests", [])]
    lab.found["passed"] = outcomes.count("passed")
    late = OUT_OF_TIME in done.stdout and not {"failure", "error"} & set(outcomes)
    lab.found |= {"skipped": f"the tests after {seconds:.0f} s"} if late else {}
    lab.write()
    if (done.returncode != 0 and not late) or not lab.found["passed"]:
        raise RuntimeError(f"pytest ended with {done.returncode}, {lab.found['passed']} tests passed; see above")


def _outcome(case: ElementTree.Element) -> dict[str, Any]:
    bad = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
    found = {"name": case.get("name"), "seconds": float(case.get("time", 0)), "outcome": "passed"}
    return found if bad is None else found | {"outcome": bad.tag, "said": (bad.get("message") or "")[:500]}


PARTS: dict[str, Callable[[Lab], None]] = {
    "tests": tests,
    "published": published,
    "resume": resume,
    "generation": generation,
    "update": updates,
    "layouts": layouts,
    "memory": memory,
}
PART_MINUTES, DRY_MINUTES = 8.3, 30.0


@dataclass(frozen=True, slots=True)
class Plan:
    """Parts in their order, the most valuable first, each with its share of the minutes."""

    minutes: float
    shares: Mapping[str, float]
    sizes: Sizes

    def minutes_of(self, name: str, later: Sequence[str], left: float) -> float:
        """Minutes for a part, of those that it and the `later` parts have together; at most PART_MINUTES."""
        share = self.shares[name] / sum(self.shares[each] for each in (name, *later))
        return min(PART_MINUTES, max(0.0, left) * share)


PLANS = {
    "all": Plan(37.0, {**dict.fromkeys(PARTS, 4), "tests": 6, "resume": 5, "generation": 6, "update": 6}, Sizes()),
    "short": Plan(8.7, {"tests": 2, "published": 3, "update": 1.5, "generation": 1.5, "resume": 1}, SHORT),
}


def main() -> int:
    options = _options()
    gc.freeze()  # excludes imported objects from the garbage collection that precedes every measurement
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.ERROR)
    begin, ended = time.perf_counter(), dict[str, tuple[str, Path]]()
    for name, later in _in_turn(options.parts):
        minutes = options.minutes
        if options.plan:
            minutes = options.plan.minutes_of(name, later, minutes - (time.perf_counter() - begin) / 60)
        ended[name] = _part(name, options, minutes)
    for name, (error, path) in ended.items():
        print(f"{name}: {error or 'done'}: {path}", flush=True)
    return int(any(error for error, _ in ended.values()))


def _in_turn(parts: Sequence[str]) -> Iterator[tuple[str, Sequence[str]]]:
    """Each part, and those after it."""
    return ((name, parts[place + 1 :]) for place, name in enumerate(parts))


def _part(name: str, options: argparse.Namespace, minutes: float) -> tuple[str, Path]:
    """Run a part. Returns its error, if any, and the path of its results."""
    begin = time.perf_counter()
    lab = Lab(
        part=name,
        device=torch.device(options.device),
        folder=options.out,
        sizes=TINY if options.dry_run else options.plan.sizes if options.plan else Sizes(),
        minutes=minutes,
        ends=begin + 60 * minutes,
        found={} if options.commit is None else {"commit": options.commit},
        dry=options.dry_run,
        native=options.native,
    )
    error = ""
    try:
        PARTS[name](lab)
    except Exception as problem:  # later parts may still succeed
        traceback.print_exc()
        error = lab.found["error"] = f"{type(problem).__name__}: {problem}"[:2000]
    lab.found["minutes"] = round((time.perf_counter() - begin) / 60, 2)
    return error, lab.write()


def _options() -> argparse.Namespace:
    parser = frame.parser(__doc__)
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help="a plan (all, short) or parts; by default all, each in full"
    )
    parser.add_argument("--out", type=Path, default=frame.RESULTS, help="folder of the results")
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes on the CPU")
    parser.add_argument(
        "--minutes",
        type=float,
        help=f"time limit of a part, {PART_MINUTES} by default; of all parts of a plan together, by default "
        f"{PLANS['all'].minutes:.0f} for all and {PLANS['short'].minutes} for short. Longer measurements are skipped",
    )
    parser.add_argument("--commit", help="the measured commit, if the machine has the files without git")
    parser.add_argument(
        "--native",
        type=_native,
        action="append",
        default=[],
        metavar="KEY=VALUE[,KEY=VALUE]",
        help="generation: also native with these options; may be repeated",
    )
    options = parser.parse_args()
    (first, *rest) = options.parts or [""]
    options.plan = PLANS.get(first) if not rest else None
    options.parts = list(options.plan.shares if options.plan else options.parts or PARTS)
    if unknown := [name for name in options.parts if name not in PARTS]:
        parser.error(f"there is no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    options.device = "cpu" if options.dry_run else "cuda"
    default = DRY_MINUTES if options.dry_run else options.plan.minutes if options.plan else PART_MINUTES
    options.minutes = options.minutes or default
    if not options.dry_run and not torch.cuda.is_available():
        parser.error("there is no CUDA device here; --dry-run shows on the CPU that every part runs")
    frame.begin(dirty=options.dirty or options.dry_run)
    return options


def _native(text: str) -> tuple[str, dict[str, Any]]:
    """Parse options like `--set`: TOML, or text if it is not TOML."""
    options = {}
    for assignment in text.split(","):
        key, _, value = assignment.partition("=")
        try:
            options[key] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            options[key] = value
    return text, options


if __name__ == "__main__":
    raise SystemExit(main())
