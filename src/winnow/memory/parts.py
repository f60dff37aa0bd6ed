"""Memory of a trained model (weights, masters, optimizer, gradients) and of the passes through it.

The policy and a value model are both a `TrainedModel`. A rank holds all of it, or a share of it (FSDP2).

The passes (updates, log-probs, values and gradient norms) need memory besides the model's. No two of them run at once.
Those of a value model run before the policy's updates. A head on the policy's backbone is trained in the policy's
updates, and adds only its input.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import nn

from winnow.config import Config, optimizers, trained_tokens
from winnow.memory import footprint
from winnow.memory.demand import Demand
from winnow.memory.plan import MemoryPart, Phase
from winnow.memory.trained_model import TrainedModel
from winnow.models.meta import weight_bytes

NORM_COPIES = 4  # one chunk's gradients; another's logits, the same divided by the temperature, and their gradients


def parts(model: TrainedModel, demand: Demand) -> Iterator[MemoryPart]:
    """Parts of a trained model, on a rank that holds all of it, or a share."""
    yield from _share(model, demand) if demand.sharded else _whole(model, demand)


def _whole(model: TrainedModel, demand: Demand) -> Iterator[MemoryPart]:
    of, held, device, key = model.name, model.held, demand.device, model.optimizer_key
    smaller = (*model.smaller, *sharding_advice(demand))
    weights = (*(model.lighter or model.smaller), *sharding_advice(demand))
    yield MemoryPart(f"{of}weights", weight_bytes(held), "always", device, weights)
    if model.quantized:
        yield MemoryPart(f"one {of}matrix unpacked", footprint.unpacked_bytes(model.reads), "always", device)
    if model.masters:
        rounding = f"set {key}.master_weights = false and stochastic_rounding = true"
        yield MemoryPart(f"{of}master weights", model.master_bytes, "always", device, (*smaller, rounding))
    full = model.optimizer.moments == "8bit" or demand.config.model.dtype == "float64"
    fewer = () if full else (f"set {key}.moments = '8bit'",)
    yield MemoryPart(f"{of}optimizer", model.moment_bytes(), "always", device, (*smaller, *fewer))
    gradients = footprint.gradient_bytes(held)
    yield MemoryPart(f"{of}gradients", gradients, model.updated, device, smaller)
    rounded = footprint.rounding_bytes(held) if model.optimizer.stochastic_rounding else 0
    if demand.ranks > 1 or rounded:  # after the last micro-batch, whose activations are gone
        yield MemoryPart(f"{of}gradients", gradients, model.summed, device)
    if demand.ranks > 1:
        bucket = footprint.bucket_bytes(held, demand.bucket)
        yield MemoryPart(f"a bucket of {of}gradients", bucket, model.summed, device)
    if rounded:
        yield MemoryPart(f"one {of}parameter's rounding", rounded, model.summed, device)


def _share(model: TrainedModel, demand: Demand) -> Iterator[MemoryPart]:
    """Parts of a rank that holds a share, and reads no more of the files. AdamW updates the float32 shares themselves,
    so no 16-bit copy exists. Gradients outside the layers are summed last, at the end of backward, when no gathered
    weights are left.
    """
    of, held, device, ranks = model.name, model.held, demand.device, demand.ranks
    smaller = (rank_advice(demand), *model.smaller)
    yield MemoryPart(f"share of the {of}weights", footprint.share_bytes(held, ranks), "always", device, smaller)
    yield MemoryPart(f"share of the {of}optimizer", model.moment_bytes(ranks), "always", device, smaller)
    gradients = footprint.gradient_bytes(held, ranks)
    for phase in (model.updated, model.summed):
        yield MemoryPart(f"share of the {of}gradients", gradients, phase, device, smaller)
    if model.holds_layers:
        unscattered = footprint.unscattered_root_bytes(model.reads, ranks)
        yield MemoryPart(f"{of}gradients to be summed", unscattered, model.summed, device)


def policy_parts(demand: Demand, needs: frozenset[str]) -> Iterator[MemoryPart]:
    """Parts of the policy, with those of its copies. `needs` are the additional log-probs that loss and terms read:
    "ref_logprobs" needs a reference.
    """
    yield from parts(demand.policy, demand)
    model, device, ranks, smaller = demand.model, demand.device, demand.ranks, demand.policy.smaller
    if "ref_logprobs" in needs:
        if demand.config.model.lora is not None:  # a second, frozen adapter, which every rank holds whole
            yield MemoryPart("reference", footprint.gradient_bytes(model), "always", device)
        elif demand.sharded:
            share, advice = footprint.frozen_share_bytes(model, ranks), (rank_advice(demand), *smaller)
            yield MemoryPart("share of the reference", share, "always", device, advice)
        else:
            yield MemoryPart("reference", weight_bytes(model), "always", device, smaller)
    if demand.sharded:
        written = footprint.written_bytes(model)
        yield MemoryPart("one tensor of a checkpoint", written, "always", "cpu", writer=True)


def model_parts(demand: Demand, needs: frozenset[str]) -> Iterator[MemoryPart]:
    """Parts of the policy and of a value model, and of the passes through both."""
    yield from policy_parts(demand, needs)
    if demand.value_model is not None:
        yield from parts(demand.value_model, demand)
        yield from value_model_passes(demand.value_model, demand)
    yield from policy_passes(demand, needs)


def policy_passes(demand: Demand, needs: frozenset[str]) -> Iterator[MemoryPart]:
    """Parts of the policy's passes. `needs` are the additional log-probs that loss and terms read, and "entropy"."""
    rollouts = demand.step_rollouts
    tokens = micro_batch_tokens(demand, rollouts)
    chunk = _chunk(demand, tokens, rollouts)
    logits = footprint.logits_bytes(demand.model, chunk, entropy="entropy" in needs, cpu=demand.device == "cpu")
    yield from _update(demand.policy, demand, tokens, logits=logits)
    if needs & {"old_logprobs", "ref_logprobs"}:
        yield from _logprobs(demand, tokens, chunk, copied="ref_logprobs" in needs and demand.config.model.lora is None)
    if demand.measured:
        yield from _norms(demand)


