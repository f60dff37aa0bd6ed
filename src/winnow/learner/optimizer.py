"""The optimizer: AdamW with clipping, a learning-rate schedule, and a state that fits in safetensors and JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from winnow.errors import RunFolderError
from winnow.learner.adamw import MASTER, AdamW, MasterAdamW, RoundedAdamW, Rule, ShardedAdamW, State
from winnow.learner.gradient_sums import HasGradient
from winnow.learner.moments import Moments, adamw, saved_shape
from winnow.learner.sharding import is_sharded, whole
from winnow.seeds import SeedName

Schedule = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """What one update did."""

    grad_norm: float  # before clipping, over all parameters
    learning_rate: float
    skipped: bool  # True when the parameters were left alone


class Optimizer:
    """AdamW on parameters by name; see adamw.py.

    `warmup_updates` and `total_updates` count updates, skipped ones included; `total_updates` is where a decaying
    schedule reaches zero. Of 16-bit parameters float32 `masters` are trained, which are taken over; without them
    updates are rounded at random, by numbers that `seed` gives. `moments` says what AdamW's are kept in (moments.py).
    Parameters of which a rank has a share may themselves be the masters: `saves_masters`.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        *,
        learning_rate: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        max_grad_norm: float,
        schedule: Schedule,
        warmup_updates: int,
        total_updates: int,
        masters: Mapping[str, Tensor] = MappingProxyType({}),
        seed: tuple[SeedName, ...] = (),
        moments: Moments = "float32",
        saves_masters: bool = False,
    ) -> None:
        make = adamw(moments, lr=learning_rate, betas=betas, eps=eps, weight_decay=weight_decay)
        self._moments: Moments = moments
        self._adamw = _rule(parameters, make, masters, seed, saves_masters)
        self._base_rate = learning_rate
        self._max_grad_norm = max_grad_norm
        self._schedule: Schedule = schedule
        self._warmup = warmup_updates
        self._total = total_updates
        self.updates = 0  # so far, skipped ones included
        self.not_finite = 0  # the last ones in a row that a gradient which is not finite made it skip
        self.taken = 0  # in this process, begun ones included: as long as it stands, so do parameters and moments

    @property
    def learning_rate(self) -> float:
        """Of the next update."""
        return self._base_rate * rate_factor(self._schedule, self.updates, warmup=self._warmup, total=self._total)

    @property
    def saves_masters(self) -> bool:
        """Whether `state` has float32 masters, which the parameters are rounded from."""
        return self._adamw.saves_masters

    def gradients(self) -> list[Tensor]:
        """Summed over the micro-batches so far, of the parameters that have one; of 16-bit ones, in float32."""
        return self._adamw.gradients()

    def sums(self) -> list[tuple[HasGradient, Tensor]]:
        """What holds the gradient of each parameter, and the parameter."""
        return self._adamw.sums()

    def step(self) -> UpdateResult:
        """One update from the gradients, which are cleared. A gradient that is not finite changes nothing else."""
        norm = whole(torch.nn.utils.get_total_norm(self.gradients()))
        result = self._advance(norm.item(), skipped=not math.isfinite(norm.item()))
        self.not_finite = self.not_finite + 1 if result.skipped else 0
        if not result.skipped:
            self.taken += 1
            if result.grad_norm > self._max_grad_norm:
                self._adamw.clip(norm, self._max_grad_norm)
            self._adamw.step(result.learning_rate, self.updates)
        self._adamw.clear_gradients()
        return result

    def skip(self) -> UpdateResult:
        """The update of an empty batch: only the schedule advances."""
        return self._advance(0.0, skipped=True)

    def reset(self) -> None:
        """Forget the moments; the schedule goes on."""
        self._adamw.reset()

    def state(self) -> dict[str, Tensor]:
        """Moments, and masters where there are any, by name, for safetensors. The tensors are the live ones: write
        them now.
        """
        return {f"{name}/{key}": value for name, of in self._adamw.state().items() for key, value in of.items()}

    def counts(self) -> dict[str, Any]:
        """What else a resume needs, for JSON."""
        return {"updates": self.updates, "not_finite": self.not_finite}

    def load_state(self, tensors: Mapping[str, Tensor], counts: Mapping[str, Any]) -> None:
        """Continue where `state` and `counts` were taken. Raises RunFolderError when it is of other parameters."""
        state: State = {}
        for full_name, value in tensors.items():
            name, _, key = full_name.rpartition("/")
            self._check(name, key, value)
            state.setdefault(name, {})[key] = value
        self._check_masters([name for name, of in state.items() if (MASTER in of) != self._adamw.saves_masters])
        self._adamw.load_state(state)
        self.updates, self.not_finite = counts["updates"], counts["not_finite"]

    def set_masters(self, exact: Mapping[str, Tensor]) -> None:
        """Give every parameter that has a master these weights, before the first update."""
        if self._adamw.saves_masters:
            self._adamw.load_state({name: {MASTER: value} for name, value in exact.items()})

    def _advance(self, grad_norm: float, *, skipped: bool) -> UpdateResult:
        result = UpdateResult(grad_norm=grad_norm, learning_rate=self.learning_rate, skipped=skipped)
        self.updates += 1
        return result

    def _check_masters(self, otherwise: list[str]) -> None:
        """Weights that were trained in another precision are refused: the old masters, or none, are not these."""
        if otherwise:
            has = "no float32 master" if self._adamw.saves_masters else "a float32 master"
            raise RunFolderError(
                f"the saved optimizer has {has} of {otherwise[0]!r}: the run was in another precision",
                remedy="resume with the model.dtype and optimizer.master_weights that it had, or start a new run with "
                "the checkpoint as model.path",
                key="optimizer.master_weights",
                code="run_folder.other_model",
            )

    def _check(self, name: str, key: str, value: Tensor) -> None:
        shape = self._adamw.shape(name)
        if shape is None:
            problem = f"has {name!r}, which is not trained now"
        elif (wanted := shape if key == MASTER else saved_shape(self._moments, key, shape)) is None:
            problem = f"has {key!r} of {name!r}, which is none of optimizer.moments = {self._moments!r}"
        elif value.shape != wanted:
            problem = f"has {name!r} of shape {tuple(value.shape)}, the model has {tuple(wanted)}"
        else:
            return
        raise RunFolderError(
            f"the saved optimizer {problem}",
            remedy="resume with the model, the adapters and the moments that the run started with",
            code="run_folder.other_model",
        )


def _rule(
    parameters: Mapping[str, nn.Parameter],
    make: Callable[..., torch.optim.Optimizer],
    masters: Mapping[str, Tensor],
    seed: tuple[SeedName, ...],
    saves_masters: bool,
) -> Rule:
    if any(is_sharded(parameter) for parameter in parameters.values()):
        return ShardedAdamW(parameters, make, saves_masters=saves_masters)
    if masters:
        return MasterAdamW(parameters, make, masters)
    if any(parameter.dtype.itemsize < 4 for parameter in parameters.values()):
        return RoundedAdamW(parameters, make, seed)
    return AdamW(parameters, make)


def rate_factor(schedule: Schedule, updates: int, *, warmup: int, total: int) -> float:
    """The learning rate after `updates` updates, as a share of the base: a linear rise over `warmup` of them, then
    constant, or down to 0 at `total` on a line or half a cosine.
    """
    if updates < warmup:
        return (updates + 1) / (warmup + 1)
    progress = min(1.0, (updates - warmup) / max(1, total - warmup))
    match schedule:
        case "constant":
            return 1.0
        case "linear":
            return 1.0 - progress
        case "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * progress))
