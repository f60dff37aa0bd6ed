"""One group of processes per number of ranks, for all tests of the session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import ranked


@pytest.fixture(scope="session")
def two_ranks() -> Iterator[ranked.Group]:
    with ranked.group(2) as made:
        yield made


@pytest.fixture(scope="session")
def four_ranks() -> Iterator[ranked.Group]:
    with ranked.group(4) as made:
        yield made


@pytest.fixture(params=[2, pytest.param(4, marks=pytest.mark.slow)], ids=["2 ranks", "4 ranks"])
def several(request: pytest.FixtureRequest) -> ranked.Group:
    """Two ranks; and four, which are slow: they go where two go, and take a process more per rank."""
    return request.getfixturevalue({2: "two_ranks", 4: "four_ranks"}[request.param])
