"""What gloo forgives and a device does not is caught: four mistakes are planted, and an update has none."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
from ranked import Group


def case(name: str) -> str:
    return f"recorded_cases:{name}"


def config(folder: Any, **more: Any) -> dict[str, Any]:
    model = {"path": str(folder("qwen2")), "dtype": "float32"}
    return {"model": model, "loss": {"use": "clip"}, "update": {"tokens_per_micro_batch": 64}, **more}


def test_rank_tests_compare_every_exchange(two_ranks: Group) -> None:
    assert two_ranks.run(case("debug_level")) == ["DETAIL", "DETAIL"]


@pytest.mark.parametrize("which", [0, 1])
def test_another_order_on_one_rank_is_caught(two_ranks: Group, which: int) -> None:
    assert two_ranks.run(case("other_order"), which) == [["RuntimeError", "RuntimeError"]] * 2


def test_another_shape_on_one_rank_is_caught(two_ranks: Group) -> None:
    assert two_ranks.run(case("other_shape"), 1) == ["RuntimeError", "RuntimeError"]


def test_gradients_that_one_rank_sums_in_other_pieces_are_caught(two_ranks: Group, model_folder: Any) -> None:
    assert two_ranks.run(case("other_buckets"), config(model_folder), 1) == ["RankError", "RankError"]


def test_a_tensor_of_the_host_in_a_group_of_devices_is_caught(two_ranks: Group) -> None:
    assert two_ranks.run(case("host_tensor")) == [("ExchangeError", "", 1)] * 2


def test_a_result_that_is_read_before_wait_is_caught(two_ranks: Group) -> None:
    assert two_ranks.run(case("read_before_wait")) == [("ExchangeError", "", 4.0)] * 2
    assert two_ranks.run(case("read_a_view_before_wait")) == ["ExchangeError"] * 2


def test_an_update_of_a_replicated_policy_sums_its_gradients_once(two_ranks: Group, model_folder: Any) -> None:
    small = config(model_folder, update={"tokens_per_micro_batch": 32})
    (one, passes, mixed), (other, *_) = two_ranks.run(case("update"), small, (5, 4, 2))
    assert one == other
    assert [method for method, _ in one] == ["allreduce"]
    assert (passes, mixed) == (2, [])


def test_an_update_of_a_sharded_policy_gathers_each_layer_twice(two_ranks: Group, model_folder: Any) -> None:
    """Per pass: embedding and norm once, each of two layers in forward and in backward, and three sums of gradients.
    Per update: one sum for the norm, and each of 26 parameters for the engine.
    """
    sharded = config(model_folder, ranks={"learner": "sharded"}, update={"tokens_per_micro_batch": 32})
    sharded["model"] |= {"dtype": "float64"}  # one layout: a prompt that is read once takes two passes of the layers
    (one, passes, mixed), other = two_ranks.run(case("update"), sharded, (5, 4, 2))
    assert (one, passes, mixed) == other
    counts = Counter(re.sub("_base|_single|_into_tensor|_", "", method) for method, _ in one)
    assert counts == {
        "allgather": passes * (1 + 2 * 2),
        "reducescatter": passes * (1 + 2),
        "allreduce": 1,
        "allgathercoalesced": 26,
    }
    assert (passes, mixed) == (2, [])
