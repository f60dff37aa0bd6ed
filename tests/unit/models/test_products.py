"""Products that are measured: their shapes and their speeds."""

from __future__ import annotations

import pytest
import torch

from winnow.models import products
from winnow.models.products import Products, measure_products


@pytest.mark.parametrize(
    ("inputs", "outputs", "tokens"),
    [
        (64, 128, 512),  # small: the most tokens
        (1536, 8960, 72),  # 2e9 operations of 2 x 1,536 x 8,960 per token
        (16384, 65536, 16),  # large: the fewest
    ],
)
def test_a_product_has_a_bounded_number_of_operations(
    inputs: int, outputs: int, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[tuple[int, int, int, torch.dtype]]()

    def seconds(*shape_and_dtype: object) -> float:
        seen.append(shape_and_dtype)  # type: ignore[arg-type]
        return 0.5 if shape_and_dtype[-1] == torch.bfloat16 else 2.0

    monkeypatch.setattr(products, "_seconds", seconds)
    found = measure_products(inputs, outputs)
    assert seen == [(tokens, inputs, outputs, torch.float32), (tokens, inputs, outputs, torch.bfloat16)]
    operations = 2 * tokens * inputs * outputs
    assert found.gflops == pytest.approx({"float32": operations / 2e9, "bfloat16": operations / 0.5e9})
    assert found.ratio == pytest.approx(0.25)


def test_products_are_measured() -> None:
    found = measure_products(64, 64)
    assert isinstance(found, Products)
    assert found.threads == torch.get_num_threads()
    assert set(found.gflops) == {"float32", "bfloat16"}
    assert min(found.gflops.values()) > 0
