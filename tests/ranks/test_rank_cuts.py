"""Several ranks cut as one does: they exchange lengths, and log-probs where the rule reads them."""

from __future__ import annotations

import pytest
import ranked
from ranked import Group

CASE = "cut_cases:cut_on_ranks"


@pytest.mark.parametrize(
    ("name", "options"),
    [("token_budget", {"tokens": 30}), ("stragglers", {"share": 0.5}), ("unlikely", {"after": 2, "least": -1.1})],
)
def test_two_ranks_cut_as_one(two_ranks: Group, name: str, options: dict[str, float]) -> None:
    alone = ranked.alone(CASE, name, options)
    assert {finish for rollouts in alone.values() for _, _, finish in rollouts} == {"cut", "stop"}
    first, second = two_ranks.run(CASE, name, options)
    assert not set(first) & set(second)
    assert first | second == alone
