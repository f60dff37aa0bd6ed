"""The tests that need a GPU, as a part of gpu.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from xml.etree import ElementTree

from gpu_lab import Lab

REPOSITORY = Path(__file__).parents[1]
DEVICE = "WINNOW_TEST_GPU"  # the device of tests/gpu
OUT_OF_TIME = "session-timeout"  # in the output of pytest-timeout
QUICK = "sums or repeatable or rounding or masters or manifest or waits"  # the tests of the dry run, a second each


def tests(lab: Lab) -> None:
    """One record per test. Warnings of other versions of torch are printed, and are no failures."""
    with TemporaryDirectory(prefix="winnow-gpu-") as folder:
        report = Path(folder) / "report.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "tests/gpu",
            "-p",
            "no:cacheprovider",
            "-o",
            "filterwarnings=default",
        ]
        command += ["-q", "-rfEs", "--tb=short", f"--junitxml={report}", f"--basetemp={folder}/tests"]
        seconds = max(60.0, lab.left)
        command += [f"--session-timeout={seconds:.0f}", *(["-k", QUICK] if lab.dry else [])]  # no test starts later
        environment = {**os.environ, DEVICE: lab.device.type}
        done = subprocess.run(
            command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=seconds + 60.0
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
