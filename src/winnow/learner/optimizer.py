"""The optimizer: AdamW with clipping, a learning-rate schedule, and a state for safetensors and JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from winnow.errors import RunFolderError
from winnow.learner.adamw import MASTER, AdamW, AdamWVariant, MasterAdamW, RoundedAdamW, ShardedAdamW, State
from winnow.learner.gradient_sums import HasGradient
from winnow.learner.moments import Moments, adamw, saved_shape
from winnow.learner.sharding import gather_whole, is_sharded
from winnow.seeds import SeedName

Schedule = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """Result of one update."""

    grad_norm: float  # before clipping, over all parameters
    learning_rate: float
    skipped: bool  # True when the parameters did not change


class Optimizer:
    """AdamW on parameters by name; see adamw.py.

    `warmup_updates` and `total_updates` count updates, skipped ones included. A decaying schedule reaches zero at
    `total_updates`. With `masters`, the float32 masters of 16-bit parameters are trained, in place. Without them,
    updates of 16-bit parameters are rounded at random, from `seed`. `moments` is the precision of AdamW's moments
    (moments.py). `saves_masters` is true where sharded parameters are themselves the masters.
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
        self._adamw = _make_variant(parameters, make, masters, seed, saves_masters)
        self._base_rate = learning_rate
        self._max_grad_norm = max_grad_norm
        self._schedule: Schedule = schedule
        self._warmup = warmup_updates
        self._total = total_updates
        self.updates = 0  # so far, skipped ones included
        self.not_finite = 0  # latest consecutive updates that were skipped for a gradient that is not finite
        self.taken = 0  # updates started in this process; while it is unchanged, so are parameters and moments

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next update."""
        return self._base_rate * rate_factor(self._schedule, self.updates, warmup=self._warmup, total=self._total)

    @property
    def saves_masters(self) -> bool:
        """Whether `state` contains the float32 masters that the parameters are rounded from."""
        return self._adamw.saves_masters

    def gradients(self) -> list[Tensor]:
        """Gradients summed over the micro-batches so far, of the parameters that have one; float32 for 16-bit
        parameters.
        """
        return self._adamw.gradients()

    def sums(self) -> list[tuple[HasGradient, Tensor]]:
        """Pairs of the object whose `grad` holds a parameter's gradient, and the parameter."""
        return self._adamw.sums()

    def step(self) -> UpdateResult:
        """Make one update from the gradients. For a gradient that is not finite, only the schedule advances. The
        gradients are cleared in both cases.
        """
        norm = gather_whole(torch.nn.utils.get_total_norm(self.gradients()))
        result = self._advance(norm.item(), skipped=not math.isfinite(norm.item()))
        self.not_finite = self.not_finite + 1 if result.skipped else 0
        if not result.skipped:
            self.taken += 1  # before the first change, so that an interrupted update counts
            if result.grad_norm > self._max_grad_norm:
                self._adamw.clip(norm, self._max_grad_norm)
            self._adamw.step(result.learning_rate, self.updates)
        self._adamw.clear_gradients()
        return result

    def skip(self) -> UpdateResult:
        """The update of an empty batch: only the schedule advances."""
        return self._advance(0.0, skipped=True)

    def reset(self) -> None:
        """Discard the moments; the schedule continues."""
        self._adamw.reset()

    def state(self) -> dict[str, Tensor]:
        """Moments by name, with masters where there are any, for safetensors. They are not copied: write them before
        the next `step`.
        """
        return {f"{name}/{key}": value for name, of in self._adamw.state().items() for key, value in of.items()}

    def counts(self) -> dict[str, Any]:
        """State that a resume needs besides tensors, for JSON."""
        return {"updates": self.updates, "not_finite": self.not_finite}

    def load_state(self, tensors: Mapping[str, Tensor], counts: Mapping[str, Any]) -> None:
        """Continue from `state` and `counts`. Raises RunFolderError where they belong to other parameters."""
        state: State = {}
        for full_name, value in tensors.items():
            name, _, key = full_name.rpartition("/")
            self._check(name, key, value)
            state.setdefault(name, {})[key] = value
        self._check_masters([name for name, of in state.items() if (MASTER in of) != self._adamw.saves_masters])
        self._adamw.load_state(state)
        self.updates, self.not_finite = counts["updates"], counts["not_finite"]

    def set_masters(self, exact: Mapping[str, Tensor]) -> None:
        """Set the master of every parameter that has one, before the first update."""
        if self._adamw.saves_masters:
            self._adamw.load_state({name: {MASTER: value} for name, value in exact.items()})

    def _advance(self, grad_norm: float, *, skipped: bool) -> UpdateResult:
        result = UpdateResult(grad_norm=grad_norm, learning_rate=self.learning_rate, skipped=skipped)
        self.updates += 1
        return result

    def _check_masters(self, misfits: list[str]) -> None:
        """Refuse weights that were trained in another precision: their masters do not fit this run."""
        if misfits:
            has = "no float32 master" if self._adamw.saves_masters else "a float32 master"
            raise RunFolderError(
                f"the saved optimizer has {has} of {misfits[0]!r}: the run had another precision",
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


def _make_variant(
    parameters: Mapping[str, nn.Parameter],
    make: Callable[..., torch.optim.Optimizer],
    masters: Mapping[str, Tensor],
    seed: tuple[SeedName, ...],
    saves_masters: bool,
) -> AdamWVariant:
    if any(is_sharded(parameter) for parameter in parameters.values()):
        return ShardedAdamW(parameters, make, saves_masters=saves_masters)
    if masters:
        return MasterAdamW(parameters, make, masters)
    if any(parameter.dtype.itemsize < 4 for parameter in parameters.values()):
        return RoundedAdamW(parameters, make, seed)
    return AdamW(parameters, make)


def rate_factor(schedule: Schedule, updates: int, *, warmup: int, total: int) -> float:
    """The learning rate after `updates` updates, as a share of the base rate.

    It rises linearly over `warmup` updates. Then it is constant, or falls to 0 at `total`, linearly or as half a
    cosine.
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
