"""Base of learner and critic: a model and the optimizer that updates it."""

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
from winnow.learner.sharding import shard_like
from winnow.records import Batch, MicroBatch
from winnow.seeds import SeedName

Model = TypeVar("Model", bound=SequenceModel)

VALUE_MODEL = "critic/"  # prefix of a value model's tensor names in a checkpoint


class Trained(Generic[Model]):
    """A model and its optimizer. An update is `micro_batches`, a forward and `backward` for each of them, and `step`;
    or `skip`, where the batch is empty.
    """

    def __init__(self, model: Model, optimizer: Optimizer) -> None:
        self.model = model
        self._optimizer = optimizer

    def shard(self, masters: Mapping[str, Tensor], make_optimizer: Callable[[Model], Optimizer]) -> None:
        """Keep only this rank's share of model and optimizer (sharding.py). Call it before the first update.

        `masters` are those that the model's weights were rounded from; empty where it has none.
        """
        self.model.shard(masters)
        self._optimizer = make_optimizer(self.model)

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """Trained parameters by name."""
        return self.model.parameters

    @property
    def taken(self) -> int:
        """Number of updates that this process started, without skipped ones. While it is unchanged, so are parameters
        and moments.
        """
        return self._optimizer.taken

    @property
    def not_finite(self) -> int:
        """Number of latest consecutive updates that were skipped because a gradient was not finite."""
        return self._optimizer.not_finite

    def micro_batches(self, batch: Batch) -> Iterator[MicroBatch]:
        """This rank's share of a batch in micro-batches that fit in memory, made one at a time.

        They are on the model's device, with floats in the model's per-token dtype.
        """
        return self.model.micro_batches(batch.sequences)

    def backward(self, scalar: Tensor) -> None:
        """Add the scalar's gradient to that of the batch's earlier micro-batches."""
        scalar.backward()  # type: ignore[no-untyped-call]

    def step(self) -> UpdateResult:
        """Make one update from the gradients of all ranks and clear them. If a gradient is not finite, only the
        schedule advances.
        """
        if not self.model.sharded:  # FSDP2 sums gradients over ranks in backward
            sum_over_ranks(self._optimizer.sums())
        return self._optimizer.step()

    def skip(self) -> UpdateResult:
        """The update of an empty batch: only the schedule advances."""
        return self._optimizer.skip()

    def counts(self) -> dict[str, Any]:
        """State that a resume needs besides tensors, for JSON."""
        return self._optimizer.counts()


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
    """Copy whole values by name into the parameters; a rank copies its share of each."""
    for name, parameter in parameters.items():
        parameter.copy_(shard_like(values[name], parameter))


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
    """The optimizer of a model that is trained for `steps` steps. They are converted to updates, which its schedule
    counts.
    """
    exact = {name: p.detach().clone() for name, p in parameters.items() if masters and name not in masters}
    return Optimizer(
        parameters,
        **options.model_dump(exclude={"master_weights", "stochastic_rounding", "warmup_steps"}),
        warmup_updates=options.warmup_steps * updates_per_step,
        total_updates=steps * updates_per_step,
        masters={**masters, **exact},  # a float32 value head has a master too
        saves_masters=saves_masters,
        seed=(config.seed, seed),
    )
