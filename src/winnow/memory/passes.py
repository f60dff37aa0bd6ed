"""Memory of the policy's passes besides weights and moments: an update, old and reference log-probs, gradient norms.

No two of these passes run at once.
"""

from __future__ import annotations

from collections.abc import Iterator

from winnow.config import Config, trained_tokens
from winnow.memory import footprint, shares
from winnow.memory.demand import Demand, step_rollouts
from winnow.memory.plan import MemoryPart, Phase

NORM_COPIES = 4  # one chunk's gradients; another's logits, the same divided by the temperature, and their gradients


def pass_parts(demand: Demand, needs: frozenset[str]) -> Iterator[MemoryPart]:
    """Parts of the policy's passes. `needs` are the additional log-probs that loss and terms read, and "entropy"."""
    yield from _update(demand, entropy="entropy" in needs)
    if needs & {"old_logprobs", "ref_logprobs"}:
        yield from _logprobs(demand, copied="ref_logprobs" in needs and demand.config.model.lora is None)
    if demand.measured:
        yield from _norms(demand)


def _update(demand: Demand, *, entropy: bool) -> Iterator[MemoryPart]:
    model, device, how = demand.model, demand.device, demand.config.model.gradient_checkpointing
    rollouts = step_rollouts(demand.config, demand.ranks)
    tokens = micro_batch_tokens(demand, rollouts)
    remedies = fewer_activations(demand.config)
    yield from _gathered(demand, "update")
    saved = footprint.activation_bytes(model, tokens, checkpointing=how)
    yield MemoryPart("activations", saved, "update", device, remedies)
    logits = footprint.logits_bytes(model, _chunk(demand, tokens, rollouts), entropy=entropy)
    layer = footprint.layer_backward_bytes(model, tokens, checkpointing=how)
    if demand.sharded:
        layer += shares.unscattered_bytes(model, demand.ranks) + shares.waiting_bytes(model)
    if logits >= layer:  # they do not coincide, so the larger counts
        yield MemoryPart("output layer", logits, "update", device)
    else:
        yield MemoryPart("a layer's backward", layer, "update", device, remedies[:1])


def _logprobs(demand: Demand, *, copied: bool) -> Iterator[MemoryPart]:
    """Parts of the pass for log-probs. Rollouts of a prompt attend to the prompt's keys and values, and each rollout
    holds a copy of these.

    Where the reference is a copy (`copied`), its passes follow those of the policy, whose embedding and head stay
    gathered.
    """
    model, device = demand.model, demand.device
    rollouts = step_rollouts(demand.config, demand.ranks)
    tokens = micro_batch_tokens(demand, rollouts)
    yield from _gathered(demand, "logprobs")
    if demand.sharded and copied:
        root = shares.gathered_root_bytes(model, demand.ranks)
        yield MemoryPart("gathered weights of the reference", root, "logprobs", device)
    read = footprint.forward_bytes(model, tokens) + footprint.key_value_bytes(model, tokens)
    yield MemoryPart("forward pass", read, "logprobs", device, fewer_tokens(demand.config))
    chunk = _chunk(demand, tokens, rollouts)
    logits = footprint.chunk_bytes(model, chunk, copies=footprint.FORWARD_COPIES)
    yield MemoryPart("logits", logits, "logprobs", device)


def _norms(demand: Demand) -> Iterator[MemoryPart]:
    """Parts of the pass for gradient norms.

    For the norm of the embedding's gradient, backward runs down to the embedding without parameter gradients. Where the
    head is tied to it, a vector is stored per token. For long rollouts the head's whole gradient is stored.
    """
    config, model, device = demand.config, demand.model, demand.device
    how = config.model.gradient_checkpointing
    tokens = micro_batch_tokens(demand, demand.measured)
    yield from _gathered(demand, "norms")
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
    hidden = footprint.head(model).shape[1]
    if footprint.sums_head_gradient(trained_tokens(config), chunk=chunk, hidden=hidden):
        yield MemoryPart("output layer's gradient for norms", footprint.head_gradient_bytes(model), "norms", device)


def _gathered(demand: Demand, phase: Phase) -> Iterator[MemoryPart]:
    """The other ranks' shares that a pass gathers, where the policy is sharded."""
    if demand.sharded:
        yield MemoryPart("gathered weights", shares.gathered_bytes(demand.model, demand.ranks), phase, demand.device)


def micro_batch_tokens(demand: Demand, rollouts: int) -> int:
    """Tokens of the largest micro-batch of `rollouts` rollouts: at least one sequence, however long."""
    longest = _longest(demand)
    return max(longest, min(demand.config.update.tokens_per_micro_batch, rollouts * longest))


def _longest(demand: Demand) -> int:
    return demand.prompt_tokens + trained_tokens(demand.config)


def _chunk(demand: Demand, tokens: int, rollouts: int) -> int:
    """Completion tokens whose logits exist at once, in a micro-batch of `tokens` tokens and `rollouts` rollouts."""
    return min(footprint.chunk_tokens(demand.model), tokens, rollouts * trained_tokens(demand.config))


def fewer_tokens(config: Config) -> tuple[str, ...]:
    """Advice for memory that grows with a micro-batch."""
    return (f"lower update.tokens_per_micro_batch, now {config.update.tokens_per_micro_batch}",)


def fewer_activations(config: Config) -> tuple[str, ...]:
    """Advice for memory that backward needs."""
    how = {"none": "'selective' or 'full'", "selective": "'full'", "full": ""}[config.model.gradient_checkpointing]
    return (*fewer_tokens(config), *([f"set model.gradient_checkpointing = {how}"] if how else []))