def value_model_passes(model: TrainedModel, demand: Demand) -> Iterator[MemoryPart]:
    """Parts of a value model's passes: one over a step's rollouts, and those of its updates."""
    tokens = micro_batch_tokens(demand, demand.step_rollouts)
    yield from _forward("forward pass for values", model.reads, demand, tokens, "values")
    yield from _head_input(model, demand, tokens, "values")
    if model.updated != "update":
        yield from _update(model, demand, tokens)
    yield from _head_input(model, demand, tokens, model.updated)


def _update(model: TrainedModel, demand: Demand, tokens: int, *, logits: int = 0) -> Iterator[MemoryPart]:
    """Parts of an update's largest micro-batch, at the moment that needs most: in the output layer, whose chunk has
    `logits` bytes, if it has one, or in a layer's backward.
    """
    reads, device, how = model.reads, demand.device, demand.config.model.gradient_checkpointing
    remedies = fewer_activations(demand.config)
    copied = model.updated == "value update" and footprint.value_input_bytes(reads, tokens) > 0
    saved = footprint.activation_bytes(reads, tokens, checkpointing=how, output=not copied)
    yield MemoryPart(f"{model.name}activations", saved, model.updated, device, remedies)
    if demand.sharded:
        layer = footprint.sharded_layer_backward_bytes(reads, tokens, demand.ranks, checkpointing=how)
        layer += footprint.waiting_bytes(reads) if logits else 0
    else:
        layer = footprint.layer_backward_bytes(reads, tokens, checkpointing=how) + footprint.unsummed_bytes(model.held)
    in_layer = MemoryPart("a layer's backward", layer, model.updated, device, remedies[:1])
    at_output = MemoryPart("output layer", logits, model.updated, device)
    moments = [
        [*_gathered(reads, demand, model.updated), in_layer],
        [*_gathered(reads, demand, model.updated, layers=1), at_output],
    ]
    yield from _most(moments)


def _forward(
    name: str, reads: nn.Module, demand: Demand, tokens: int, phase: Phase, *, logits: int = 0
) -> Iterator[MemoryPart]:
    """Parts of a pass without gradients, at the one of three moments that needs most.

    In a layer, rollouts of a prompt attend to the prompt's keys and values, and each rollout holds a copy of these;
    checkpointed layers keep none. At its end, `logits` exist beside the weights of the head. At its start, a sharded
    model has the weights outside the layers twice, as gathered and unpacked: FSDP2 frees the former when it has
    gathered a layer.
    """
    device, keeps = demand.device, demand.config.model.gradient_checkpointing == "none"
    read = footprint.forward_bytes(reads, tokens) + keeps * footprint.key_value_bytes(reads, tokens)
    moments = [[*_gathered(reads, demand, phase), MemoryPart(name, read, phase, device, fewer_tokens(demand.config))]]
    if logits:
        moments.append([*_gathered(reads, demand, phase, layers=1), MemoryPart("logits", logits, phase, device)])
    if demand.sharded:
        packed = footprint.gathered_root_bytes(reads, demand.ranks)
        moments.append([*_gathered(reads, demand, phase), MemoryPart("weights to unpack", packed, phase, device)])
    yield from _most(moments)


