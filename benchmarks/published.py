"""What the tests with the weights of the published model measure, as one dated result.

    python benchmarks/published.py                                      # all of tests/with_published
    python benchmarks/published.py --select "not slow" --vllm .venv-vllm/bin/python

Each test records its figures: gaps between log-probs, distances of gradients and weights. With --vllm, the same tests
run with vLLM's CPU build, in an environment that scripts/test-vllm has made. Writes
benchmarks/results/<date>_published.json. A test that fails or skips ends the benchmark without a result.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

import frame

TESTS = frame.HERE.parent / "tests"
VLLM = {"WINNOW_TEST_VLLM": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
Figures = dict[str, dict[str, float | str]]  # test -> name -> figure


def main() -> None:
    parser = frame.parser(__doc__)
    parser.add_argument("--select", default="", help="a marker expression of pytest")
    parser.add_argument("--named", default="", help="a part of the tests' names")
    parser.add_argument("--vllm", type=Path, help="the Python of an environment with vLLM")
    options = frame.parse(parser)
    found = measured(sys.executable, TESTS / "with_published", options.select, options.named)
    if options.vllm is not None:
        found |= measured(str(options.vllm), TESTS / "with_vllm" / "test_vllm_published.py", "", "")
    frame.finish("published", {"figures": found}, options, show=("figures",))


def measured(python: str, tests: Path, select: str, named: str) -> Figures:
    """The figures of the selected tests, by their names. Exits unless all of them pass."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "tests.xml")
        written = ("-o", "junit_family=xunit1", f"--junitxml={file}")
        command = [python, "-m", "pytest", "-p", "no:cacheprovider", str(tests), "-m", select, "-k", named, *written]
        environment = {"OMP_NUM_THREADS": "1", **os.environ, **VLLM, "HF_HUB_OFFLINE": "1"}
        if code := subprocess.run(command, env=environment).returncode:
            sys.exit(f"{tests.name}: pytest exited with {code}")
        cases = list(ElementTree.parse(file).iter("testcase"))
    if skipped := [case.get("name") for case in cases if case.find("skipped") is not None]:
        sys.exit(f"nothing was measured by {', '.join(map(str, skipped))}")
    return {
        str(case.get("name")): {
            str(of.get("name")): number(str(of.get("value"))) for of in case.iterfind("properties/property")
        }
        for case in cases
    }


def number(text: str) -> float | str:
    """A recorded figure, or the words that were recorded."""
    try:
        return float(f"{float(text):.4g}")
    except ValueError:
        return text


if __name__ == "__main__":
    main()
