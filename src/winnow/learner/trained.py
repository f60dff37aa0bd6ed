"""A model and the optimizer that changes it: what policy and value model are trained by alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from winnow.config import Config, OptimizerSection
from winnow.errors import RunFolderError
from winnow.learner.gradient_sums import sum_over_ranks
from winnow.learner.optimizer import Optimizer, UpdateResult
from winnow.learner.sequence_model import SequenceModel
from winnow.learner.sharding import share_of
from winnow.records import Batch, MicroBatch
from winnow.seeds import SeedName

Model = TypeVar("Model", bound=SequenceModel)

VALUE_MODEL = "critic/"  # what the names of a value model's tensors begin with, in a checkpoint


class Trained(Generic[Model]):
    """An update is `micro_batches`, a forward and `backward` for each of them, and `step`; or `skip`, where the batch
    is empty.
    """

    def __init__(self, model: Model, optimizer: Optimizer) -> None:
        self.model = model
        self._optimizer = optimizer

    def shard(self, masters: Mapping[str, Tensor], make_optimizer: Callable[[Model], Optimizer]) -> None:
        """Leave every rank its share of model and optimizer (sharding.py), before the first update.

        `masters` are those that the model's weights were rounded from, or none.
        """
        self.model.shard(masters)
        self._optimizer = make_optimizer(self.model)

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """What is trained, by name."""
        return self.model.parameters

    @property
    def taken(self) -> int:
        """Updates of this process, begun ones included: as long as it stands, so do parameters and moments."""
        return self._optimizer.taken

    @property
    def not_finite(self) -> int:
        """The last updates in a row that a gradient which is not finite made it skip."""
        return self._optimizer.not_finite

    def micro_batches(self, batch: Batch) -> Iterator[MicroBatch]:
        """This rank's share of a batch in pieces that fit in memory, made one at a time, where and in the precision in
        which the model computes.
        """
        return self.model.micro_batches(batch.sequences)

    def backward(self, scalar: Tensor) -> None:
        """Add the scalar's gradient to that of the batch's earlier micro-batches."""
        scalar.backward()  # type: ignore[no-untyped-call]

    def step(self) -> UpdateResult:
        """One update from the gradients of all ranks, which are cleared. A gradient that is not finite changes nothing
        else.
        """
        if not self.model.sharded:  # else every backward has summed them
            sum_over_ranks(self._optimizer.sums())
        return self._optimizer.step()

    def skip(self) -> UpdateResult:
        """The update of an empty batch: only the schedule advances."""
        return self._optimizer.skip()

    def counts(self) -> dict[str, Any]:
        """What a resume needs besides tensors, for JSON."""
        return self._optimizer.counts()


def split(tensors: Mapping[str, Tensor], prefix: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Those whose names begin with a prefix, by the rest of their names, and the others."""
    found = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    return found, {name: tensor for name, tensor in tensors.items() if not name.startswith(prefix)}


def check_saved(saved: Mapping[str, Tensor], parameters: Mapping[str, nn.Parameter]) -> None:
    """Raise RunFolderError unless a value model's saved parameters are these."""
    if parameters and not saved:
        raise RunFolderError(
            "the checkpoint has no value model of this form: it was saved by a run without one, or with another "
            "critic.form",
            remedy="name another checkpoint, or start a new run with the checkpoint as model.path",
            key="critic.form",
            code="run_folder.other_model",
        )
    for name in sorted(parameters.keys() ^ saved.keys()):
        raise RunFolderError(
            f"the value model of the checkpoint is another one: {name!r} is "
            f"{'not saved' if name in parameters else 'saved, and not trained now'}",
            remedy="use the critic.form, model and adapter that it was trained with",
            key="critic.form",
            code="run_folder.other_model",
        )
    for name, parameter in parameters.items():
        if saved[name].shape != parameter.shape:
            raise RunFolderError(
                f"the value model of the checkpoint is another one: {name!r} has shape {tuple(saved[name].shape)}, the "
                f"model has {tuple(parameter.shape)}",
                remedy="use the model and adapter that it was trained with",
                key="critic",
                code="run_folder.other_model",
            )


@torch.no_grad()
def set_parameters(parameters: Mapping[str, nn.Parameter], values: Mapping[str, Tensor]) -> None:
    """Give parameters the values, whole, that they have by name; a rank takes its share of each."""
    for name, parameter in parameters.items():
        parameter.copy_(share_of(values[name], parameter))


def make_optimizer(
    config: Config,
    options: OptimizerSection,
    parameters: Mapping[str, nn.Parameter],
    masters: Mapping[str, Tensor],
    *,
    updates_per_step: int,
    steps: int,
    saves_masters: bool = False,
    seed: SeedName = "rounding",
) -> Optimizer:
    """The optimizer of one that learns in so many steps: they become updates, which is what a schedule counts."""
    exact = {name: p.detach().clone() for name, p in parameters.items() if masters and name not in masters}
    return Optimizer(
        parameters,
        **options.model_dump(exclude={"master_weights", "stochastic_rounding", "warmup_steps"}),
        warmup_updates=options.warmup_steps * updates_per_step,
        total_updates=steps * updates_per_step,
        masters={**masters, **exact},  # a value head is float32, and has a master like the 16-bit weights beside it
        saves_masters=saves_masters,
        seed=(config.seed, seed),
    )
