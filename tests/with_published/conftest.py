"""The published model's folder, and the numbers that its tests measure: benchmarks/published.py keeps them."""

from __future__ import annotations

from pathlib import Path

import pytest

from published_rollouts import published_folder


@pytest.fixture(scope="session")
def folder() -> Path:
    return published_folder()
