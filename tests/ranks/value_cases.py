"""What a value model computes of the same sequences, on whatever number of ranks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from update_cases import sequences

from exact_norms import float64_norms
from value_models import ValueModels, taught
from winnow import ranks
from winnow.learner.sharding import gather_whole, is_sharded
from winnow.records import Batch

Tensors = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Valued:
    """What one rank has after three updates, of which the second is of nothing."""

    values: Tensors  # by sequence, before the updates [L]
    gradients: list[Tensors]  # of each update that has sequences, whole, before clipping
    losses: list[float]  # of all ranks
    weights: Tensors  # at the end, whole
    sharded: bool  # whether it had a share of the value model


def updates(config: Mapping[str, Any], counts: Sequence[int], longest: int = 9) -> Valued:
    with float64_norms():
        return _updates(ValueModels(config), sequences(counts, longest))


def _updates(made: ValueModels, some: Sequence[Any]) -> Valued:
    found = made.trained.values(some)
    batch = Batch(epoch=0, sequences=tuple(taught(some, found)))
    gradients, losses = list[Tensors](), list[float]()
    for each in (batch, Batch(epoch=0, sequences=()), batch):
        losses.append(sum(ranks.gather([_update(made, each, gradients)])))
    return Valued(
        values={f"{group}#{index}": values for (group, index), values in found.items()},
        gradients=gradients,
        losses=losses,
        weights={name: _array(gather_whole(p.detach())) for name, p in made.parameters.items()},
        sharded=all(is_sharded(parameter) for parameter in made.parameters.values()),
    )


def _update(made: ValueModels, batch: Batch, gradients: list[Tensors]) -> float:
    """One update, as a step makes it. The loss of this rank's share."""
    loss, optimizer = 0.0, made.trained._optimizer
    for mb in made.trained.micro_batches(batch):
        value = made.loss(mb)
        made.trained.backward(value.total)
        loss += value.total.item()
    step = optimizer.step

    def note_and_step() -> Any:
        found = {name: p.grad for name, p in made.parameters.items() if p.grad is not None}
        gradients.append({name: _array(gather_whole(gradient)) for name, gradient in found.items()})
        return step()

    optimizer.step = note_and_step  # type: ignore[method-assign]
    try:
        result = made.trained.step() if batch.sequences else made.trained.skip()
    finally:
        optimizer.step = step  # type: ignore[method-assign]
    assert result.skipped == (not batch.sequences)
    return loss


def _array(tensor: Any) -> np.ndarray:
    return tensor.detach().double().numpy().copy()
