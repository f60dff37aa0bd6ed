from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from refusals import refused
from winnow.errors import RunFolderError
from winnow.learner.optimizer import Optimizer, Schedule, rate_factor


def parameters(dtype: torch.dtype = torch.float32) -> dict[str, nn.Parameter]:
    generator = torch.Generator().manual_seed(2)
    shapes = {"layer.weight": (3, 4), "layer.bias": (4,)}
    return {name: nn.Parameter(torch.randn(s, generator=generator).to(dtype)) for name, s in shapes.items()}


def optimizer(of: dict[str, nn.Parameter], **changes: object) -> Optimizer:
    defaults = {
        "learning_rate": 0.1,
        "betas": (0.9, 0.95),
        "eps": 1e-8,
        "weight_decay": 0.01,
        "max_grad_norm": 1.0,
        "schedule": "cosine",
        "warmup_updates": 2,
        "total_updates": 6,
    }
    return Optimizer(of, **{**defaults, **changes})


def set_gradients(of: dict[str, nn.Parameter], update: int) -> None:
    generator = torch.Generator().manual_seed(update)
    for parameter in of.values():
        parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)


def values(of: dict[str, nn.Parameter]) -> list[Tensor]:
    return [p.detach().clone() for p in of.values()]


def test_adamw_by_hand() -> None:
    w = nn.Parameter(torch.tensor([2.0], dtype=torch.float64))
    opt = optimizer({"w": w}, schedule="constant", warmup_updates=0, weight_decay=0.5, max_grad_norm=10.0)
    w.grad = torch.tensor([3.0], dtype=torch.float64)
    opt.step()
    # decay: 2 (1 - 0.1 x 0.5); the first Adam direction is the gradient's sign
    assert w.item() == pytest.approx(2 * 0.95 - 0.1, abs=1e-9)
    w.grad = torch.tensor([1.0], dtype=torch.float64)
    opt.step()
    mean = (0.9 * 0.1 * 3 + 0.1 * 1) / (1 - 0.9**2)
    square = (0.95 * 0.05 * 9 + 0.05 * 1) / (1 - 0.95**2)
    assert w.item() == pytest.approx(1.8 * 0.95 - 0.1 * mean / math.sqrt(square), abs=1e-8)


def test_clipping_is_by_the_global_norm() -> None:
    """Adam's first direction does not feel the scale, its second does: clip both updates of one, none of the other."""
    clipped, scaled = parameters(torch.float64), parameters(torch.float64)
    one, other = optimizer(clipped, max_grad_norm=0.5), optimizer(scaled, max_grad_norm=1e9)
    for update in range(3):
        set_gradients(clipped, update)
        set_gradients(scaled, update)
        norm = math.sqrt(sum(p.grad.square().sum().item() for p in scaled.values()))
        for parameter in scaled.values():
            parameter.grad *= 0.5 / norm
        result = one.step()
        assert result.grad_norm == pytest.approx(norm)
        assert other.step().grad_norm == pytest.approx(0.5)
    for a, b in zip(values(clipped), values(scaled), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_gradients_are_cleared() -> None:
    of = parameters()
    opt = optimizer(of)
    set_gradients(of, 0)
    opt.step()
    assert all(p.grad is None for p in of.values())


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_changes_nothing_but_the_count(poison: float) -> None:
    of = parameters()
    opt = optimizer(of)
    before = values(of)
    set_gradients(of, 0)
    of["layer.bias"].grad[1] = poison
    result = opt.step()
    assert result.skipped
    assert not math.isfinite(result.grad_norm)
    assert opt.updates == 1
    assert all(torch.equal(a, b) for a, b in zip(values(of), before, strict=True))
    assert all(p.grad is None for p in of.values())
    assert opt.state() == {}


def test_skip_advances_the_schedule_alone() -> None:
    of = parameters()
    opt = optimizer(of, schedule="linear", warmup_updates=0, total_updates=4)
    before = values(of)
    result = opt.skip()
    assert (result.skipped, result.learning_rate, result.grad_norm) == (True, 0.1, 0.0)
    assert all(torch.equal(a, b) for a, b in zip(values(of), before, strict=True))
    set_gradients(of, 0)
    assert opt.step().learning_rate == pytest.approx(0.075)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [1 / 3, 2 / 3, 1, 1, 1, 1, 1, 1]),
        ("linear", [1 / 3, 2 / 3, 1, 0.75, 0.5, 0.25, 0, 0]),
        ("cosine", [1 / 3, 2 / 3, 1, 0.5 + math.sqrt(0.125), 0.5, 0.5 - math.sqrt(0.125), 0, 0]),
    ],
)
def test_schedules_by_hand(schedule: Schedule, expected: list[float]) -> None:
    assert [rate_factor(schedule, u, warmup=2, total=6) for u in range(8)] == pytest.approx(expected)


