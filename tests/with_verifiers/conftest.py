"""Tests with the real verifiers library, on the bundled policy. They are collected where it is installed:

pip install -c constraints.txt -e '.[test,verifiers]' && pytest tests/with_verifiers

The folder task_sets has small task sets, written for these tests. The games of TextArena, a task set in the library's
package, also need `pip install 'verifiers[ta]'` and the word list of NLTK (python -m nltk.downloader words);
their tests skip without these.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from winnow.installed import is_installed

TASK_SETS = Path(__file__).parent / "task_sets"

if not is_installed("verifiers"):
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(autouse=True)
def task_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library finds a task set as an importable module; workers get the path of this process."""
    monkeypatch.syspath_prepend(TASK_SETS)
    for name in ("repeat_number", "count_along", "two_agents", "with_a_tool"):
        monkeypatch.delitem(sys.modules, name, raising=False)
