"""Attention of short texts in 16 bits on a CPU, against torch's in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from winnow.models import attention as module
from winnow.models.attention import SHORT, attention


class Layer(nn.Module):
    is_causal = True
    num_key_value_groups = 3


def states(queries: int, keys: int, dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
    random = torch.Generator().manual_seed(queries + keys)
    shapes = ((4, queries, 6, 8), (4, keys, 2, 8), (4, keys, 2, 8))
    return [torch.randn(s, generator=random).to(dtype).transpose(1, 2).requires_grad_() for s in shapes]


def prefix_mask(queries: int, keys: int, kind: str) -> Tensor:
    """[4, 1, queries, keys]: text i sees the keys from i on, up to the query's own."""
    visible = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries).repeat(4, 1, 1)
    for text in range(4):
        visible[text, :, :text] = False
    added = torch.zeros(visible.shape, dtype=torch.bfloat16).masked_fill_(~visible, -torch.inf)
    return (visible if kind == "bool" else added)[:, None]


@pytest.mark.parametrize("cached", [1, 300, 2**19])
@pytest.mark.parametrize(("queries", "keys", "kind"), [(5, 5, None), (5, 9, "bool"), (5, 9, "added"), (1, 9, None)])
def test_outputs_and_gradients_are_torch_s(
    queries: int, keys: int, kind: str | None, cached: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CACHED", cached)
    given, above = states(queries, keys), torch.randn(4, queries, 6, 8)
    mask = None if kind is None else prefix_mask(queries, keys, kind)
    output, _ = attention(Layer(), *given, mask, scaling=0.4)
    found = [output, *torch.autograd.grad(output, given, above.to(output.dtype))]
    assert all(tensor.dtype == torch.bfloat16 for tensor in found)

    exact = [tensor.detach().double().requires_grad_() for tensor in given]
    wide = mask.double() if kind == "added" and mask is not None else mask
    expected, _ = sdpa_attention_forward(Layer(), *exact, wide, scaling=0.4)
    wanted = [expected, *torch.autograd.grad(expected, exact, above.bfloat16().double())]
    for now, then in zip(found, wanted, strict=True):
        assert torch.linalg.vector_norm(now - then) < 3e-3 * torch.linalg.vector_norm(then)


def test_a_token_that_sees_nothing_stays_finite() -> None:
    mask = torch.ones(4, 1, 5, 5, dtype=torch.bool).tril()
    mask[0, 0, :2] = False
    given = states(5, 5)
    output, _ = attention(Layer(), *given, mask)
    output.sum().backward()
    assert output.isfinite().all()
    assert all(tensor.grad is not None and tensor.grad.isfinite().all() for tensor in given)


@pytest.mark.parametrize(
    ("given", "options", "short"),
    [
        (states(5, 5), {}, True),
        (states(5, 5), {"dropout": 0.0, "sliding_window": None}, True),
        (states(5, 5), {"softcap": 3.0}, False),
        (states(SHORT, SHORT), {}, True),
        (states(SHORT + 1, SHORT + 1), {}, False),
        (states(3, 5), {}, False),
        (states(5, 5, torch.float32), {}, False),
    ],
)
def test_only_short_texts_in_16_bits_attend_together(
    given: list[Tensor], options: dict[str, Any], short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = list[int]()
    plain = (torch.zeros(1), None)
    monkeypatch.setattr(module, "sdpa_attention_forward", lambda *given, **more: elsewhere.append(1) or plain)
    attention(Layer(), *given, None, **options)
    assert (not elsewhere) == short
