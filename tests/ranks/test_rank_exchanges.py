"""ranks.py between two real processes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import ranked
from ranked import Group


def case(name: str) -> str:
    return f"exchange_cases:{name}"


def test_each_process_has_its_rank_and_the_counts(two_ranks: Group) -> None:
    assert two_ranks.run(case("who")) == [(0, 2, 0, 2, True, 2), (1, 2, 1, 2, False, 2)]
    assert ranked.alone(case("who")) == (0, 1, 0, 1, True, 1)
    assert two_ranks.run(case("joined_again")) == [[2, 2, 2]] * 2


def test_all_get_the_items_of_each_in_the_order_of_the_ranks(two_ranks: Group) -> None:
    assert two_ranks.run(case("gathered"), [["a"], ["b", None, "c"]]) == [["a", "b", None, "c"]] * 2
    assert two_ranks.run(case("gathered"), [[], []]) == [[]] * 2
    given = [{"rank": 0, "times": 0}, {"rank": 1, "times": 5}]
    assert two_ranks.run(case("each_one"), 5) == [given] * 2
    assert two_ranks.run(case("arrays")) == [True] * 2


@pytest.mark.parametrize("up", [[False, False], [False, True], [True, False], [True, True]])
def test_a_flag_that_is_up_on_one_is_up_on_all(two_ranks: Group, up: list[bool]) -> None:
    assert two_ranks.run(case("any_of"), up) == [any(up)] * 2


def test_a_sum_is_the_same_bits_on_all(two_ranks: Group) -> None:
    assert two_ranks.run(case("totals"), [0.1, 0.2]) == [0.1 + 0.2] * 2
    assert all(math.isnan(total) for total in two_ranks.run(case("totals"), [0.1, math.nan]))


@pytest.mark.slow  # four processes; the order of two is tested above
def test_a_sum_is_taken_in_the_order_of_the_ranks(four_ranks: Group) -> None:
    """In another order it is 0 or 2."""
    assert four_ranks.run(case("totals"), [1e16, 1.0, -1e16, 1.0]) == [1.0] * 4


def test_the_writer_makes_it_once_for_all(two_ranks: Group) -> None:
    assert two_ranks.run(case("by_writer")) == [("made", [0]), ("made", [])]


NO_ERROR = ("", "", 2)


@pytest.mark.parametrize(
    ("name", "arguments", "errors"),  # per rank: the exception, and names in its message
    [
        pytest.param(
            "writer_raises",
            (),
            [("ValueError", ["no room"]), ("RankError", ["rank 0", "making a folder", "ValueError: no room"])],
            id="the writer, from_writer",
        ),
        pytest.param(
            "one_raises",
            (0,),
            [("OSError", ["no such file"]), ("RankError", ["rank 0", "loading", "OSError: no such file"])],
            id="the writer, together",
        ),
        pytest.param(
            "one_raises",
            (1,),
            [("RankError", ["rank 1", "loading", "OSError: no such file"]), ("OSError", ["no such file"])],
            id="another, together",
        ),
        pytest.param("one_raises", (2,), [("", []), ("", [])], id="none"),
        pytest.param("all_raise", (), [("OSError", ["no file 0"]), ("OSError", ["no file 1"])], id="both"),
        pytest.param(
            "nested",
            (),
            [("RankError", ["rank 1", "inside", "OSError: no such file"]), ("OSError", ["no such file"])],
            id="one block in another",
        ),
        pytest.param(
            "announced_to_another_exchange",
            (),
            [("RankError", ["rank 1", "sampling", "MemoryError: out of it"]), ("MemoryError", ["out of it"])],
            id="announced",
        ),
    ],
)
def test_a_failure_of_one_rank_raises_on_all_and_they_continue(
    two_ranks: Group, name: str, arguments: tuple[Any, ...], errors: list[tuple[str, list[str]]]
) -> None:
    results = two_ranks.run(case(name), *arguments)
    assert [(kind, total) for kind, _, total in results] == [(kind, 2) for kind, _ in errors]
    for (_, text, _), (_, names) in zip(results, errors, strict=True):
        assert all(word in text for word in names), text


def test_all_ranks_must_have_the_same_inputs(two_ranks: Group) -> None:
    assert two_ranks.run(case("same"), ["a", "a"]) == [NO_ERROR] * 2
    for kind, text, total in two_ranks.run(case("same"), ["a", "b"]):
        assert (kind, total) == ("ConfigError", 2)
        assert all(word in text for word in ("rank 0", "rank 1", "configuration"))


def test_sent_bytes_are_counted_by_kind(two_ranks: Group) -> None:
    """Headers of some hundred bytes are counted too."""
    for given in two_ranks.run(case("spent_on"), 10_000):
        assert {kind for kind, size in given.items() if size} == {"rollouts", "decisions"}
        assert 10_000 < given["rollouts"] < 10_500
        assert 0 < given["decisions"] < 100
    spent = ranked.alone(case("alone_it_costs_nothing"))
    assert (spent.seconds, sum(spent.bytes.values())) == (0.0, 0)


def test_ranks_that_all_fail_learn_that_all_have(two_ranks: Group) -> None:
    assert two_ranks.run(case("failed_alike")) == [[True, True]] * 2


@pytest.mark.slow  # waits for as long as ranks.py does, about 20 seconds; two that fail alike are tested above
@pytest.mark.parametrize("which", [0, 1])
def test_a_rank_that_fails_alone_learns_that_the_others_have_not(which: int) -> None:
    with ranked.group(2) as made:
        assert made.run(case("failed_alone"), which)[which] is False
