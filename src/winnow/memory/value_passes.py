"""Memory of a value model's passes besides its own parts: one over a step's rollouts, and those of its updates.

They run before the policy's updates, and no two passes run at once. A head on the policy's backbone is trained in the
policy's updates, and adds only its input.
"""

from __future__ import annotations

from collections.abc import Iterator

from winnow.config import CriticSection
from winnow.memory import footprint, shares
from winnow.memory.demand import Demand, step_rollouts
from winnow.memory.passes import fewer_activations, fewer_tokens, micro_batch_tokens
from winnow.memory.plan import MemoryPart, Phase
from winnow.memory.value_shapes import ValueShapes


def value_passes(demand: Demand, critic: CriticSection, shapes: ValueShapes) -> Iterator[MemoryPart]:
    """Parts of the passes, for the largest micro-batch of a step's rollouts."""
    tokens = micro_batch_tokens(demand, step_rollouts(demand.config, demand.ranks))
    yield from _values(demand, shapes, tokens)
    if critic.form == "shared":
        yield from _head_input(demand, shapes, tokens, "update")
    else:
        yield from _update(demand, shapes, tokens)


def _values(demand: Demand, shapes: ValueShapes, tokens: int) -> Iterator[MemoryPart]:
    """Parts of the pass that computes values, without gradients. Rollouts of a prompt attend to its keys and values."""
    reads, device = shapes.reads, demand.device
    yield from _gathered(demand, shapes, "values")
    read = footprint.forward_bytes(reads, tokens) + footprint.key_value_bytes(reads, tokens)
    yield MemoryPart("forward pass for values", read, "values", device, fewer_tokens(demand.config))
    yield from _head_input(demand, shapes, tokens, "values")


def _update(demand: Demand, shapes: ValueShapes, tokens: int) -> Iterator[MemoryPart]:
    reads, device, how = shapes.reads, demand.device, demand.config.model.gradient_checkpointing
    remedies = fewer_activations(demand.config)
    yield from _gathered(demand, shapes, "value update")
    saved = footprint.activation_bytes(reads, tokens, checkpointing=how)
    yield MemoryPart("value model activations", saved, "value update", device, remedies)
    yield from _head_input(demand, shapes, tokens, "value update")
    layer = footprint.layer_backward_bytes(reads, tokens, checkpointing=how)
    layer += shares.unscattered_bytes(reads, demand.ranks) if demand.sharded else 0
    yield MemoryPart("a layer's backward in it", layer, "value update", device, remedies[:1])


def _gathered(demand: Demand, shapes: ValueShapes, phase: Phase) -> Iterator[MemoryPart]:
    """The other ranks' shares that a pass gathers, where the model is sharded."""
    if demand.sharded:
        gathered = shares.gathered_bytes(shapes.reads, demand.ranks)
        yield MemoryPart("gathered weights", gathered, phase, demand.device)


def _head_input(demand: Demand, shapes: ValueShapes, tokens: int, phase: Phase) -> Iterator[MemoryPart]:
    if copied := footprint.value_input_bytes(shapes.reads, tokens):
        yield MemoryPart("what the value head reads", copied, phase, demand.device, fewer_tokens(demand.config))
