"""16-bit weights: float32 masters, float32 sums of gradients, and updates rounded at random."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from refusals import refused
from winnow.errors import RunFolderError
from winnow.learner.optimizer import Optimizer, Trained

ULP = 2**-7  # between 1 and 2, bfloat16's numbers are so far apart


def made(parameters: dict[str, nn.Parameter], *, masters: bool = False, **changes: object) -> Optimizer:
    settings = {
        "learning_rate": 1e-6,
        "betas": (0.9, 0.95),
        "eps": 1e-8,
        "weight_decay": 0.0,
        "max_grad_norm": 1e9,
        "schedule": "constant",
        "warmup_updates": 0,
        "total_updates": 1,
        "masters": {name: p.detach().float() for name, p in parameters.items()} if masters else {},
        "seed": (3, "rounding"),
    }
    return Optimizer(parameters, **{**settings, **changes})


def ones(count: int = 4, dtype: torch.dtype = torch.bfloat16) -> dict[str, nn.Parameter]:
    return {"w": nn.Parameter(torch.ones(count, dtype=dtype))}


def update(of: Optimizer, parameters: dict[str, nn.Parameter], gradient: float = 1.0) -> None:
    for parameter in parameters.values():
        (gradient * parameter.sum()).backward()
    of.step()


def test_masters_move_where_rounded_weights_do_not() -> None:
    """AdamW's step is the learning rate for a constant gradient, and a half of an ulp is 2^-8: 40 steps of 1e-4 are
    0.004, which rounds up to 2^-7, and 38 are not."""
    parameters = ones()
    optimizer = made(parameters, masters=True, learning_rate=1e-4)
    for _ in range(38):
        update(optimizer, parameters, gradient=-1.0)
    assert parameters["w"].tolist() == [1.0] * 4
    assert optimizer.state()["w/master"].tolist() == pytest.approx([1.0038] * 4, abs=1e-6)
    for _ in range(2):
        update(optimizer, parameters, gradient=-1.0)
    assert parameters["w"].tolist() == [1 + ULP] * 4


def test_masters_take_the_steps_of_float32_weights() -> None:
    """Under equal gradients, to the bit, clipping and decay included."""
    exact, rounded = ones(dtype=torch.float32), ones()
    settings = {"learning_rate": 1e-3, "weight_decay": 0.1, "max_grad_norm": 0.5}
    one, other = made(exact, **settings), made(rounded, masters=True, **settings)
    for gradient in (1.0, -2.0, 0.25):
        update(one, exact, gradient)
        update(other, rounded, gradient)
    master = other.state()["w/master"]
    assert torch.equal(exact["w"].detach(), master)
    assert torch.equal(rounded["w"].detach(), master.bfloat16())


@pytest.mark.parametrize("masters", [False, True])
def test_gradients_of_micro_batches_are_summed_in_float32(masters: bool) -> None:
    """256 + 1 is 256 in bfloat16, so a sum of 256 and ones would never grow."""
    parameters = ones(1)
    optimizer = made(parameters, masters=masters)
    for gradient in (256.0, 1.0, 1.0, 1.0):
        (gradient * parameters["w"]).sum().backward()
    (total,) = optimizer.gradients()
    assert (total.dtype, total.tolist()) == (torch.float32, [259.0])
    assert parameters["w"].grad is None, "of 16-bit gradients, no more than one is in memory"
    assert optimizer.step().grad_norm == 259.0
    assert optimizer.gradients() == []


def test_without_masters_weights_move_by_as_much_on_average() -> None:
    """50 steps of 1e-4 are two thirds of an ulp, each of which nearest rounding would lose. The mean of so many numbers
    deviates by 0.2% of it: the square root of 0.64 x 0.36 / 400,000, over 0.64."""
    count, steps = 400_000, 50
    parameters = ones(count)
    optimizer = made(parameters, learning_rate=1e-4)
    for _ in range(steps):
        update(optimizer, parameters, gradient=-1.0)
    moved = parameters["w"].detach().float() - 1
    assert moved.mean().item() == pytest.approx(steps * 1e-4, rel=0.01)
    assert torch.equal(moved / ULP, (moved / ULP).round()), "by whole steps of bfloat16's"
    assert optimizer.state()["w/exp_avg"].dtype == torch.float32


def test_clipping_without_masters() -> None:
    """To a norm of 3 from 4: AdamW's second step feels the scale of its gradients."""
    clipped, scaled = ones(), ones()
    one, other = made(clipped, max_grad_norm=3.0), made(scaled)
    for gradient in (2.0, 1.0):
        update(one, clipped, gradient)
        update(other, scaled, min(gradient, 1.5))
    for name, value in other.state().items():
        torch.testing.assert_close(one.state()[name], value, rtol=1e-5, atol=0)


