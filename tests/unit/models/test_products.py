"""Products that are measured: their shapes, their speeds, and when a speed is stated."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence

import pytest
import torch

from winnow.models import products
from winnow.models.products import STEADY, TURNS, TYPICAL, Products, measure_products


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((64, 128), (512, 64, 128)),  # small: the most tokens
        ((1536, 8960), (72, 1536, 8960)),  # 2e9 operations of 2 x 1,536 x 8,960 per token
        ((16384, 65536), (16, 16384, 65536)),  # large: the fewest
        ((), (512, TYPICAL, TYPICAL)),  # no model is given
    ],
)
def test_a_product_has_a_bounded_number_of_operations(
    shape: tuple[int, ...], expected: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def turns(*measured: int) -> tuple[Mapping[str, Sequence[float]], float]:
        assert measured == expected
        return {"float32": [2.5, 2.0, 2.0], "bfloat16": [0.5, 0.6, 0.5]}, 1.0

    monkeypatch.setattr(products, "_turns", turns)
    found = measure_products(*shape)
    tokens, inputs, outputs = expected
    operations = 2 * tokens * inputs * outputs
    assert found.gflops == pytest.approx({"float32": operations / 2e9, "bfloat16": operations / 0.5e9})
    assert found.ratio == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("float32", "bfloat16", "waiting", "unsteadiness"),
    [
        ([2.0, 2.0, 2.0], [1.0, 1.0, 1.0], 1.0, 1.0),
        ([2.0, 90.0, 2.0], [1.0, 1.0, 70.0], 1.0, 1.0),  # single slow turns of either precision change nothing
        ([2.0, 4.0, 5.0], [1.0, 1.0, 1.0], 1.0, 2.0),
        ([2.0, 2.0, 2.0], [1.0, 3.0, 4.0], 1.0, 3.0),
        ([28.0, 28.0, 29.0], [28.0, 28.0, 28.0], 7.1, 7.1),  # all wait equally long for a core
    ],
)
def test_no_ratio_is_stated_on_a_busy_machine(
    float32: list[float],
    bfloat16: list[float],
    waiting: float,
    unsteadiness: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(products, "_turns", lambda *shape: ({"float32": float32, "bfloat16": bfloat16}, waiting))
    found = measure_products()
    assert found.unsteadiness == unsteadiness
    busy = unsteadiness > STEADY
    assert found.ratio == (None if busy else 0.5)
    assert ("busy" in str(found)) == busy != ("GFLOP/s" in str(found))


def test_the_precisions_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that advances by half of a turn at each look: each turn has a few products of one precision."""
    order = list[torch.dtype]()
    now = iter(range(10**6))

    def linear(left: torch.Tensor, right: torch.Tensor) -> None:
        assert left.dtype == right.dtype
        order.append(left.dtype)

    monkeypatch.setattr(products, "linear", linear)
    monkeypatch.setattr(time, "perf_counter", lambda: next(now) * products.SECONDS / 8)
    seconds, waiting = products._turns(16, 8, 8)
    assert {name: len(of) for name, of in seconds.items()} == {"float32": TURNS, "bfloat16": TURNS}
    measured = order[2:]  # after one of each that is not counted
    changes = sum(one != other for one, other in itertools.pairwise(measured))
    assert changes == 2 * TURNS - 1
    assert waiting > 1


def test_a_slow_processor_ends_after_the_fewest_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(10**6))
    monkeypatch.setattr(products, "linear", lambda left, right: None)
    monkeypatch.setattr(time, "perf_counter", lambda: next(now) * products.MOST_SECONDS)
    seconds, _ = products._turns(16, 8, 8)
    assert {len(of) for of in seconds.values()} == {products.FEWEST_TURNS}
    assert set(seconds["float32"]) == {products.MOST_SECONDS}


def test_products_are_measured() -> None:
    found = measure_products(64, 64)
    assert isinstance(found, Products)
    assert found.threads == torch.get_num_threads()
    assert set(found.gflops) == {"float32", "bfloat16"}
    assert min(found.gflops.values()) > 0
    assert found.unsteadiness > 0
