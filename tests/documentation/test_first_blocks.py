"""The first block of commands of every page runs in a fresh environment with the page's install line alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from doc_pages import PAGES
from first_blocks import BEFORE, NOT_RUN, extras, failures, first_block, pages_to_run, script


@pytest.mark.weekly  # minutes, and packages are downloaded
@pytest.mark.timeout(8 * 7200)  # of each environment: its packages, and all pages that have its install line
def test_the_first_commands_run_in_a_fresh_environment():
    """Not a test for each install line: every process that collects tests would read all pages for their names."""
    assert failures(pages_to_run()) == {}


def test_the_marks_are_of_pages_with_commands():
    assert not [page for page in {*NOT_RUN, *BEFORE} if page not in PAGES or first_block(page) is None]
    assert not set(NOT_RUN) & set(BEFORE)
    assert len(pages_to_run()) >= 8


def test_a_block_that_fails_is_found(monkeypatch):
    """With this environment: the page's command is run, and what it printed is kept."""
    monkeypatch.setattr("first_blocks.script", lambda page: "python -c 'print(6 * 7)'; exit 3")
    assert failures(["docs/ppo.md"], Path(sys.executable)) == {"docs/ppo.md": "42\n"}
    monkeypatch.setattr("first_blocks.script", lambda page: "test -e examples/model_judge.py; test $PWD = $HOME")
    assert failures(["docs/ppo.md"], Path(sys.executable)) == {}


def test_what_is_run_is_the_block_without_its_installation():
    assert script("docs/from-trl.md").splitlines()[0].startswith("python examples/pods_in_trl.py")
    assert script("docs/choosing-the-rate.md").startswith("cat > rates.toml <<'END'\nconfig = ")
    assert script("docs/choosing-the-rate.md").endswith("winnow compare sweeps/rates")
    assert extras("docs/data.md") == "math"
