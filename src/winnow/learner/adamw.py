"""AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101) on parameters by name, one variant per way to keep the weights.

    AdamW          on the parameters themselves, in float32 or float64
    MasterAdamW    on float32 copies of 16-bit parameters; the parameters are rounded from the copies
    RoundedAdamW   on 16-bit parameters without a copy; each update is rounded stochastically
    ShardedAdamW   on this rank's share of float32 or float64 parameters

bfloat16 has 8 significant bits, and an update of AdamW is about as large as the learning rate. Updates of 1e-6 would
almost all be rounded away. For the same reason gradients of 16-bit parameters are summed over micro-batches in float32.

The moments are float32, or 8-bit blocks that are updated in float32. The 8-bit moments are those of bitsandbytes
(Dettmers et al. 2022, arXiv 2110.02861), with a scale per block of 256 numbers. With them, tensors of fewer than 4,096
numbers keep float32 moments.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cache, partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from winnow import ranks, seeds
from winnow.learner.gradient_sums import HasGradient, add_rounded
from winnow.learner.move import MOVED, START, Move, Sampler
from winnow.learner.rounding import grid_bits, offset_in_cells, stochastically_rounded
from winnow.learner.sharding import first_row, is_sharded, local_share, shard_like, share_of_rows
from winnow.memory.footprint import sample_shape
from winnow.models.bnb import LEAST_8BIT, MOMENT_BLOCK, bitsandbytes
from winnow.models.meta import number_of
from winnow.seeds import SeedName

Moments = Literal["float32", "8bit"]
State = dict[str, dict[str, Tensor]]  # parameter name -> moment name -> tensor

FLOAT32_KEYS = ("step", "exp_avg", "exp_avg_sq")  # torch's state of a parameter
EIGHT_BIT_KEYS = ("step", "state1", "state2", "absmax1", "absmax2")  # bitsandbytes'; absmax: scales of blocks
MASTER = "master"  # key of a parameter's master beside its moments in a saved state


def adamw(moments: Moments, **options: Any) -> Callable[..., torch.optim.Optimizer]:
    """A function that makes an AdamW optimizer for a list of parameters; `options` are torch's."""
    if moments == "8bit":
        return partial(bitsandbytes().optim.AdamW8bit, **options, min_8bit_size=LEAST_8BIT)
    return partial(torch.optim.AdamW, **options, fused=True)


