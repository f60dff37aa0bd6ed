from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from winnow.learner.logprobs import token_logprobs

T, H, V = 11, 6, 40


def case(dtype: torch.dtype = torch.float32, *, bias: bool = True) -> tuple[Tensor, nn.Linear, Tensor]:
    generator = torch.Generator().manual_seed(5)
    head = nn.Linear(H, V, bias=bias)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    hidden = torch.randn(T, H, generator=generator).to(dtype).requires_grad_()
    return hidden, head.to(dtype), torch.randint(V, (T,), generator=generator)


def gradients(outputs: Tensor, hidden: Tensor, head: nn.Linear) -> tuple[Tensor, ...]:
    weights = torch.linspace(-1, 2, T, dtype=outputs.dtype)
    return torch.autograd.grad((weights * outputs).sum(), [hidden, *head.parameters()])


def test_by_hand() -> None:
    head = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[math.log(9.0)], [0.0]]))  # odds 9 : 1, at temperature 2 odds 3 : 1
    hidden, targets = torch.ones(2, 1), torch.tensor([0, 1])
    logprobs, entropy = token_logprobs(hidden, head, targets, temperature=2.0, chunk=1, with_entropy=True)
    assert entropy is not None
    assert logprobs.exp().tolist() == pytest.approx([0.75, 0.25])
    assert entropy.tolist() == pytest.approx([-0.75 * math.log(0.75) - 0.25 * math.log(0.25)] * 2)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("with_entropy", [True, False])
@pytest.mark.parametrize("chunk", [1, 4, 11, 100])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-13)])
def test_equals_log_softmax_gradients_too(
    dtype: torch.dtype, tolerance: float, chunk: int, with_entropy: bool, bias: bool
) -> None:
    hidden, head, targets = case(dtype, bias=bias)
    expected = (head(hidden) / 0.7).log_softmax(-1)[torch.arange(T), targets]
    got, _ = token_logprobs(hidden, head, targets, temperature=0.7, chunk=chunk, with_entropy=with_entropy)
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)
    for a, b in zip(gradients(got, hidden, head), gradients(expected, hidden, head), strict=True):
        torch.testing.assert_close(a, b, rtol=10 * tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("chunk", [3, 100])
def test_entropy_and_its_gradient(chunk: int) -> None:
    hidden, head, targets = case(torch.float64)
    _, got = token_logprobs(hidden, head, targets, temperature=1.0, chunk=chunk, with_entropy=True)
    expected = torch.distributions.Categorical(logits=head(hidden)).entropy()
    assert got is not None
    torch.testing.assert_close(got, expected)
    for a, b in zip(gradients(got, hidden, head), gradients(expected, hidden, head), strict=True):
        torch.testing.assert_close(a, b)


def test_softmax_of_bfloat16_logits_is_taken_in_float32() -> None:
    hidden, head, targets = case(torch.bfloat16)
    got, _ = token_logprobs(hidden, head, targets, temperature=1.0, chunk=4)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, head(hidden).float().log_softmax(-1)[torch.arange(T), targets], rtol=0, atol=1e-6)


def test_nothing_as_large_as_the_logits_is_saved_for_backward() -> None:
    hidden, head, targets = case()
    saved: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        logprobs, _ = token_logprobs(hidden, head, targets, temperature=1.0, chunk=2)
    assert max(saved, default=0) <= T * H
    widest: list[int] = []
    head.register_forward_hook(lambda module, inputs, output: widest.append(output.numel()))
    gradients(logprobs, hidden, head)
    assert sum(widest) == T * V, "backward computes the logits again"
    assert max(widest) == 2 * V, "a chunk at a time"
