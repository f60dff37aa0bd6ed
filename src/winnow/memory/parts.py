"""Memory of a trained model apart from its passes: weights, masters, optimizer and gradients.

The policy and a value model are both a `TrainedModel`. A rank holds all of it, or a share of it (FSDP2).
"""

from __future__ import annotations

from collections.abc import Iterator

from winnow.config import AdapterCritic
from winnow.memory import footprint
from winnow.memory.demand import Demand, TrainedModel
from winnow.memory.plan import MemoryPart
from winnow.models.meta import weight_bytes


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
    yield MemoryPart(f"{of}optimizer", model.moment_bytes, "always", device, (*smaller, *fewer))
    gradients, unsummed = footprint.gradient_bytes(held), footprint.unsummed_bytes(held)
    yield MemoryPart(f"{of}gradients", gradients + unsummed, model.updated, device, smaller)
    if model.optimizer.stochastic_rounding and (rounded := footprint.rounding_bytes(held)):
        yield MemoryPart(f"one {of}parameter's rounding", rounded, model.updated, device)
    if demand.ranks > 1:
        bucket = footprint.bucket_bytes(held, demand.bucket)
        yield MemoryPart(f"{of}gradients", gradients, model.summed, device)
        yield MemoryPart(f"a bucket of {of}gradients", bucket, model.summed, device)


def _share(model: TrainedModel, demand: Demand) -> Iterator[MemoryPart]:
    """Parts of a rank that holds a share. The model is read whole, before it is divided. AdamW updates the float32
    shares themselves, so no 16-bit copy exists. Gradients outside the layers are summed last, at the end of backward.
    """
    of, held, device, ranks = model.name, model.held, demand.device, demand.ranks
    smaller = (rank_advice(demand), *model.smaller)
    yield MemoryPart(f"{of}weights", weight_bytes(held), "load", device, model.smaller)
    if model.masters:
        yield MemoryPart(f"{of}master weights", model.master_bytes, "load", device, model.smaller)
    share, moments = footprint.share_bytes(held, ranks), footprint.moment_share_bytes(held, ranks)
    yield MemoryPart(f"share of the {of}weights", share, "always", device, smaller)
    yield MemoryPart(f"share of the {of}optimizer", moments, "always", device, smaller)
    gradients = footprint.gradient_share_bytes(held, ranks)
    for phase in (model.updated, model.summed):
        yield MemoryPart(f"share of the {of}gradients", gradients, phase, device, smaller)
    if model.holds_layers:
        gathered = footprint.gathered_root_bytes(model.reads, ranks)
        unscattered = footprint.unscattered_root_bytes(model.reads, ranks)
        yield MemoryPart(f"gathered {of}weights", gathered, model.summed, device)
        yield MemoryPart(f"{of}gradients to be summed", unscattered, model.summed, device)


def policy_parts(demand: Demand, needs: frozenset[str]) -> Iterator[MemoryPart]:
    """Parts of the policy, with those of its copies. `needs` are the additional log-probs that loss and terms read:
    "ref_logprobs" needs a reference.
    """
    yield from parts(demand.policy, demand)
    model, device, ranks, smaller = demand.model, demand.device, demand.ranks, demand.policy.smaller
    weights = weight_bytes(model)
    if "ref_logprobs" in needs:
        if demand.config.model.lora is not None:  # a second, frozen adapter, which every rank holds whole
            yield MemoryPart("reference", footprint.gradient_bytes(model), "always", device)
        elif demand.sharded:
            share, advice = footprint.frozen_share_bytes(model, ranks), (rank_advice(demand), *smaller)
            yield MemoryPart("reference", weights, "load", device)
            yield MemoryPart("share of the reference", share, "always", device, advice)
        else:
            yield MemoryPart("reference", weights, "always", device, smaller)
    if demand.sharded:
        # the engine's copy and the reference are made while the policy is divided
        yield MemoryPart("share of the weights", footprint.share_bytes(model, ranks), "load", device)
        yield MemoryPart("copy that checkpoints are written from", weights, "always", "cpu", writer=True)


def value_model_parts(demand: Demand) -> Iterator[MemoryPart]:
    """Parts of a value model; none where no value model is trained."""
    model = demand.value_model
    if model is None:
        return
    yield from parts(model, demand)
    if demand.sharded and isinstance(demand.config.critic, AdapterCritic):  # checkpoints are written from a copy
        yield MemoryPart("value model's adapter in that copy", weight_bytes(model.held), "always", "cpu", writer=True)


def sharding_advice(demand: Demand) -> tuple[str, ...]:
    """Advice for state that every rank holds whole: shard it over ranks."""
    config = demand.config
    bits = config.model.quantization is not None or config.optimizer.moments == "8bit"
    if bits or config.optimizer.stochastic_rounding:  # combinations.py refuses these for a sharded learner
        return ()
    if demand.ranks > 1:
        return ("set ranks.learner = 'sharded', for a share on each rank",)
    separate = demand.device.startswith("cuda")  # ranks on one CPU share its memory, so dividing saves nothing
    return ("divide it among ranks with ranks.learner = 'sharded'",) if separate else ()


def rank_advice(demand: Demand) -> str:
    """Advice for a share: use more ranks. On a CPU only ranks of other machines add memory."""
    where = "" if demand.device.startswith("cuda") else " on more machines"
    return f"use more ranks{where}, now {demand.ranks}"
