"""The first commands of every page, as a reader runs them: in a fresh environment with the page's install line alone.

    python tests/documentation/first_blocks.py docs/words.md ...

makes an environment for each install line and runs the pages that have it. `--python PYTHON` uses an environment that
exists instead. test_first_blocks.py does it for all pages, weekly, because it downloads packages.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path

from doc_pages import PAGES, REPOSITORY, Block, blocks

SMALL = "winnow train arithmetic --output {} --set steps=4 --set evaluate.problems=16"
# What a reader has done before: commands that make the files that the first block supposes.
BEFORE: Mapping[str, Sequence[str]] = {
    "docs/after-training.md": (
        SMALL.format("runs/first"),
        "mv runs/first/checkpoints/step-000004 runs/first/checkpoints/step-000120",
    ),
    "docs/choosing-the-rate.md": ("cat > rates.toml <<'END'\n{toml}\nEND",),
    "docs/data.md": (
        f"PYTHONPATH={REPOSITORY}/tests/documentation python -c "
        "'import rows_of_layouts as r; from pathlib import Path; r.write_files(Path())'",
    ),
    "docs/watching.md": (SMALL.format("runs/ill") + " --set optimizer.learning_rate=0.05",),
    "docs/words.md": (SMALL.format("runs/first"),),
}
# Why the first commands of a page are not run.
NOT_RUN: Mapping[str, str] = {
    "docs/commands.md": "a tour of all commands, which tests/e2e/test_readme.py runs",
    "docs/compare.md": "compares runs of the reader",
    "docs/design.md": "a drawing, not commands",
    "docs/from-verl.md": "another program: verl",
    "docs/one-gpu.md": "needs the hub; test_one_gpu.py runs it on the shape of the model",
    "docs/published-model.md": "installs by itself, and needs 11 minutes and a model of 270 MB; benchmarks/demo.py",
    "docs/published.md": "needs the hub",
    "docs/reference.md": "a list, not commands",
    "docs/results.md": "a sweep of hours",
    "docs/verifiers.md": "test_verifier_page.py runs it on the page's own file",
}


def first_block(page: str) -> Block | None:
    """The first block of commands; None for a page without one."""
    return next((block for block in blocks(page) if block.language in ("", "sh")), None)


def extras(page: str) -> str:
    """The extras of the install line for the whole page, "hub,math"; "" if it has none.

    It is in the first block, or in a sentence about the installation. Lines for a feature of a page are others.
    """
    block = first_block(page)
    line = r"pip install 'winnow-rl\[([\w,]+)\]'"
    found = re.search(line, block.text if block else "") or re.search(
        rf"(?:The installation is|Install winnow with)\s+`{line}`", PAGES[page]
    )
    return found[1] if found else ""


def pages_to_run() -> list[str]:
    return [page for page in PAGES if page.startswith("docs/") and page not in NOT_RUN and first_block(page)]


def script(page: str) -> str:
    """What a shell runs for a page, without installations and changes of the environment."""
    block = first_block(page)
    assert block is not None
    toml = next((other.text for other in blocks(page) if other.language == "toml"), "")
    before = [command.replace("{toml}", toml) for command in BEFORE.get(page, ())]
    return "\n".join([*before, *(line for line in block.text.splitlines() if not line.startswith("pip install"))])


def make_environment(folder: Path, of: str) -> Path:
    """A new environment with winnow and these extras, as the install line makes it; returns its Python."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    winnow = f"{REPOSITORY}[{of}]" if of else str(REPOSITORY)
    constraints = ("-c", str(REPOSITORY / "constraints.txt"))
    subprocess.run([python, "-m", "pip", "install", "-q", *constraints, winnow], check=True)
    return python


def run(page: str, python: Path) -> subprocess.CompletedProcess[str]:
    """Run the first block of a page in a folder of its own, with the parts of a clone that pages name."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("configs", "examples"):
            (Path(folder) / name).symlink_to(REPOSITORY / name)
        shutil.copytree(REPOSITORY / "tests" / "fixtures", Path(folder) / "tests" / "fixtures")  # may be written to
        environment = {"PATH": f"{python.parent}:{os.environ['PATH']}", "HOME": folder, "TERM": "dumb"}
        command = ["bash", "-euo", "pipefail", "-c", script(page)]
        return subprocess.run(
            command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )


def failures(pages: Sequence[str], python: Path | None = None) -> dict[str, str]:
    """What each page's commands printed that did not end with 0. Pages of one install line share an environment."""
    found = {}
    for of in sorted({extras(page) for page in pages}):
        folder = Path(tempfile.mkdtemp())
        try:
            used = python or make_environment(folder / "environment", of)
            for page in (page for page in pages if extras(page) == of):
                done = run(page, used)
                print(f"{page} [{of}]: {'failed' if done.returncode else 'ran'}", flush=True)
                if done.returncode:
                    found[page] = done.stdout
        finally:
            shutil.rmtree(folder)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="*", default=pages_to_run())
    parser.add_argument("--python", type=Path, help="of an environment that exists")
    given = parser.parse_args()
    failed = failures(given.pages, given.python)
    sys.exit("\n\n".join(f"{page}:\n{text}" for page, text in failed.items()) or None)
