"""The policy's memory parts on a rank that holds a share of it (FSDP2): while it is loaded whole, at all times, and
while gradients are summed.
"""

from __future__ import annotations

from collections.abc import Iterator

from winnow.memory import footprint, shares
from winnow.memory.demand import Demand
from winnow.memory.plan import MemoryPart
from winnow.models.meta import weight_bytes
from winnow.models.precision import keeps_masters


def sharded_parts(demand: Demand, needs: frozenset[str]) -> Iterator[MemoryPart]:
    """Parts of the policy. `needs` are the additional log-probs that loss and terms read: "ref_logprobs" needs a
    reference.
    """
    copied = (
        "ref_logprobs" in needs and demand.config.model.lora is None
    )  # with an adapter the reference is a second adapter
    yield from _loading(demand, copied)
    yield from _held(demand, needs, copied)
    yield from _summing(demand)
    weights = weight_bytes(demand.model)
    yield MemoryPart("copy that checkpoints are written from", weights, "always", "cpu", writer=True)


def _loading(demand: Demand, copied: bool) -> Iterator[MemoryPart]:
    """Parts before the policy is divided: it is read whole, and copied for reference and engine."""
    config, model, device = demand.config, demand.model, demand.device
    weights = weight_bytes(model)
    smaller = () if config.model.lora else ("train a model.lora",)
    yield MemoryPart("weights", weights, "load", device)
    if keeps_masters(config):
        yield MemoryPart("master weights", footprint.master_bytes(model), "load", device, smaller)
    if copied:
        yield MemoryPart("reference", weights, "load", device)
    yield MemoryPart("share of the weights", shares.share_bytes(model, demand.ranks), "load", device)


def _held(demand: Demand, needs: frozenset[str], copied: bool) -> Iterator[MemoryPart]:
    """Parts at all times. AdamW updates the float32 shares themselves, so no 16-bit copy exists."""
    model, device, ranks, smaller = demand.model, demand.device, demand.ranks, _smaller(demand)
    yield MemoryPart("share of the weights", shares.share_bytes(model, ranks), "always", device, smaller)
    yield MemoryPart("share of the optimizer", shares.moment_share_bytes(model, ranks), "always", device, smaller)
    if copied:
        yield MemoryPart("share of the reference", shares.frozen_share_bytes(model, ranks), "always", device, smaller)
    elif "ref_logprobs" in needs:  # every rank holds a frozen adapter whole
        yield MemoryPart("reference", footprint.gradient_bytes(model), "always", device)


def _summing(demand: Demand) -> Iterator[MemoryPart]:
    """Gradients of a rank's share, and those that are summed last, at the end of backward."""
    model, device, ranks, smaller = demand.model, demand.device, demand.ranks, _smaller(demand)
    gradients = shares.gradient_share_bytes(model, ranks)
    yield MemoryPart("share of the gradients", gradients, "update", device, smaller)
    yield MemoryPart("share of the gradients", gradients, "sums", device, smaller)
    yield MemoryPart("gathered weights", shares.gathered_root_bytes(model, ranks), "sums", device)
    yield MemoryPart("gradients to be summed", shares.unscattered_root_bytes(model, ranks), "sums", device)


def _smaller(demand: Demand) -> tuple[str, ...]:
    return (rank_advice(demand), *(() if demand.config.model.lora else ("train a model.lora",)))


def rank_advice(demand: Demand) -> str:
    """Advice for a share: use more ranks. On a CPU only ranks of other machines add memory."""
    where = "" if demand.device.startswith("cuda") else " on more machines"
    return f"use more ranks{where}, now {demand.ranks}"
