"""The optimizer: AdamW with clipping, a learning-rate schedule, and a state for safetensors and JSON.

`Trained` is a model with its optimizer, the base of learner and critic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Generic, Literal, TypeVar

import torch
from torch import Tensor, nn

from winnow import ranks
from winnow.config import Config, TrainedCritic, policy_steps
from winnow.errors import RunFolderError
from winnow.learner.adamw import (
    MASTER,
    AdamW,
    AdamWVariant,
    MasterAdamW,
    Moments,
    RoundedAdamW,
    ShardedAdamW,
    State,
    adamw,
    saved_shape,
)
from winnow.learner.gradient_sums import HasGradient, sum_over_ranks
from winnow.learner.move import followed, products
from winnow.learner.policy_module import VALUE_HEAD
from winnow.learner.sequence_model import SequenceModel, per_token
from winnow.learner.sharding import gather_whole, is_sharded, shard_like
from winnow.models.meta import number_of
from winnow.models.saved_weights import SavedWeights
from winnow.records import Batch, MicroBatch, PerSequence, TrainingSequence, UpdateResult
from winnow.seeds import SeedName

Model = TypeVar("Model", bound=SequenceModel)
Schedule = Literal["constant", "linear", "cosine"]
VALUE_MODEL = "critic/"  # prefix of a value model's tensor names in a checkpoint


class Optimizer:
    """AdamW on parameters by name; see adamw.py.

    `warmup_updates` and `total_updates` count updates, skipped ones included. A decaying schedule reaches zero at
    `total_updates`. With `masters`, the float32 masters of 16-bit parameters are trained, in place. Without them,
    updates of 16-bit parameters are rounded at random, from `seed`. With `master_offset`, masters start at random
    places of their rounding cells, from `seed` too. `moments` is the precision of AdamW's moments. `saves_masters` is
    true where sharded parameters are themselves the masters.
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
        master_offset: bool = False,
    ) -> None:
        make = adamw(moments, lr=learning_rate, betas=betas, eps=eps, weight_decay=weight_decay)
        self._moments: Moments = moments
        self._adamw = _make_variant(parameters, make, masters, seed, saves_masters)
        self._shared = any(is_sharded(parameter) for parameter in parameters.values())
        self._offset = (*seed, "offset") if master_offset else None
        self._offset_masters()
        self._base_rate = learning_rate
        self._max_grad_norm = max_grad_norm
        self._schedule: Schedule = schedule
        self._warmup = warmup_updates
        self._total = total_updates
        self.updates = 0  # so far, skipped ones included
        self.not_finite = 0  # latest consecutive updates that were skipped for a gradient that is not finite
        self.measures_signal = False  # whether each update has `UpdateResult.products`
        self._betas = betas
        self.taken = 0  # updates started in this process; while it is unchanged, so are parameters and moments

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next update."""
        return self._base_rate * rate_factor(self._schedule, self.updates, warmup=self._warmup, total=self._total)

    @property
    def saves_masters(self) -> bool:
        """Whether `state` contains the float32 masters that the parameters are rounded from."""
        return self._adamw.saves_masters

    def moved(self) -> dict[str, float]:
        """How much of the exact move since the start the weights in use have made: see `winnow.learner.move.followed`.

        Empty where no weights are rounded. With shares it is an exchange of all ranks.
        """
        moves = self._adamw.moves()
        if not moves:
            return {}
        totals = products(moves).tolist()  # the only wait for the device
        return followed(*(map(sum, zip(*ranks.gather_from_all(totals), strict=True)) if self._shared else totals))

    def gradients(self) -> list[Tensor]:
        """Gradients summed over the micro-batches so far, of the parameters that have one; float32 for 16-bit
        parameters.
        """
        return self._adamw.gradients()

    def sums(self) -> list[tuple[HasGradient, Tensor]]:
        return self._adamw.sums()

    def step(self) -> UpdateResult:
        """Make one update from the gradients. For a gradient that is not finite, only the schedule advances. The
        gradients are cleared in both cases.
        """
        norm = gather_whole(total_norm(self.gradients()))
        size = number_of(norm, unknown=2 * self._max_grad_norm)  # a gradient without numbers is clipped
        result = self._advance(size, skipped=not math.isfinite(size))
        self.not_finite = self.not_finite + 1 if result.skipped else 0
        if not result.skipped:
            self.taken += 1  # before the first change, so that an interrupted update counts
            if result.grad_norm > self._max_grad_norm:
                self._adamw.clip(norm, self._max_grad_norm)
            if self.measures_signal:
                result = replace(result, products=self._adamw.products(self._betas[0]))
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
        """Continue from `state` and `counts`. Raises RunFolderError if they belong to other parameters."""
        state: State = {}
        for full_name, value in tensors.items():
            name, _, key = full_name.rpartition("/")
            self._check(name, key, value)
            state.setdefault(name, {})[key] = value
        self._check_masters([name for name, of in state.items() if (MASTER in of) != self._adamw.saves_masters])
        self._adamw.load_state(state)
        self.updates, self.not_finite = counts["updates"], counts["not_finite"]

    def set_masters(self, exact: Mapping[str, Tensor]) -> None:
        """Set the master of every parameter that has one, before the first update; `exact` are the present weights."""
        if self._adamw.saves_masters:
            self._adamw.load_state({name: {MASTER: value} for name, value in exact.items()})
            self._offset_masters()
        elif isinstance(self._adamw, RoundedAdamW):
            self._adamw.restart()

    def _offset_masters(self) -> None:
        if self._offset is not None and isinstance(self._adamw, AdamW):
            self._adamw.offset_masters(*self._offset)

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
        elif (wanted := saved_shape(self._moments, key, shape)) is None:
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


def total_norm(gradients: Iterable[Tensor]) -> Tensor:
    """The L2 norm of all gradients together, from those of their rows.

    On a CPU torch adds up the squares of a float32 tensor nearly one after another. Of the 28 million numbers of an
    embedding, that norm lacks 0.2%, and how much it lacks depends on the ranks' shares.
    """
    rows = [torch.linalg.vector_norm(g, dim=-1) if g.dim() > 1 else g for g in gradients]
    return torch.nn.utils.get_total_norm(rows)


def _make_variant(
    parameters: Mapping[str, nn.Parameter],
    make: Callable[..., torch.optim.Optimizer],
    masters: Mapping[str, Tensor],
    seed: tuple[SeedName, ...],
    saves_masters: bool,
) -> AdamWVariant:
    if any(is_sharded(parameter) for parameter in parameters.values()):
        rounded = [name for name in parameters if saves_masters and not name.startswith(VALUE_HEAD)]
        return ShardedAdamW(parameters, make, rounded=rounded)
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


class Trained(Generic[Model]):
    """A model and its optimizer. An update is `micro_batches`, a forward and `backward` for each of them, and `step`;
    or `skip`, where the batch is empty.
    """

    def __init__(self, model: Model, optimizer: Optimizer) -> None:
        self.model = model
        self._optimizer = optimizer

    def shard(
        self, config: Config, saved: SavedWeights | None, *, masters: bool, critic: TrainedCritic | None = None
    ) -> None:
        """Keep only this rank's share of model and optimizer (sharding.py). Call it before the first update.

        `saved` has the weights of a model on the meta device. With `masters`, the shares are float32 masters. `config`
        and `critic` are those of `make_optimizer`.
        """
        self.model.shard(saved, masters=masters)
        self._optimizer = make_optimizer(config, self.parameters, {}, critic=critic, saves_masters=masters)

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """Trained parameters by name."""
        return self.model.parameters

    @property
    def taken(self) -> int:
        """Updates started in this process; while it is unchanged, so are parameters and moments."""
        return self._optimizer.taken

    @property
    def not_finite(self) -> int:
        """Latest consecutive updates that were skipped for a gradient that is not finite."""
        return self._optimizer.not_finite

    def micro_batches(self, batch: Batch) -> Iterator[MicroBatch]:
        return self.model.micro_batches(batch.sequences)

    def values(self, sequences: Sequence[TrainingSequence]) -> PerSequence:
        """Values [L] of each sequence by its key, from the value head, under the present weights."""
        (values,) = per_token(self.model, [sequences], self.model.values, what="values")
        return values

    def sums(self) -> list[tuple[HasGradient, Tensor]]:
        """Pairs of the object whose `grad` holds a parameter's gradient, and the parameter."""
        return self._optimizer.sums()

    def backward(self, scalar: Tensor) -> None:
        """Add the scalar's gradient to that of the batch's earlier micro-batches."""
        scalar.backward()  # type: ignore[no-untyped-call]
        for total, _ in self.sums():
            if total.grad is not None and total.grad.is_sparse:  # of an embedding whose output layer was not used
                total.grad = total.grad.to_dense()

    def step(self) -> UpdateResult:
        """Make one update from the gradients of all ranks and clear them. If a gradient is not finite, only the
        schedule advances.
        """
        if not self.model.sharded:  # FSDP2 sums gradients over ranks in backward
            sum_over_ranks(self.sums())
        return self._optimizer.step()

    def skip(self) -> UpdateResult:
        return self._optimizer.skip()

    def counts(self) -> dict[str, Any]:
        return self._optimizer.counts()

    def move_metrics(self, prefix: str) -> dict[str, float]:
        """How far the weights in use have followed the optimizer since the start; see `Optimizer.moved`."""
        return {f"{prefix}/{name}": number for name, number in self._optimizer.moved().items()}


