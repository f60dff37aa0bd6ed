"""The policy's memory parts apart from its passes: weights, optimizer, gradients, and buffers of exchanges between
ranks.
"""

from __future__ import annotations

from collections.abc import Iterator

from winnow.config import Config
from winnow.memory import footprint, shares
from winnow.memory.demand import Demand
from winnow.memory.plan import MemoryPart
from winnow.memory.sharded_parts import sharded_parts
from winnow.models.meta import weight_bytes
from winnow.models.precision import keeps_masters


def policy_parts(demand: Demand, needs: frozenset[str]) -> Iterator[MemoryPart]:
    """Parts of the policy. `needs` are the additional log-probs that loss and terms read: "ref_logprobs" needs a
    reference.
    """
    if demand.sharded:
        yield from sharded_parts(demand, needs)
        return
    yield from _whole(demand, needs)
    if demand.ranks > 1:
        bucket = shares.bucket_bytes(demand.model)
        gradients = footprint.gradient_bytes(demand.model)
        yield MemoryPart("gradients", gradients, "sums", demand.device)
        yield MemoryPart("a bucket of gradients", bucket, "sums", demand.device)


def _whole(demand: Demand, needs: frozenset[str]) -> Iterator[MemoryPart]:
    """Parts of a rank that holds the whole policy."""
    config, model, device = demand.config, demand.model, demand.device
    weights, gradients = weight_bytes(model), footprint.gradient_bytes(model)
    adapter = () if config.model.lora else ("train a model.lora",)
    divided = sharding_advice(demand)
    smaller = (*_smaller_weights(config), *divided)
    yield MemoryPart("weights", weights, "always", device, smaller)
    if config.model.quantization is not None:
        yield MemoryPart("one matrix unpacked", footprint.unpacked_bytes(model), "always", device)
    if keeps_masters(config):
        rounding = "set optimizer.master_weights = false and stochastic_rounding = true"
        remedies = (*adapter, rounding, *divided)
        yield MemoryPart("master weights", footprint.master_bytes(model), "always", device, remedies)
    eight_bit = config.optimizer.moments == "8bit"
    fewer = () if eight_bit or config.model.dtype == "float64" else ("set optimizer.moments = '8bit'",)
    moments = footprint.optimizer_bytes(model, eight_bit=eight_bit)
    yield MemoryPart("optimizer", moments, "always", device, (*adapter, *fewer, *divided))
    if "ref_logprobs" in needs:  # with an adapter: a second adapter, after a reset
        yield MemoryPart("reference", gradients if config.model.lora else weights, "always", device, adapter)
    yield MemoryPart("gradients", gradients + footprint.unsummed_bytes(model), "update", device, adapter)
    if config.optimizer.stochastic_rounding:
        yield MemoryPart("one parameter's rounding", footprint.rounding_bytes(model), "update", device)


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


def _smaller_weights(config: Config) -> tuple[str, ...]:
    if config.model.quantization is not None:
        return ()
    base = "a model.lora on model.dtype = 'bfloat16'"
    whole = () if config.model.dtype == "bfloat16" else (f"train {base}",)
    return (*whole, f"train {base} with model.quantization = 'nf4'")
