"""Work dealt to ranks: by hand, and the bounds that the two ways are chosen for."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from winnow.ranks import deal, in_runs

GVM = (23, 12, 6, 5, 2, 0)  # rollouts of six prompts, as the allocation of a step may be


@pytest.mark.parametrize(
    ("loads", "parts", "dealt"),
    [
        pytest.param(GVM, 1, [[0, 1, 2, 3, 4, 5]], id="one part"),
        # 23 | 12 + 6 + 5 = 23; 2 to the first of the two, 0 to the other, which has less now
        pytest.param(GVM, 2, [[0, 4], [1, 2, 3, 5]], id="gvm, 2"),
        # 23 | 12 | 6 | 5; 2 to the least, 5; 0 to the least, 6
        pytest.param(GVM, 4, [[0], [1], [2, 5], [3, 4]], id="gvm, 4"),
        pytest.param([4, 4, 4, 4, 4], 2, [[0, 2, 4], [1, 3]], id="equal ones go round"),
        pytest.param([1, 2, 3], 2, [[2], [0, 1]], id="the largest first"),
        pytest.param([0, 0, 0, 0], 2, [[0, 2], [1, 3]], id="nothing to do"),
        pytest.param([5], 3, [[0], [], []], id="fewer than parts"),
        pytest.param([], 2, [[], []], id="none"),
    ],
)
def test_deal(loads, parts, dealt) -> None:
    assert deal(loads, parts) == dealt


@pytest.mark.parametrize(
    ("loads", "parts", "runs"),
    [
        pytest.param(GVM, 1, [[0, 1, 2, 3, 4, 5]], id="one part"),
        # Of 48: middles at 11.5, 29, 38, 43.5, 47, 48; halves end at 24 and 48, quarters at 12, 24, 36, 48
        pytest.param(GVM, 2, [[0], [1, 2, 3, 4, 5]], id="gvm, 2"),
        pytest.param(GVM, 4, [[0], [], [1], [2, 3, 4, 5]], id="gvm, 4"),
        pytest.param([1] * 7 + [7], 2, [[0, 1, 2, 3, 4, 5, 6], [7]], id="7 kept against 1"),
        pytest.param([3], 2, [[], [0]], id="one sequence"),  # its middle is where the second half begins
        pytest.param([0, 0], 2, [[0, 1], []], id="no load"),
        pytest.param([], 3, [[], [], []], id="none"),
    ],
)
def test_in_runs(loads, parts, runs) -> None:
    assert in_runs(loads, parts) == runs


loads = st.lists(st.integers(0, 50), max_size=12)
both = pytest.mark.parametrize("way", [deal, in_runs])


@both
@given(loads=loads, parts=st.integers(1, 5))
def test_every_place_is_dealt_once_in_ascending_order(way, loads, parts) -> None:
    dealt = way(loads, parts)
    assert len(dealt) == parts
    assert sorted(place for part in dealt for place in part) == list(range(len(loads)))
    assert all(part == sorted(part) for part in dealt)
    assert way(loads, parts) == dealt


def largest(loads, dealt) -> int:
    return max(sum(loads[place] for place in part) for part in dealt)


def best(loads, parts) -> int:
    """The least that the part with most can have, by trying all ways."""
    ways = product(range(parts), repeat=len(loads))
    return min(max(sum(w for w, p in zip(loads, way, strict=True) if p == n) for n in range(parts)) for way in ways)


@given(loads=st.lists(st.integers(1, 30), min_size=1, max_size=7), parts=st.integers(1, 3))
def test_the_part_with_most_has_at_most_4_3_of_the_best(loads, parts) -> None:
    """Graham 1969, theorem 2: 4/3 - 1/(3 parts)."""
    assert 3 * parts * largest(loads, deal(loads, parts)) <= (4 * parts - 1) * best(loads, parts)


def test_the_bound_is_reached() -> None:
    """Graham's example of two parts: 3 + 2 + 2 against 3 + 2 of 12, where 3 + 3 against 2 + 2 + 2 were even."""
    loads = [3, 3, 2, 2, 2]
    assert (largest(loads, deal(loads, 2)), best(loads, 2)) == (7, 6)


@given(loads=loads, parts=st.integers(1, 5))
def test_a_run_has_at_most_its_share_and_the_largest(loads, parts) -> None:
    runs = in_runs(loads, parts)
    assert largest(loads, runs) <= sum(loads) / parts + max(loads, default=0) + 1e-9
    assert [place for run in runs for place in run] == list(range(len(loads)))
