"""How far bfloat16 weights follow their optimizer, with and without an offset of the masters."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from winnow.learner.move import Move, Sampler, followed, products
from winnow.learner.optimizer import Optimizer
from winnow.memory.footprint import sample_shape

ULP = 2**-7  # between 1 and 2, bfloat16's numbers are so far apart
WAYS = {
    "nearest": {"masters": True},
    "offset": {"masters": True, "master_offset": True},
    "rounded": {},
}


def sampled(values: Tensor, first_row: int = 0) -> Tensor:
    return Sampler()(values, first_row)


def made(parameters: dict[str, nn.Parameter], *, masters: bool = False, **changes: object) -> Optimizer:
    settings = {
        "learning_rate": 1e-4,
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


def ones(*shape: int, dtype: torch.dtype = torch.bfloat16) -> dict[str, nn.Parameter]:
    return {"w": nn.Parameter(torch.ones(shape, dtype=dtype))}


def update(of: Optimizer, parameters: dict[str, nn.Parameter], gradient: float = -1.0, times: int = 1) -> None:
    """AdamW's step under a constant gradient is the learning rate."""
    for _ in range(times):
        for parameter in parameters.values():
            (gradient * parameter.sum()).backward()
        of.step()


@pytest.mark.parametrize(
    ("shape", "sample"),
    [
        ((64, 128), (64, 2)),
        ((64, 130), (64, 3)),
        ((3, 4, 32), (3, 2)),
        ((7,), (7, 1)),
        ((), (1, 1)),
        ((0, 128), (0, 2)),
    ],
)
def test_a_sample_has_one_in_64_of_a_row_rounded_up(shape: tuple[int, ...], sample: tuple[int, ...]) -> None:
    values = torch.arange(torch.Size(shape).numel()).reshape(shape)
    assert sample_shape(torch.Size(shape)) == sample == sampled(values).shape
    assert sampled(values).unique().numel() == torch.Size(sample).numel(), "no element twice"


def test_a_sample_has_every_column_equally_often_and_is_divided_by_rows() -> None:
    columns = torch.arange(128).expand(192, 128)
    assert sampled(columns).flatten().bincount(minlength=128).tolist() == [3] * 128
    values = torch.randn(193, 130)
    assert torch.equal(torch.cat([sampled(values[:97]), sampled(values[97:], 97)]), sampled(values))


def test_the_share_and_the_noise_of_a_move() -> None:
    """The exact move (3, 4) has the squared length 25. (6, 8) follows it twice. (-4, 3) is at a right angle to it, and
    as long. A sample of 2 of 20 elements counts ten times."""

    def of(used: list[float], elements: int = 2) -> list[float]:
        return products([Move(torch.tensor([3.0, 4.0]), torch.tensor(used), elements)]).tolist()

    assert of([6, 8], 20) == [250, 500, 1000]
    assert followed(*of([6, 8])) == {"move_followed": 2, "move_noise": 0}
    assert followed(*of([-4, 3])) == {"move_followed": 0, "move_noise": 1}
    assert followed(*of([-1, 7])) == {"move_followed": 1, "move_noise": 1}
    assert followed(0.0, 0.0, 0.0) == {}, "before the first move"
    both = products([Move(torch.ones(2), torch.zeros(2), 2), Move(torch.ones(1), torch.ones(1), 4)])
    assert both.tolist() == [6, 4, 4]


def test_masters_in_the_middle_of_their_cells_leave_their_weights_behind() -> None:
    """Half a cell is 2^-8: 38 steps of 1e-4 cross nothing, and after 40 every weight has made 2^-7 of 0.004."""
    parameters = ones(64, 64)
    optimizer = made(parameters, masters=True)
    assert optimizer.moved() == {}
    update(optimizer, parameters, times=38)
    assert optimizer.moved() == {"move_followed": 0, "move_noise": 0}
    update(optimizer, parameters, times=2)
    assert optimizer.moved() == pytest.approx({"move_followed": ULP / 0.004, "move_noise": 0}, rel=1e-3)


