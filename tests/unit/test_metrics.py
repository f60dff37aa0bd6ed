"""A metric's name is made from any text, is legal, and is unique."""

from __future__ import annotations

import pytest

from winnow.metrics import check, distinct


@pytest.mark.parametrize(
    ("names", "taken", "found"),
    [
        (["kl", "entropy"], [], ["kl", "entropy"]),
        (["mine.py:pull", "<lambda>", "", "é\n"], [], ["mine.py_pull", "_lambda_", "_", "é_"]),
        (["kl", "kl", "kl_2"], [], ["kl", "kl_2", "kl_2_2"]),
        (["ratio"], ["ratio", "ratio_2"], ["ratio_3"]),
    ],
)
def test_names_are_made_legal_and_distinct(names, taken, found):
    assert distinct(names, taken) == found
    check(f"loss/{name}" for name in found)


def test_a_metric_without_a_meaning_is_refused():
    with pytest.raises(KeyError, match=r"loss/mine\.py:pull"):
        check(["loss/mine.py:pull"])
