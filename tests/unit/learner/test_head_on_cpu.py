"""Log-probs with the softmax of a few rows at a time; test_logprobs.py compares values and gradients in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from winnow.learner import head as any_device
from winnow.learner import head_on_cpu
from winnow.learner.head_on_cpu import token_logprobs


def made(dtype: torch.dtype) -> tuple[nn.Linear, Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    head = nn.Linear(6, 50).to(dtype)
    for parameter in head.parameters():
        parameter.data.copy_(2 * torch.randn(parameter.shape, generator=random))
    hidden = torch.randn(9, 6, generator=random).to(dtype).requires_grad_()
    return head, hidden, torch.randint(50, (9,), generator=random), torch.randn(9, generator=random)


@pytest.mark.parametrize("cached", [1, 120, 2**19])
@pytest.mark.parametrize("chunk", [2, 9])
@pytest.mark.parametrize(("dtype", "exact"), [(torch.float32, 1e-6), (torch.bfloat16, 5e-3)])
def test_values_and_gradients(
    dtype: torch.dtype, exact: float, chunk: int, cached: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_on_cpu, "CACHED", cached)
    head, hidden, targets, above = made(dtype)
    logprobs = token_logprobs(hidden, head, targets, temperature=0.8, chunk=chunk)
    found = [logprobs, *torch.autograd.grad(logprobs, (hidden, *head.parameters()), above)]
    assert [tensor.dtype for tensor in found] == [torch.float32, dtype, dtype, dtype]

    leaves = [tensor.detach().double().requires_grad_() for tensor in (hidden, *head.parameters())]
    logits = functional.linear(*leaves)
    if dtype == torch.bfloat16:  # rounded as the model's logits are, with the gradient passed through
        logits = logits + (logits.to(dtype).double() - logits).detach()
    plain = -functional.cross_entropy(logits / 0.8, targets, reduction="none")
    expected = [plain, *torch.autograd.grad(plain, leaves, above.double())]
    for now, then in zip(found, expected, strict=True):
        assert torch.linalg.vector_norm(now - then) < exact * torch.linalg.vector_norm(then)


@pytest.mark.parametrize(("chunk", "products"), [(9, 1), (4, 6)])
def test_the_logits_of_a_single_chunk_are_kept_once(chunk: int, products: int, monkeypatch: pytest.MonkeyPatch) -> None:
    head, hidden, targets, above = made(torch.float32)
    made_logits, forward = list[int](), nn.Linear.forward
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: made_logits.append(len(x)) or forward(self, x))
    logprobs = token_logprobs(hidden, head, targets, temperature=1.0, chunk=chunk)
    first = torch.autograd.grad(logprobs, (hidden, head.weight), above, retain_graph=True)
    assert len(made_logits) == products
    again = torch.autograd.grad(logprobs, (hidden, head.weight), above)  # from logits that are computed again
    assert all(map(torch.equal, first, again))


def test_frozen_layers_and_other_modules() -> None:
    head, hidden, targets, above = made(torch.float32)
    trained = torch.autograd.grad(token_logprobs(hidden, head, targets, temperature=1.0, chunk=9), hidden, above)
    head.requires_grad_(False)
    frozen = torch.autograd.grad(token_logprobs(hidden, head, targets, temperature=1.0, chunk=9), hidden, above)
    assert torch.equal(*trained, *frozen)
    assert not head_on_cpu.computes(head, hidden)  # float32 keeps its bits


def test_only_16_bits_and_linear_layers_are_computed_here(monkeypatch: pytest.MonkeyPatch) -> None:
    head, hidden, targets, _ = made(torch.bfloat16)
    assert head_on_cpu.computes(head, hidden)
    assert not head_on_cpu.computes(nn.Identity(), hidden)
    here = list[int]()
    monkeypatch.setattr(head_on_cpu, "token_logprobs", lambda *given, **more: here.append(1) or torch.zeros(9))
    any_device.token_logprobs(hidden, head, targets, temperature=1.0, chunk=9)
    any_device.token_logprobs(hidden, head, targets, temperature=1.0, chunk=9, with_entropy=True)
    assert here == [1]
    head.forward = lambda states: states  # of another package
    assert not head_on_cpu.computes(head, hidden)