@pytest.mark.parametrize("way", ["offset", "rounded"])
def test_weights_follow_from_the_first_step_on(way: str) -> None:
    """In each of 65,536 sampled elements, a step of 1e-4 crosses with the chance 1e-4 / 2^-7 = 1.3%, and moves 78 times
    as far: the share deviates by the square root of 77 / 65,536, which is 3%, and the noise is 77."""
    parameters = ones(4096, 1024)
    optimizer = made(parameters, **WAYS[way])
    update(optimizer, parameters)
    moved = optimizer.moved()
    assert moved["move_followed"] == pytest.approx(1, abs=0.12)
    assert moved["move_noise"] == pytest.approx(77, rel=0.12)


def test_weights_of_32_bits_and_a_value_head_are_not_compared() -> None:
    parameters = ones(8, dtype=torch.float32)
    optimizer = made(parameters)
    update(optimizer, parameters)
    assert optimizer.moved() == {}
    assert "w/start" not in optimizer.state()
    for way in WAYS.values():
        both = {**ones(8), "value_head.weight": nn.Parameter(torch.ones(8))}
        optimizer = made(both, **way)
        update(optimizer, both)
        assert [name for name in optimizer.state() if name.endswith("/start")] == ["w/start"]
        assert optimizer.state().get("value_head.weight/master", torch.ones(1)).unique().numel() == 1, "no offset"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("moments", ["float32", "8bit"])
def test_a_resume_goes_on_from_the_same_start(way: str, moments: str) -> None:
    if moments == "8bit":
        pytest.importorskip("bitsandbytes")
    straight, resumed = ones(64, 128), ones(64, 128)
    one = made(straight, moments=moments, **WAYS[way])
    update(one, straight, times=2)
    saved, counts = {name: value.clone() for name, value in one.state().items()}, one.counts()
    for name, parameter in resumed.items():
        parameter.data.copy_(straight[name].data)
    other = made(resumed, moments=moments, **WAYS[way])
    other.load_state(saved, counts)
    for optimizer, parameters in ((one, straight), (other, resumed)):
        update(optimizer, parameters, gradient=0.5, times=2)
    assert one.moved() == other.moved() != {}
    assert torch.equal(straight["w"], resumed["w"])
    same(one.state(), other.state())


def test_masters_of_another_run_keep_their_places_and_are_a_new_start() -> None:
    """A value model may start from another run's. Its masters have places in their cells, and numbers of bfloat16 get
    some."""
    for exact, moves in ((torch.randn(64, 64), False), (torch.randn(64, 64).bfloat16().float(), True)):
        parameters = ones(64, 64)
        optimizer = made(parameters, masters=True, master_offset=True)
        optimizer.set_masters({"w": exact})
        master = optimizer.state()["w/master"]
        assert torch.equal(master.bfloat16(), exact.bfloat16())
        assert torch.equal(parameters["w"].detach(), exact.bfloat16())
        assert torch.equal(master, exact) != moves
        assert torch.equal(optimizer.state()["w/start"], sampled(master))


def test_weights_of_another_run_are_a_new_start_without_masters() -> None:
    parameters = ones(64, 64)
    optimizer = made(parameters)
    parameters["w"].data.fill_(3.0)  # as `Critic.start` copies the weights, before it sets the masters
    optimizer.set_masters({"w": torch.full((64, 64), 3.0)})
    assert torch.equal(optimizer.state()["w/start"], sampled(parameters["w"].detach()))


def test_an_offset_depends_on_seed_and_name_and_changes_no_weight() -> None:
    def master(seed: int, name: str) -> Tensor:
        parameters = {name: nn.Parameter(torch.ones(99, dtype=torch.bfloat16))}
        optimizer = made(parameters, masters=True, master_offset=True, seed=(seed, "rounding"))
        assert torch.equal(parameters[name].detach(), torch.ones(99, dtype=torch.bfloat16))
        return optimizer.state()[f"{name}/master"].clone()

    assert torch.equal(master(3, "a"), master(3, "a"))
    assert not torch.equal(master(3, "a"), master(4, "a"))
    assert not torch.equal(master(3, "a"), master(3, "b"))


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name
