"""The optimizer: AdamW with clipping, a learning-rate schedule, and a state that fits in safetensors and JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from winnow.errors import RunFolderError

Schedule = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """What one update did."""

    grad_norm: float  # before clipping, over all parameters
    learning_rate: float
    skipped: bool  # True when the parameters were left alone


class Optimizer:
    """AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101) on parameters by name.

    `warmup_updates` and `total_updates` count updates, skipped ones included; `total_updates` is where a decaying
    schedule reaches zero.
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
    ) -> None:
        self._parameters = dict(parameters)
        self._adamw = torch.optim.AdamW(
            self._parameters.values(), lr=learning_rate, betas=betas, eps=eps, weight_decay=weight_decay, fused=True
        )
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

    def step(self) -> UpdateResult:
        """One update from the gradients, which are cleared. A gradient that is not finite changes nothing else."""
        gradients = [p.grad for p in self._parameters.values() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        result = self._advance(norm.item(), skipped=not math.isfinite(norm.item()))
        self.not_finite = self.not_finite + 1 if result.skipped else 0
        if not result.skipped:
            self.taken += 1
            if result.grad_norm > self._max_grad_norm:
                torch.nn.utils.clip_grads_with_norm_(self._parameters.values(), self._max_grad_norm, norm)
            for group in self._adamw.param_groups:
                group["lr"] = result.learning_rate
            self._adamw.step()
        self._adamw.zero_grad(set_to_none=True)
        return result

    def skip(self) -> UpdateResult:
        """The update of an empty batch: only the schedule advances."""
        return self._advance(0.0, skipped=True)

    def reset(self) -> None:
        """Forget the moments; the schedule goes on."""
        self._adamw.state.clear()

    def state(self) -> dict[str, Tensor]:
        """The moments by name, for safetensors. The tensors are the live ones: write them now."""
        return {
            f"{name}/{key}": value
            for name, parameter in self._parameters.items()
            for key, value in self._adamw.state.get(parameter, {}).items()
        }

    def counts(self) -> dict[str, Any]:
        """What else a resume needs, for JSON."""
        return {"updates": self.updates, "not_finite": self.not_finite}

    def load_state(self, tensors: Mapping[str, Tensor], counts: Mapping[str, Any]) -> None:
        """Continue where `state` and `counts` were taken. Raises RunFolderError when it is of other parameters."""
        names = list(self._parameters)
        state: dict[int, dict[str, Tensor]] = {}
        for full_name, value in tensors.items():
            name, _, key = full_name.rpartition("/")
            self._check(name, key, value)
            state.setdefault(names.index(name), {})[key] = value
        self._adamw.load_state_dict({**self._adamw.state_dict(), "state": state})
        self.updates, self.not_finite = counts["updates"], counts["not_finite"]

    def _advance(self, grad_norm: float, *, skipped: bool) -> UpdateResult:
        result = UpdateResult(grad_norm=grad_norm, learning_rate=self.learning_rate, skipped=skipped)
        self.updates += 1
        return result

    def _check(self, name: str, key: str, value: Tensor) -> None:
        parameter = self._parameters.get(name)
        if parameter is None:
            problem = f"has {name!r}, which is not trained now"
        elif key != "step" and value.shape != parameter.shape:
            problem = f"has {name!r} of shape {tuple(value.shape)}, the model has {tuple(parameter.shape)}"
        else:
            return
        raise RunFolderError(
            f"the saved optimizer {problem}; resume with the model and the adapters that the run started with"
        )


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
