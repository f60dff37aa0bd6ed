"""The points of a profile are forks of a process that is started once: the one that forks for all tests."""

from __future__ import annotations

import pytest

import forked


@pytest.fixture(scope="session", autouse=True)
def forks() -> None:
    forked.context()
