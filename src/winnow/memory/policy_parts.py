"""The policy's memory parts apart from its passes: what it is, what it is trained by, and what ranks exchange of it."""

from __future__ import annotations

from collections.abc import Iterator

from winnow.config import Config
from winnow.memory import footprint, sharding
from winnow.memory.demand import Demand
from winnow.memory.plan import MemoryPart
from winnow.models.meta import weight_bytes
from winnow.models.precision import keeps_masters


def policy_parts(demand: Demand, needs: frozenset[str]) -> Iterator[MemoryPart]:
    """`needs` are the extra log-probs that loss and terms read: "ref_logprobs" asks for a reference."""
    if demand.sharded:
        yield from _sharded(demand, needs)
        return
    yield from _whole(demand, needs)
    if demand.ranks > 1:
        bucket = sharding.bucket_bytes(demand.model)
        gradients = footprint.gradient_bytes(demand.model)
        yield MemoryPart("gradients", gradients, "sums", demand.device)
        yield MemoryPart("a bucket of gradients", bucket, "sums", demand.device)


def _whole(demand: Demand, needs: frozenset[str]) -> Iterator[MemoryPart]:
    """Of a rank that has all of the policy."""
    config, model, device = demand.config, demand.model, demand.device
    weights, gradients = weight_bytes(model), footprint.gradient_bytes(model)
    adapter = () if config.model.lora else ("train a model.lora",)
    shares = _in_shares(demand)
    smaller = (*_smaller_weights(config), *shares)
    yield MemoryPart("weights", weights, "always", device, smaller)
    if config.model.quantization is not None:
        yield MemoryPart("one matrix unpacked", footprint.unpacked_bytes(model), "always", device)
    if keeps_masters(config):
        rounding = "set optimizer.master_weights = false and stochastic_rounding = true"
        remedies = (*adapter, rounding, *shares)
        yield MemoryPart("master weights", footprint.master_bytes(model), "always", device, remedies)
    eight_bit = config.optimizer.moments == "8bit"
    fewer = () if eight_bit or config.model.dtype == "float64" else ("set optimizer.moments = '8bit'",)
    moments = footprint.optimizer_bytes(model, eight_bit=eight_bit)
    yield MemoryPart("optimizer", moments, "always", device, (*adapter, *fewer, *shares))
    if "ref_logprobs" in needs:  # of an adapter: a second one, once it is reset
        yield MemoryPart("reference", gradients if config.model.lora else weights, "always", device, adapter)
    yield MemoryPart("gradients", gradients + footprint.unsummed_bytes(model), "update", device, adapter)
    if config.optimizer.stochastic_rounding:
        yield MemoryPart("one parameter's rounding", footprint.rounding_bytes(model), "update", device)


def _sharded(demand: Demand, needs: frozenset[str]) -> Iterator[MemoryPart]:
    """Of a rank that has a share of the policy: the float32 shares are AdamW's parameters, with no copy of 16 bits."""
    config, model, device, ranks = demand.config, demand.model, demand.device, demand.ranks
    gradients = sharding.gradient_share_bytes(model, ranks)
    adapter = () if config.model.lora else ("train a model.lora",)
    smaller = (*_more_ranks(demand), *adapter)
    yield MemoryPart("share of the weights", sharding.share_bytes(model, ranks), "always", device, smaller)
    yield MemoryPart("share of the optimizer", sharding.moment_share_bytes(model, ranks), "always", device, smaller)
    if "ref_logprobs" in needs:  # of an adapter: a second one, once it is reset
        reference = gradients if config.model.lora else sharding.frozen_share_bytes(model, ranks)
        yield MemoryPart("share of the reference", reference, "always", device, smaller)
    yield MemoryPart("share of the gradients", gradients, "update", device, smaller)
    yield MemoryPart("share of the gradients", gradients, "sums", device, smaller)
    yield MemoryPart("gathered weights", sharding.gathered_root_bytes(model, ranks), "sums", device)
    whole = sharding.unscattered_root_bytes(model, ranks)
    yield MemoryPart("gradients to be summed", whole, "sums", device, adapter)


def _in_shares(demand: Demand) -> tuple[str, ...]:
    """What several devices would do about a policy that each rank has all of."""
    config = demand.config
    bits = config.model.quantization is not None or config.optimizer.moments == "8bit"
    if bits or config.optimizer.stochastic_rounding:  # which shares cannot have (training/combinations.py)
        return ()
    if demand.ranks > 1:
        return ("set ranks.learner = 'sharded', for a share on each rank",)
    return ("divide it among ranks with ranks.learner = 'sharded'",) if _own_device(demand) else ()


def _more_ranks(demand: Demand) -> tuple[str, ...]:
    """On a CPU only those of other machines bring memory of their own."""
    where = "" if _own_device(demand) else " on more machines"
    return (f"use more ranks{where}, now {demand.ranks}",)


def _own_device(demand: Demand) -> bool:
    return demand.device.startswith("cuda")


def _smaller_weights(config: Config) -> tuple[str, ...]:
    if config.model.quantization is not None:
        return ()
    base = "a model.lora on model.dtype = 'bfloat16'"
    whole = () if config.model.dtype == "bfloat16" else (f"train {base}",)
    return (*whole, f"train {base} with model.quantization = 'nf4'")