def test_a_warmup_longer_than_the_run_never_divides_by_zero() -> None:
    assert rate_factor("cosine", 3, warmup=3, total=2) == 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_resuming_is_bitwise_invisible(dtype: torch.dtype, tmp_path: Path) -> None:
    straight, resumed = parameters(dtype), parameters(dtype)
    whole, first = optimizer(straight), optimizer(resumed)
    for update in range(6):
        set_gradients(straight, update)
        whole.step()
    for update in range(3):
        set_gradients(resumed, update)
        first.step()
    tensors, counts = first.state(), first.counts()
    safetensors.torch.save_file(tensors, tmp_path / "optimizer.safetensors")
    text = json.dumps(counts)
    second = optimizer(resumed)
    second.load_state(safetensors.torch.load_file(tmp_path / "optimizer.safetensors"), json.loads(text))
    for update in range(3, 6):
        set_gradients(resumed, update)
        second.step()
    assert all(torch.equal(a, b) for a, b in zip(values(straight), values(resumed), strict=True))
    assert second.updates == 6
    for name, tensor in whole.state().items():
        assert torch.equal(tensor, second.state()[name])


def test_a_state_of_other_parameters_is_refused() -> None:
    of = parameters()
    opt = optimizer(of)
    set_gradients(of, 0)
    opt.step()
    tensors, counts = opt.state(), opt.counts()
    with refused(RunFolderError, "'layer.weight'", code="run_folder.other_model"):
        optimizer({"other": nn.Parameter(torch.zeros(2))}).load_state(tensors, counts)
    wider = {"layer.weight": nn.Parameter(torch.zeros(5, 4)), "layer.bias": nn.Parameter(torch.zeros(4))}
    with refused(RunFolderError, "'layer.weight'", (3, 4), (5, 4), code="run_folder.other_model"):
        optimizer(wider).load_state(tensors, counts)


def test_consecutive_skipped_updates_are_counted_across_a_resume() -> None:
    """Empty batches are none of them; the first one that is taken ends the row."""
    of = parameters()
    opt = optimizer(of)
    for bad in (True, True):
        set_gradients(of, 0)
        if bad:
            next(iter(of.values())).grad[0] = math.nan
        opt.step()
        opt.skip()
    assert (opt.not_finite, opt.taken, opt.updates) == (2, 0, 4)
    resumed = optimizer(of)
    tensors, counts = opt.state(), opt.counts()
    resumed.load_state(tensors, json.loads(json.dumps(counts)))
    assert (resumed.not_finite, resumed.taken, resumed.updates) == (2, 0, 4)
    set_gradients(of, 1)
    resumed.step()
    assert (resumed.not_finite, resumed.taken, resumed.updates) == (0, 1, 5)


def test_the_norm_of_millions_of_numbers_is_exact_to_float32():
    generator = torch.Generator().manual_seed(0)
    of = {"w": nn.Parameter(torch.zeros(8192, 512)), "b": nn.Parameter(torch.zeros(3))}
    for parameter in of.values():
        parameter.grad = 1e-4 * torch.randn(parameter.shape, generator=generator)
    exact = math.sqrt(sum(parameter.grad.double().square().sum().item() for parameter in of.values()))
    assert optimizer(of).step().grad_norm == pytest.approx(exact, rel=1e-6)


def test_products_of_the_gradient_with_the_mean_of_earlier_ones_by_hand() -> None:
    """AdamW's mean without its bias is the first gradient, then the one of weights 0.9 and 1."""
    of = {"a": nn.Parameter(torch.zeros(2)), "b": nn.Parameter(torch.zeros(1))}
    plain, trained = optimizer(of), optimizer(of, max_grad_norm=1e9, betas=(0.9, 0.99))
    assert plain.measures_signal is False
    trained.measures_signal = True
    found = []
    for gradient in ([1.0, 2.0, 0.0], [3.0, -1.0, 2.0], [1.0, 1.0, 1.0]):
        of["a"].grad, of["b"].grad = torch.tensor(gradient[:2]), torch.tensor(gradient[2:])
        found.append(trained.step().products)
    assert found[0] is None
    assert found[1] == pytest.approx((1.0, 14.0), rel=1e-5)
    mean = [(0.9 * one + two) / 1.9 for one, two in zip([1.0, 2.0, 0.0], [3.0, -1.0, 2.0], strict=True)]
    assert found[2] == pytest.approx((sum(mean), 3.0), rel=1e-5)
    of["a"].grad, of["b"].grad = torch.ones(2), torch.ones(1)
    assert plain.step().products is None


def test_products_are_of_the_clipped_gradient() -> None:
    of = {"a": nn.Parameter(torch.zeros(1))}
    trained = optimizer(of, max_grad_norm=0.5)
    trained.measures_signal = True
    for gradient in (0.25, 4.0):
        of["a"].grad = torch.tensor([gradient])
        last = trained.step().products
    assert last == pytest.approx((0.125, 0.25), rel=1e-4)