def _most(moments: Sequence[Sequence[MemoryPart]]) -> Sequence[MemoryPart]:
    """The parts of the moment that needs most memory; of moments that do not coincide, only this one counts."""
    return max(moments, key=lambda parts: sum(part.bytes for part in parts))


def _logprobs(demand: Demand, tokens: int, chunk: int, *, copied: bool) -> Iterator[MemoryPart]:
    """Parts of the pass for log-probs. Where the reference is a copy (`copied`), its passes follow those of the policy,
    whose embedding and head stay gathered.
    """
    if demand.sharded and copied:
        root = footprint.gathered_root_bytes(demand.model, demand.ranks)
        yield MemoryPart("gathered weights of the reference", root, "logprobs", demand.device)
    logits = footprint.forward_logits_bytes(demand.model, chunk, cpu=demand.device == "cpu")
    yield from _forward("forward pass", demand.model, demand, tokens, "logprobs", logits=logits)


def _norms(demand: Demand) -> Iterator[MemoryPart]:
    """Parts of the pass for gradient norms.

    For the norm of the embedding's gradient, backward runs down to the embedding without parameter gradients. Where the
    head is tied to it, a vector is stored per token. For long rollouts the head's whole gradient is stored.
    """
    config, model, device = demand.config, demand.model, demand.device
    how = config.model.gradient_checkpointing
    tokens = micro_batch_tokens(demand, demand.measured)
    yield from _gathered(model, demand, "norms")
    if config.probe.gradient_norm == "embedding":
        saved = footprint.activation_bytes(model, tokens, checkpointing=how, frozen=not demand.sharded)
        saved += tokens * footprint.head(model).shape[1] * footprint.EXACT_BYTES
        saved += footprint.layer_backward_bytes(model, tokens, checkpointing=how, frozen=True)
        yield MemoryPart("activations for norms", saved, "norms", device, fewer_activations(config))
    else:
        read = footprint.forward_bytes(model, tokens)
        yield MemoryPart("forward pass for norms", read, "norms", device, fewer_tokens(config))
    chunk = _chunk(demand, tokens, 1)
    logits = footprint.chunk_bytes(model, chunk, copies=NORM_COPIES)
    yield MemoryPart("logits for norms", logits, "norms", device)
    if demand.sums_head_gradient:
        yield MemoryPart("output layer's gradient for norms", footprint.head_gradient_bytes(model), "norms", device)


def _gathered(
    reads: nn.Module, demand: Demand, phase: Phase, *, layers: int = footprint.AT_ONCE
) -> Iterator[MemoryPart]:
    """The other ranks' shares that a pass gathers, where models are sharded."""
    if demand.sharded:
        gathered = footprint.gathered_bytes(reads, demand.ranks, layers=layers)
        yield MemoryPart("gathered weights", gathered, phase, demand.device)


def _head_input(model: TrainedModel, demand: Demand, tokens: int, phase: Phase) -> Iterator[MemoryPart]:
    """The hidden states that a value head reads, where they are copied."""
    if copied := footprint.value_input_bytes(model.reads, tokens):
        yield MemoryPart("what the value head reads", copied, phase, demand.device, fewer_tokens(demand.config))


def micro_batch_tokens(demand: Demand, rollouts: int) -> int:
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


def sharding_advice(demand: Demand) -> tuple[str, ...]:
    """Advice for state that every rank holds whole: shard it over ranks."""
    config = demand.config
    divided = all(of.moments != "8bit" and not of.stochastic_rounding for of in optimizers(config).values())
    if config.model.quantization is not None or not divided:  # training/precision_checks.py refuses these, if sharded
        return ()
    if demand.ranks > 1:
        return ("set ranks.learner = 'sharded', for a share on each rank",)
    separate = demand.device.startswith("cuda")  # ranks on one CPU share its memory, so dividing saves nothing
    return ("divide it among ranks with ranks.learner = 'sharded'",) if separate else ()


def rank_advice(demand: Demand) -> str:
    """Advice for a share: use more ranks. On a CPU only ranks of other machines add memory."""
    where = "" if demand.device.startswith("cuda") else " on more machines"
    return f"use more ranks{where}, now {demand.ranks}"