def split(tensors: Mapping[str, Tensor], prefix: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The tensors whose names start with a prefix, by the rest of their names, and the other tensors."""
    matches = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    return matches, {name: tensor for name, tensor in tensors.items() if not name.startswith(prefix)}


def check_saved(saved: Mapping[str, Tensor], parameters: Mapping[str, nn.Parameter]) -> None:
    """Raise RunFolderError unless a value model's saved parameters have the names and shapes of `parameters`."""
    if parameters and not saved:
        raise RunFolderError(
            "the checkpoint has no value model of this form: it was saved by a run without one, or with another "
            "critic.form",
            remedy="name another checkpoint, or start a new run with the checkpoint as model.path",
            key="critic.form",
            code="run_folder.other_model",
        )
    for name in sorted(parameters.keys() | saved.keys()):
        now, then = (each.get(name) for each in (parameters, saved))
        if now is None or then is None or now.shape != then.shape:
            shapes = ["none" if of is None else f"one of shape {tuple(of.shape)}" for of in (then, now)]
            raise RunFolderError(
                f"the value model of the checkpoint is another one: of {name!r} it has {shapes[0]}, the model has "
                f"{shapes[1]}",
                remedy="use the critic.form, model and adapter that it was trained with",
                key="critic" if now is not None and then is not None else "critic.form",
                code="run_folder.other_model",
            )


@torch.no_grad()
def set_parameters(parameters: Mapping[str, nn.Parameter], values: Mapping[str, Tensor]) -> None:
    """Copy whole values by name into the parameters; a rank copies its share of each."""
    for name, parameter in parameters.items():
        parameter.copy_(shard_like(values[name], parameter))


def make_optimizer(
    config: Config,
    parameters: Mapping[str, nn.Parameter],
    masters: Mapping[str, Tensor],
    *,
    critic: TrainedCritic | None = None,
    saves_masters: bool = False,
) -> Optimizer:
    """The optimizer of the policy, or of its separate value model `critic`. The steps in which it is trained are
    converted to updates, which the schedule counts.
    """
    update = config.update
    options, steps, per_step = config.optimizer, max(1, policy_steps(config)), update.epochs * update.updates_per_step
    if critic is not None:
        options, steps, per_step = critic.optimizer, config.steps, critic.epochs * critic.updates_per_step
    exact = {name: p.detach().clone() for name, p in parameters.items() if masters and name not in masters}
    optimizer = Optimizer(
        parameters,
        **options.model_dump(exclude={"master_weights", "stochastic_rounding", "warmup_steps"}),
        warmup_updates=options.warmup_steps * per_step,
        total_updates=steps * per_step,
        masters={**masters, **exact},  # a float32 value head has a master too
        saves_masters=saves_masters,
        seed=(config.seed, "rounding" if critic is None else "critic rounding"),
    )
    # A second epoch's gradient has the noise of the first one's, so their product is no measure of the signal
    optimizer.measures_signal = config.plan.use == "auto" and config.update.epochs == 1
    return optimizer