@pytest.mark.parametrize("masters", [False, True])
def test_a_saved_optimizer_resumes_to_the_bit(masters: bool) -> None:
    """The saved weights are those of 16 bits; a resume starts with masters of those."""
    gradients = (1.0, -3.0, 2.0, 0.5)
    parameters = ones(1000)
    straight = made(parameters, masters=masters, learning_rate=1e-3)
    for gradient in gradients[:2]:
        update(straight, parameters, gradient)
    saved = {name: value.clone() for name, value in straight.state().items()}
    again = {"w": nn.Parameter(parameters["w"].detach().clone())}
    counts = straight.counts()
    for gradient in gradients[2:]:
        update(straight, parameters, gradient)

    resumed = made(again, masters=masters, learning_rate=1e-3)
    resumed.load_state(saved, counts)
    for gradient in gradients[2:]:
        update(resumed, again, gradient)
    assert torch.equal(again["w"], parameters["w"])
    same(resumed.state(), straight.state())


def test_a_reset_forgets_moments_and_no_master() -> None:
    parameters = ones()
    optimizer = made(parameters, masters=True, learning_rate=1e-3)
    update(optimizer, parameters)
    kept = {name: optimizer.state()[name].clone() for name in ("w/master", "w/start")}
    optimizer.reset()
    same(optimizer.state(), kept)


def test_random_rounding_is_a_function_of_seed_update_and_name() -> None:
    def moved(name: str, seed: int) -> tuple[list[float], list[float]]:
        """By two updates that differ in their number alone."""
        parameters = {name: nn.Parameter(torch.ones(200, dtype=torch.bfloat16))}
        optimizer = made(parameters, learning_rate=ULP / 8, seed=(seed,))
        update(optimizer, parameters)
        first = parameters[name].tolist()
        optimizer.reset()
        parameters[name].data.fill_(1.0)
        update(optimizer, parameters)
        return first, parameters[name].tolist()

    first, second = moved("a", 0)
    assert (first, second) == moved("a", 0)
    assert first != second
    assert moved("a", 0) != moved("b", 0)
    assert moved("a", 0) != moved("a", 1)


@pytest.mark.parametrize("masters", [False, True])
def test_a_state_of_another_precision_is_refused(masters: bool) -> None:
    """Weights that a run without masters has trained are not these masters, nor the other way round."""
    parameters, others = ones(), ones()
    optimizer, other = made(parameters, masters=masters), made(others, masters=not masters)
    update(optimizer, parameters)
    with refused(RunFolderError, "'w'", key="optimizer.master_weights", code="run_folder.other_model"):
        other.load_state(optimizer.state(), optimizer.counts())


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


@pytest.mark.parametrize("masters", [False, True])
def test_gradients_of_an_embedding_without_its_output_layer_are_summed(masters: bool) -> None:
    """Those of a separate value model are sparse."""
    embedding = nn.Embedding(6, 2, sparse=True, dtype=torch.bfloat16)
    optimizer = made({"w": embedding.weight}, masters=masters)
    trained = Trained(None, optimizer)
    for tokens in ([1, 1, 4], [4]):
        trained.backward(embedding(torch.tensor(tokens)).sum())
    (total,) = optimizer.gradients()
    assert (total.dtype, total[:, 0].tolist()) == (torch.float32, [0, 2, 0, 0, 2, 0])
