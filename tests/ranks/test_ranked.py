"""The harness of this folder: ranks that serve many cases, until one of them fails."""

from __future__ import annotations

import pytest
import ranked
from ranked import CaseError, Group


def case(name: str) -> str:
    return f"exchange_cases:{name}"


@pytest.mark.slow  # of the harness alone: one more start
def test_one_group_serves_all_and_a_case_that_fails_is_named(two_ranks: Group) -> None:
    first = two_ranks.run(case("process"))
    assert two_ranks.run(case("process")) == first
    assert len(set(first)) == 2
    starts = two_ranks.starts
    with pytest.raises(CaseError, match=r"(?s)raise_on failed.*rank 1 of 2.*KeyError: 'a case that fails'"):
        two_ranks.run(case("raise_on"), 1)
    assert set(two_ranks.run(case("process"))).isdisjoint(first)
    assert two_ranks.starts == starts + 1


@pytest.mark.slow  # of the harness alone: three more starts
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("die_on", r"(?s)die_on failed.*rank 1 of 2\nits process ended with 7"),
        ("hang_on", r"(?s)hang_on failed.*rank 1 of 2\nno answer within its time.*line \d+ in hang_on"),
    ],
)
def test_a_rank_that_dies_or_hangs_ends_its_case_and_no_other(name: str, said: str) -> None:
    with ranked.group(2) as made:
        with pytest.raises(CaseError, match=said):
            made.run(case(name), 1, seconds=15.0)
        assert made.run(case("totals"), [1.0, 2.0]) == [3.0] * 2
