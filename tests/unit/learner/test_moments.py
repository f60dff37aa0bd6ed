"""AdamW's moments in 8 bits: as near to float32's as their codes are, saved by name, and as large as is planned."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from refusals import refused
from winnow.errors import RunFolderError
from winnow.learner.optimizer import Optimizer
from winnow.memory.footprint import optimizer_bytes

# Found, not imported: to import it takes a second, and every worker collects this file
pytestmark = pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="needs bitsandbytes (winnow-rl[bnb])")

RATE = 1e-3
B1, B2 = 0.9, 0.95
LARGE, SMALL = 5000, 40  # 20 blocks of 256, the last one of 136; and too small for 8 bits


def made(parameters: dict[str, nn.Parameter], moments: str = "8bit", *, masters: bool = False, **more) -> Optimizer:
    exact = {name: p.detach().float() for name, p in parameters.items()} if masters else {}
    settings = {"learning_rate": RATE, "betas": (B1, B2), "eps": 1e-12, "weight_decay": 0.0, "max_grad_norm": 1e9}
    schedule = {"schedule": "constant", "warmup_updates": 0, "total_updates": 1}
    return Optimizer(
        parameters, **{**settings, **schedule, **more}, masters=exact, seed=(0, "rounding"), moments=moments
    )


def weights(dtype: torch.dtype = torch.float32) -> dict[str, nn.Parameter]:
    return {
        "large": nn.Parameter(torch.ones(LARGE, dtype=dtype)),
        "small": nn.Parameter(torch.ones(SMALL, dtype=dtype)),
    }


def gradients(update: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(update)
    return {name: torch.randn(size, generator=generator) for name, size in (("large", LARGE), ("small", SMALL))}


def take(optimizer: Optimizer, parameters: dict[str, nn.Parameter], update: int) -> None:
    for name, gradient in gradients(update).items():
        (parameters[name] * gradient.to(parameters[name].dtype)).sum().backward()
    optimizer.step()


def test_updates_are_as_near_to_float32_s_as_the_codes_allow() -> None:
    """Under a constant gradient g, of half the largest at least, whose float32 update is the learning rate.

    The codes between a tenth of a block's largest number and that number itself are 0.9 / 64 apart for the first
    moment, which has a sign, and 0.9 / 128 for the second: rounding errs by half of that. What the update at t feels
    of the rounding after s is b^(t-s) of it. m is (1 - b1^t) g, and v is (1 - b2^t) g^2, of a quarter at least of the
    block's largest; an update goes as m / sqrt(v).
    """
    generator = torch.Generator().manual_seed(0)
    gradient = torch.empty(LARGE).uniform_(0.5, 1.0, generator=generator)
    gradient[::2] *= -1
    before, eight, exact = torch.zeros(LARGE), *({"large": nn.Parameter(torch.zeros(LARGE))} for _ in range(2))
    pairs = [(made(eight), eight), (made(exact, "float32"), exact)]
    for t in range(1, 9):
        for optimizer, parameters in pairs:
            (parameters["large"] * gradient).sum().backward()
            optimizer.step()
        wrong = sum(B1 ** (t - s) * (1 - B1**s) for s in range(1, t)) / (1 - B1**t) * (0.9 / 64 / 2) / 0.5
        wrong_v = sum(B2 ** (t - s) * (1 - B2**s) for s in range(1, t)) / (1 - B2**t) * (0.9 / 128 / 2) / 0.25
        allowed = (1 + 1.1 * wrong) / (
            1 - 1.1 * wrong_v
        ) ** 0.5 - 1  # a block's largest itself may be 1.1 times too large
        moved = (eight["large"] - before).detach()
        assert (moved + RATE * gradient.sign()).abs().max() <= RATE * (allowed + 1e-5), t
        before = eight["large"].detach().clone()
    assert not torch.equal(eight["large"], exact["large"]), "and they do have 8 bits"
    assert (eight["large"] - exact["large"]).norm() < 0.03 * exact["large"].norm()


@pytest.mark.parametrize("way", ["float32", "masters", "rounded"])
def test_a_saved_optimizer_resumes_to_the_bit(way: str, tmp_path: Path) -> None:
    dtype, masters = torch.float32 if way == "float32" else torch.bfloat16, way == "masters"
    parameters = weights(dtype)
    straight = made(parameters, masters=masters)
    for update in range(3):
        take(straight, parameters, update)
    safetensors.torch.save_file(straight.state(), tmp_path / "moments.safetensors")
    counts = json.loads(json.dumps(straight.counts()))
    again = {name: nn.Parameter(p.detach().clone()) for name, p in parameters.items()}
    resumed = made(again, masters=masters)
    resumed.load_state(safetensors.torch.load_file(tmp_path / "moments.safetensors"), counts)
    for update in range(3, 6):
        take(straight, parameters, update)
        take(resumed, again, update)
    assert all(torch.equal(again[name], p) for name, p in parameters.items())
    one, other = straight.state(), resumed.state()
    assert one.keys() == other.keys()
    assert all(torch.equal(other[name], value) for name, value in one.items())
    assert one["large/state1"].dtype == torch.uint8
    assert one["small/state1"].dtype == torch.float32
    assert (one["large/absmax1"].shape, one["large/step"].item()) == ((20,), 6)


def test_what_it_takes_is_what_is_planned() -> None:
    """2 bytes a number, 20 scales of 4 bytes twice, and the count; 8 bytes a number of what is small."""
    parameters = weights()
    optimizer = made(parameters)
    take(optimizer, parameters, 0)
    size = sum(value.numel() * value.element_size() for value in optimizer.state().values())
    model = nn.ParameterDict(parameters)
    assert size == optimizer_bytes(model, eight_bit=True) == 2 * LARGE + 2 * 20 * 4 + 8 * SMALL + 2 * 4
    assert optimizer_bytes(model) == 8 * (LARGE + SMALL) + 2 * 4


def test_the_learning_rate_is_that_of_each_update() -> None:
    """Down to a half on a line: AdamW's first two updates under a constant gradient are one learning rate each."""
    parameters = {"large": nn.Parameter(torch.zeros(LARGE))}
    optimizer = made(parameters, schedule="linear", total_updates=2)
    for expected in (-RATE, -1.5 * RATE):
        parameters["large"].sum().backward()
        optimizer.step()
        torch.testing.assert_close(parameters["large"].detach(), torch.full((LARGE,), expected), rtol=1e-4, atol=0)


def test_a_reset_forgets_them() -> None:
    parameters = weights()
    optimizer = made(parameters)
    take(optimizer, parameters, 0)
    optimizer.reset()
    assert optimizer.state() == {}


@pytest.mark.parametrize(("saved", "now", "key"), [("float32", "8bit", "exp_avg"), ("8bit", "float32", "state1")])
def test_moments_of_the_other_precision_are_refused(saved: str, now: str, key: str) -> None:
    parameters = weights()
    optimizer = made(parameters, saved)
    take(optimizer, parameters, 0)
    with refused(RunFolderError, repr(key), "'large'", repr(now), code="run_folder.other_model"):
        made(parameters, now).load_state(optimizer.state(), optimizer.counts())
