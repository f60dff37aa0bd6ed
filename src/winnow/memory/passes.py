"""Memory of passes besides weights and moments: updates, log-probs, values and gradient norms.

No two of these passes run at once. Those of a value model run before the policy's updates. A head on the policy's
backbone is trained in the policy's updates, and adds only its input.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from winnow.config import Config, trained_tokens
from winnow.memory import footprint
from winnow.memory.demand import Demand, TrainedModel, step_rollouts
from winnow.memory.plan import MemoryPart, Phase

NORM_COPIES = 4  # one chunk's gradients; another's logits, the same divided by the temperature, and their gradients


def policy_passes(demand: Demand, needs: frozenset[str]) -> Iterator[MemoryPart]:
    """Parts of the policy's passes. `needs` are the additional log-probs that loss and terms read, and "entropy"."""
    rollouts = step_rollouts(demand.config, demand.ranks)
    tokens = _micro_batch_tokens(demand, rollouts)
    chunk = _chunk(demand, tokens, rollouts)
    logits = footprint.logits_bytes(demand.model, chunk, entropy="entropy" in needs)
    yield from _update(demand.policy, demand, tokens, logits=logits)
    if needs & {"old_logprobs", "ref_logprobs"}:
        yield from _logprobs(demand, tokens, chunk, copied="ref_logprobs" in needs and demand.config.model.lora is None)
    if demand.measured:
        yield from _norms(demand)


def value_model_passes(demand: Demand) -> Iterator[MemoryPart]:
    """Parts of a value model's passes: one over a step's rollouts, and those of its updates; none without one."""
    model = demand.value_model
    if model is None:
        return
    tokens = _micro_batch_tokens(demand, step_rollouts(demand.config, demand.ranks))
    yield from _forward("forward pass for values", model.reads, demand, tokens, "values")
    yield from _head_input(model, demand, tokens, "values")
    if model.updated != "update":
        yield from _update(model, demand, tokens)
    yield from _head_input(model, demand, tokens, model.updated)


def _update(model: TrainedModel, demand: Demand, tokens: int, *, logits: int = 0) -> Iterator[MemoryPart]:
    """Parts of an update's largest micro-batch. `logits` are the bytes of an output layer's chunk, if it has one."""
    reads, device, how = model.reads, demand.device, demand.config.model.gradient_checkpointing
    remedies = fewer_activations(demand.config)
    yield from _gathered(reads, demand, model.updated)
    saved = footprint.activation_bytes(reads, tokens, checkpointing=how)
    yield MemoryPart(f"{model.name}activations", saved, model.updated, device, remedies)
    layer = footprint.layer_backward_bytes(reads, tokens, checkpointing=how)
    if demand.sharded:
        layer += footprint.unscattered_bytes(reads, demand.ranks) + (footprint.waiting_bytes(reads) if logits else 0)
    if logits >= layer:  # they do not coincide, so the larger counts
        yield MemoryPart("output layer", logits, model.updated, device)
    else:
        yield MemoryPart("a layer's backward", layer, model.updated, device, remedies[:1])


def _forward(name: str, reads: nn.Module, demand: Demand, tokens: int, phase: Phase) -> Iterator[MemoryPart]:
    """Parts of a pass without gradients. Rollouts of a prompt attend to the prompt's keys and values, and each rollout
    holds a copy of these.
    """
    yield from _gathered(reads, demand, phase)
    read = footprint.forward_bytes(reads, tokens) + footprint.key_value_bytes(reads, tokens)
    yield MemoryPart(name, read, phase, demand.device, fewer_tokens(demand.config))


def _logprobs(demand: Demand, tokens: int, chunk: int, *, copied: bool) -> Iterator[MemoryPart]:
    """Parts of the pass for log-probs. Where the reference is a copy (`copied`), its passes follow those of the policy,
    whose embedding and head stay gathered.
    """
    model, device = demand.model, demand.device
    yield from _forward("forward pass", model, demand, tokens, "logprobs")
    if demand.sharded and copied:
        root = footprint.gathered_root_bytes(model, demand.ranks)
        yield MemoryPart("gathered weights of the reference", root, "logprobs", device)
    logits = footprint.chunk_bytes(model, chunk, copies=footprint.FORWARD_COPIES)
    yield MemoryPart("logits", logits, "logprobs", device)


def _norms(demand: Demand) -> Iterator[MemoryPart]:
    """Parts of the pass for gradient norms.

    For the norm of the embedding's gradient, backward runs down to the embedding without parameter gradients. Where the
    head is tied to it, a vector is stored per token. For long rollouts the head's whole gradient is stored.
    """
    config, model, device = demand.config, demand.model, demand.device
    how = config.model.gradient_checkpointing
    tokens = _micro_batch_tokens(demand, demand.measured)
    yield from _gathered(model, demand, "norms")
    if config.probe.gradient_norm == "embedding":
        saved = footprint.activation_bytes(model, tokens, checkpointing=how, frozen=not demand.sharded)
        saved += tokens * footprint.head(model).shape[1] * footprint.EXACT_BYTES
        saved += footprint.layer_backward_bytes(model, tokens, checkpointing=how)
        yield MemoryPart("activations for norms", saved, "norms", device, fewer_activations(config))
    else:
        read = footprint.forward_bytes(model, tokens)
        yield MemoryPart("forward pass for norms", read, "norms", device, fewer_tokens(config))
    chunk = _chunk(demand, tokens, 1)
    logits = footprint.chunk_bytes(model, chunk, copies=NORM_COPIES)
    yield MemoryPart("logits for norms", logits, "norms", device)
    if demand.sums_head_gradient:
        yield MemoryPart("output layer's gradient for norms", footprint.head_gradient_bytes(model), "norms", device)


def _gathered(reads: nn.Module, demand: Demand, phase: Phase) -> Iterator[MemoryPart]:
    """The other ranks' shares that a pass gathers, where models are sharded."""
    if demand.sharded:
        yield MemoryPart("gathered weights", footprint.gathered_bytes(reads, demand.ranks), phase, demand.device)


def _head_input(model: TrainedModel, demand: Demand, tokens: int, phase: Phase) -> Iterator[MemoryPart]:
    """The hidden states that a value head reads, where they are copied."""
    if copied := footprint.value_input_bytes(model.reads, tokens):
        yield MemoryPart("what the value head reads", copied, phase, demand.device, fewer_tokens(demand.config))


def _micro_batch_tokens(demand: Demand, rollouts: int) -> int:
    """Tokens of the largest micro-batch of `rollouts` rollouts: at least one sequence, however long."""
    longest = demand.prompt_tokens + trained_tokens(demand.config)
    return max(longest, min(demand.config.update.tokens_per_micro_batch, rollouts * longest))


def _chunk(demand: Demand, tokens: int, rollouts: int) -> int:
    """Completion tokens whose logits exist at once, in a micro-batch of `tokens` tokens and `rollouts` rollouts."""
    return min(demand.chunk_tokens, tokens, rollouts * trained_tokens(demand.config))


def fewer_tokens(config: Config) -> tuple[str, ...]:
    """Advice for memory that grows with a micro-batch."""
    return (f"lower update.tokens_per_micro_batch, now {config.update.tokens_per_micro_batch}",)


def fewer_activations(config: Config) -> tuple[str, ...]:
    """Advice for memory that backward needs."""
    how = {"none": "'selective' or 'full'", "selective": "'full'", "full": ""}[config.model.gradient_checkpointing]
    return (*fewer_tokens(config), *([f"set model.gradient_checkpointing = {how}"] if how else []))