def to_tensors(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """An optimizer's state of one parameter as tensors, for safetensors.

    bitsandbytes counts updates in an integer, which becomes a tensor. Its code tables (qmap) are the same for all
    parameters and are omitted.
    """
    tensors = {key: value for key, value in state.items() if isinstance(value, Tensor) and not key.startswith("qmap")}
    if isinstance(step := state.get("step"), int):
        tensors["step"] = torch.tensor(step, dtype=torch.float32)
    return tensors


def from_tensors(tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Any]:
    """The inverse of `to_tensors`."""
    state: dict[str, Any] = {key: value.to(device) for key, value in tensors.items()}
    if "state1" in state:
        state["step"] = int(state["step"].item())
    if "absmax1" in state:
        state |= {"qmap1": _codes(device, signed=True), "qmap2": _codes(device, signed=False)}
    return state


def saved_shape(moments: Moments, key: str, shape: torch.Size) -> torch.Size | None:
    """Shape of the tensor `key` of a parameter of shape `shape`; None where such moments have no such tensor."""
    if key == MASTER:
        return shape
    if key in (START, MOVED):
        return sample_shape(shape)
    if key not in (EIGHT_BIT_KEYS if moments == "8bit" else FLOAT32_KEYS):
        return None
    if key == "step":
        return torch.Size([])
    return torch.Size([-(-shape.numel() // MOMENT_BLOCK)]) if key.startswith("absmax") else shape


@cache
def _codes(device: torch.device, *, signed: bool) -> Tensor:
    codes: Tensor = bitsandbytes().functional.create_dynamic_map(signed=signed)
    return codes.to(device)


class Summed:
    """Parameters by name, each with the object whose `grad` holds the sum of its gradients."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], sums: Mapping[str, HasGradient]) -> None:
        self._parameters, self._sums = dict(parameters), dict(sums)
        for name, parameter in self._parameters.items():
            if self._sums[name] is not parameter:
                _sum_into(self._sums[name], parameter)

    def shape(self, name: str) -> torch.Size | None:
        """Shape of a parameter; None where it is not trained."""
        return self._parameters[name].shape if name in self._parameters else None

    def gradients(self) -> list[Tensor]:
        """Gradients of the parameters that have one."""
        return [total.grad for total in self._sums.values() if total.grad is not None]

    def sums(self) -> list[tuple[HasGradient, Tensor]]:
        """Pairs of the object whose `grad` holds a parameter's gradient, and the parameter."""
        return [(total, self._parameters[name]) for name, total in self._sums.items()]

    def clip(self, norm: Tensor, most: float) -> None:
        """Scale the gradients, whose total norm is `norm`, down to the norm `most`; 1e-6 as in torch's clipping."""
        torch._foreach_mul_(self.gradients(), (most / (norm + 1e-6)).clamp(max=1.0))

    def products(self, beta: float) -> tuple[float, float] | None:
        """Inner products of the gradient: with AdamW's mean of the earlier ones, without its bias, and with itself.

        None before the second update, and if the mean is not kept in full on this process.
        """
        return None

    def clear_gradients(self) -> None:
        """Clear all gradients before the next update's first micro-batch."""
        for total in self._sums.values():
            total.grad = None


class AdamW(Summed):
    """AdamW of torch or bitsandbytes, on parameters of float32 or float64."""

    saves_masters = False  # whether `state` contains a float32 master of every parameter

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        make: Callable[..., torch.optim.Optimizer],
        weights: Mapping[str, nn.Parameter] | None = None,
        rounded: Collection[str] = (),
    ) -> None:
        """`make(parameters, lr=...)` returns a torch optimizer for a list of parameters; `lr` is optional.

        The updated `weights` are by default the parameters themselves. Those named in `rounded` are masters, from which
        bfloat16 weights are rounded.
        """
        self._weights = dict(weights or parameters)
        super().__init__(parameters, self._weights)
        self._adamw = make(list(self._weights.values()))
        self._sampler = Sampler()
        self._start = {name: self._sampled(self._weights[name]) for name in rounded}

    @torch.no_grad()
    def products(self, beta: float) -> tuple[float, float] | None:
        pairs = [
            (weight.grad, state["exp_avg"], state["step"])
            for weight in self._weights.values()
            if weight.grad is not None and "exp_avg" in (state := self._adamw.state.get(weight, {}))
        ]
        if not pairs or any(is_sharded(gradient) for gradient, _, _ in pairs):
            return None
        along = torch.stack([torch.dot(gradient.flatten(), mean.flatten()) for gradient, mean, _ in pairs]).sum()
        square = torch.stack([torch.dot(gradient.flatten(), gradient.flatten()) for gradient, _, _ in pairs]).sum()
        both = torch.stack([along, square]).tolist()
        return both[0] / (1 - beta ** float(pairs[0][2])), both[1]

    def step(self, learning_rate: float, update: int) -> None:
        """Update every parameter from its gradient; `update` is the number of the update, from 1."""
        for group in self._adamw.param_groups:
            group["lr"] = learning_rate
        self._adamw.step()

    def reset(self) -> None:
        """Discard the moments."""
        self._adamw.state.clear()

    def offset_masters(self, *names: SeedName) -> None:
        """Move every master inside its rounding cell, by a number that depends on `names`, its parameter's name and its
        place (rounding.py). The weights that are rounded from them do not change. With shares it is an exchange of all
        ranks.
        """
        masters = {name: self._weights[name].detach() for name in self._start}
        grids = [grid_bits(local_share(master)) for master in masters.values()]
        if any(is_sharded(master) for master in masters.values()):
            grids = [min(of_ranks) for of_ranks in zip(*ranks.gather_from_all(grids), strict=True)]
        for (name, master), grid in zip(masters.items(), grids, strict=True):
            first = first_row(master) * master.shape[1:].numel()
            offset_in_cells(local_share(master), *names, name, grid=grid, first=first)
            self._start[name] = self._sampled(master)

    def moves(self) -> list[Move]:
        """The sampled moves of all masters on this rank, and of the weights that are rounded from them."""
        moves = []
        for name, start in self._start.items():
            now, used = self._sampled(self._weights[name]), self._sampled(self._parameters[name]).bfloat16()
            elements = local_share(self._weights[name]).numel()
            moves.append(Move(now - start, used.float() - start.bfloat16().float(), elements))
        return moves

    def state(self) -> State:
        """State that a resume needs besides the parameters, with masters where `saves_masters` is true. Tensors are not
        copied.
        """
        state = {name: to_tensors(self._adamw.state.get(weight, {})) for name, weight in self._weights.items()}
        if self.saves_masters:
            for name, weight in self._weights.items():
                state[name][MASTER] = weight.detach()
        for name, start in self._start.items():
            state[name][START] = share_of_rows(start, self._weights[name])
        return state

    def load_state(self, state: State) -> None:
        """Continue from a state that `state` returned."""
        numbers = {name: number for number, name in enumerate(self._weights)}  # torch's state goes by position
        saved = {
            numbers[name]: from_tensors(moments, self._weights[name].device)
            for name, of in state.items()
            if (moments := _moments_of(of))
        }
        self._adamw.load_state_dict({**self._adamw.state_dict(), "state": saved})
        for name in self._start:
            weight, start = self._weights[name], state.get(name, {}).get(START)
            if start is None:  # masters of another run's value model are a new start
                self._start[name] = self._sampled(weight)
            else:
                self._start[name] = local_share(shard_like(start, weight))

    def _sampled(self, values: Tensor) -> Tensor:
        return self._sampler(local_share(values.detach()), first_row(values))


class MasterAdamW(AdamW):
    """AdamW on float32 masters of 16-bit parameters (Micikevicius et al. 2018, arXiv 1710.03740, section 3.1).

    The model computes with the parameters. They are the masters rounded to nearest, at the start and after each update.
    """

    saves_masters = True  # parameters can be restored from masters, but not masters from parameters

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        make: Callable[..., torch.optim.Optimizer],
        masters: Mapping[str, Tensor],
    ) -> None:
        """The optimizer updates `masters` in place; it makes no copy."""
        rounded = [name for name, parameter in parameters.items() if _is_rounded(parameter)]
        super().__init__(parameters, make, {name: nn.Parameter(masters[name]) for name in parameters}, rounded)

    def step(self, learning_rate: float, update: int) -> None:
        super().step(learning_rate, update)
        self._round()

    @torch.no_grad()
    def load_state(self, state: State) -> None:
        for name, moments in state.items():
            self._weights[name].copy_(moments[MASTER])
        super().load_state(state)
        self._round()

    @torch.no_grad()
    def _round(self) -> None:
        torch._foreach_copy_(list(self._parameters.values()), list(self._weights.values()))


class ShardedAdamW(AdamW):
    """AdamW on this rank's shares (sharding.py), whose moments are shares too. Each rank updates its shares separately.

    A saved state equals that of one process. It contains the parameters as masters where 16-bit weights are rounded
    from them.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        make: Callable[..., torch.optim.Optimizer],
        *,
        rounded: Collection[str],
    ) -> None:
        super().__init__(parameters, make, rounded=rounded)
        self.saves_masters = bool(rounded)

    def clip(self, norm: Tensor, most: float) -> None:
        """See `AdamW`. The factor is a Python number, because torch cannot multiply a DTensor by a plain tensor."""
        size = number_of(norm, unknown=most)
        torch._foreach_mul_(self.gradients(), min(1.0, most / (size + 1e-6)))  # 1e-6 as in torch's clipping

    @torch.no_grad()
    def load_state(self, state: State) -> None:
        """See `AdamW`. Every rank passes whole tensors and keeps its shares of them."""
        for name, moments in state.items():
            if self.saves_masters:
                self._weights[name].copy_(shard_like(moments[MASTER], self._weights[name]))
        super().load_state({name: self._shares(name, moments) for name, moments in state.items()})

    def _shares(self, name: str, moments: Mapping[str, Tensor]) -> dict[str, Tensor]:
        like = self._weights[name]
        own = {key: value for key, value in moments.items() if key != MASTER}
        return {key: shard_like(v, like) if v.shape == like.shape and key != START else v for key, v in own.items()}


class RoundedAdamW(Summed):
    """AdamW on 16-bit parameters without masters. Each update is computed in float32 and rounded up or down at random,
    so that its expectation is exact (Gupta et al. 2015, arXiv 1502.02551, section 3.1).

    Only one parameter at a time is copied to float32. Its random numbers are a function of seed, update and name.
    """

    saves_masters = False

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        make: Callable[..., torch.optim.Optimizer],
        seed: tuple[SeedName, ...],
    ) -> None:
        super().__init__(parameters, {name: GradientSum() for name in parameters})
        self._make, self._seed = make, seed
        self._state: dict[str, dict[str, Any]] = {}  # by name, in the optimizer's own form
        self._sampler = Sampler()
        self.restart()

    def restart(self) -> None:
        """Count the moves from the present weights on."""
        parameters = self._parameters.items()
        self._start = {name: self._sampler(parameter) for name, parameter in parameters if _is_rounded(parameter)}
        self._moved = {name: torch.zeros_like(start, dtype=torch.float32) for name, start in self._start.items()}

    def step(self, learning_rate: float, update: int) -> None:
        for name, parameter in self._parameters.items():
            if self._sums[name].grad is not None:
                self._step(name, parameter, learning_rate, update)

    def reset(self) -> None:
        self._state.clear()

    def moves(self) -> list[Move]:
        """The sampled sums of exact steps, and the moves of the weights."""
        return [
            Move(self._moved[name], self._sampler(parameter).float() - self._start[name].float(), parameter.numel())
            for name, parameter in self._parameters.items()
            if name in self._start
        ]

    def state(self) -> State:
        state = {name: to_tensors(moments) for name, moments in self._state.items()}
        for name, start in self._start.items():
            state.setdefault(name, {}).update({START: start, MOVED: self._moved[name]})
        return state

    def load_state(self, state: State) -> None:
        devices = {name: parameter.device for name, parameter in self._parameters.items()}
        self._state = {
            name: from_tensors(moments, devices[name]) for name, of in state.items() if (moments := _moments_of(of))
        }
        for kept, key in ((self._start, START), (self._moved, MOVED)):
            kept.update({name: of[key].to(devices[name]) for name, of in state.items() if name in kept and key in of})

    @torch.no_grad()
    def _step(self, name: str, parameter: nn.Parameter, learning_rate: float, update: int) -> None:
        weight = nn.Parameter(parameter.detach().float())
        weight.grad = self._sums[name].grad
        before = self._sampler(weight)
        adamw = self._make([weight], lr=learning_rate)
        if name in self._state:
            adamw.state[weight] = self._state[name]
        adamw.step()
        self._state[name] = adamw.state[weight]
        if name not in self._start:  # a value head, which is float32
            parameter.copy_(weight)
            return
        self._moved[name] += self._sampler(weight) - before
        number = seeds.derive(*self._seed, update, name) % 2**63
        random = torch.Generator(device=parameter.device).manual_seed(number)
        parameter.copy_(stochastically_rounded(weight, random))


AdamWVariant = AdamW | RoundedAdamW


class GradientSum:
    """Holder of a parameter's float32 gradient sum, where no float32 parameter exists whose `grad` could hold it."""

    grad: Tensor | None = None


def _sum_into(total: HasGradient, parameter: nn.Parameter) -> None:
    """Add a 16-bit parameter's gradient to a float32 sum as soon as backward has computed it, and free it. So only the
    sums of all parameters are in memory together.
    """

    def add(parameter: Tensor) -> None:
        assert parameter.grad is not None
        if total.grad is None:
            total.grad = parameter.grad.float()
        else:
            add_rounded(total.grad, parameter.grad)
        parameter.grad = None

    parameter.register_post_accumulate_grad_hook(add)  # type: ignore[no-untyped-call]


def _is_rounded(parameter: Tensor) -> bool:
    """Whether a parameter has fewer bits than its optimizer's float32. A value head has not."""
    return parameter.dtype.itemsize < torch.float32.itemsize


def _moments_of(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key: value for key, value in state.items() if key not in (MASTER, START, MOVED)}
