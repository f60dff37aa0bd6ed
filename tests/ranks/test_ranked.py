"""The harness of this folder: ranks that run many cases, until one of them fails."""

from __future__ import annotations

import pytest
import ranked
from ranked import CaseError, Group


def case(name: str) -> str:
    return f"exchange_cases:{name}"


@pytest.mark.slow  # of the harness alone: one more start
def test_one_group_runs_all_cases_and_a_failed_one_is_named(two_ranks: Group) -> None:
    first = two_ranks.run(case("process"))
    assert two_ranks.run(case("process")) == first
    assert len(set(first)) == 2
    starts = two_ranks.starts
    with pytest.raises(CaseError) as error:
        two_ranks.run(case("raise_on"), 1)
    assert all(name in str(error.value) for name in ("raise_on", "rank 1", "KeyError"))
    assert set(two_ranks.run(case("process"))).isdisjoint(first)
    assert two_ranks.starts == starts + 1


@pytest.mark.slow  # of the harness alone: three more starts
@pytest.mark.parametrize(
    ("name", "place"),
    [("die_on", "7"), ("hang_on", "in hang_on")],  # an exit code, and a line of a stack
)
def test_a_rank_that_dies_or_hangs_ends_its_case_and_no_other(name: str, place: str) -> None:
    with ranked.group(2) as made:
        with pytest.raises(CaseError) as error:
            made.run(case(name), 1, seconds=15.0)
        _, of_rank = str(error.value).split("rank 1 of 2")
        assert name in str(error.value)
        assert place in of_rank
        assert made.run(case("totals"), [1.0, 2.0]) == [3.0] * 2
