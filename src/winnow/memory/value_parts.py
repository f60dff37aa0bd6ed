"""Memory parts of a value model apart from its passes: weights, optimizer and gradients, whole or as a share."""

from __future__ import annotations

from collections.abc import Iterator

from winnow.config import Config, CriticSection, OptimizerSection
from winnow.memory import footprint, shares
from winnow.memory.demand import Demand
from winnow.memory.plan import MemoryPart, Phase
from winnow.memory.policy_parts import sharding_advice
from winnow.memory.sharded_parts import rank_advice
from winnow.memory.value_passes import value_passes
from winnow.memory.value_shapes import ValueShapes
from winnow.models.meta import weight_bytes
from winnow.models.precision import keeps_value_masters


def value_parts(demand: Demand) -> Iterator[MemoryPart]:
    """Parts of a value model and its passes; none where no value model is trained."""
    critic, shapes = demand.config.critic, demand.value_model
    if critic is None or shapes is None:
        return
    yield from _divided(demand, critic, shapes) if demand.sharded else _whole(demand, critic, shapes)
    yield from value_passes(demand, critic, shapes)


def value_checkpoint_bytes(demand: Demand) -> int:
    """Bytes of a value model in a checkpoint: trained parameters, masters or both, and moments; no frozen base."""
    critic, shapes = demand.config.critic, demand.value_model
    if critic is None or shapes is None:
        return 0
    masters, moments = _master_bytes(demand.config, shapes), _moment_bytes(demand.config, critic, shapes)
    if masters and critic.form != "shared":  # its parameters are not saved, as they are rounded from the masters
        return masters + moments
    return sum(p.numel() * p.element_size() for p in shapes.held.parameters() if p.requires_grad) + masters + moments


def describe_learners(demand: Demand) -> str:
    """Description of the trained models for the display's line about devices."""
    form = None if demand.config.critic is None else demand.config.critic.form
    return {
        None: "policy",
        "shared": "policy with a value head",
        "adapter": "policy with a value model's adapter",
        "model": "policy and value model",
    }[form]


def _whole(demand: Demand, critic: CriticSection, shapes: ValueShapes) -> Iterator[MemoryPart]:
    config, device, held = demand.config, demand.device, shapes.held
    optimizer, divided = _optimizer(config, critic), sharding_advice(demand)
    smaller = (*_smaller(config, critic), *divided)
    yield MemoryPart("value model weights", weight_bytes(held), "always", device, smaller)
    if critic.form == "model" and critic.lora is not None and config.model.quantization is not None:
        yield MemoryPart("one matrix of it unpacked", footprint.unpacked_bytes(shapes.reads), "always", device)
    if masters := _master_bytes(config, shapes):
        rounding = "set critic.optimizer.master_weights = false and stochastic_rounding = true"
        yield MemoryPart("value model master weights", masters, "always", device, (*smaller, rounding))
    fewer = () if optimizer.moments == "8bit" or config.model.dtype == "float64" else _fewer_bits(critic)
    moments = _moment_bytes(config, critic, shapes)
    yield MemoryPart("value model moments", moments, "always", device, (*smaller, *fewer))
    gradients, unsummed = footprint.gradient_bytes(held), footprint.unsummed_bytes(held)
    yield MemoryPart("value model gradients", gradients + unsummed, _updating(critic), device, smaller)
    if optimizer.stochastic_rounding and critic.form == "model":
        rounded = footprint.rounding_bytes(held)
        yield MemoryPart("one value model parameter's rounding", rounded, "value update", device)
    if demand.ranks > 1:
        bucket = shares.bucket_bytes(held)
        yield MemoryPart("value model gradients", gradients, _summing(critic), device)
        yield MemoryPart("a bucket of value model gradients", bucket, _summing(critic), device)


def _divided(demand: Demand, critic: CriticSection, shapes: ValueShapes) -> Iterator[MemoryPart]:
    """Parts of a rank that holds a share. A separate model is loaded whole, and so is the policy, before both are
    divided.
    """
    device, ranks, held = demand.device, demand.ranks, shapes.held
    smaller = (*_smaller(demand.config, critic), rank_advice(demand))
    yield MemoryPart("value model weights", weight_bytes(held), "load", device, smaller)
    if masters := _master_bytes(demand.config, shapes):
        yield MemoryPart("value model master weights", masters, "load", device, smaller)
    yield MemoryPart("share of the value model", shares.share_bytes(held, ranks), "always", device, smaller)
    yield MemoryPart("share of its moments", shares.moment_share_bytes(held, ranks), "always", device, smaller)
    gradients = shares.gradient_share_bytes(held, ranks)
    yield MemoryPart("share of the value model gradients", gradients, _updating(critic), device, smaller)
    yield MemoryPart("share of the value model gradients", gradients, _summing(critic), device, smaller)
    if critic.form == "adapter":  # in the copy that checkpoints are written from
        yield MemoryPart("value model's adapter in that copy", weight_bytes(held), "always", "cpu", writer=True)
    if critic.form == "model":
        root = shares.gathered_root_bytes(shapes.reads, ranks)
        yield MemoryPart("gathered value model weights", root, "value sums", device)
        unscattered = shares.unscattered_root_bytes(shapes.reads, ranks)
        yield MemoryPart("value model gradients to be summed", unscattered, "value sums", device)


def _optimizer(config: Config, critic: CriticSection) -> OptimizerSection:
    """Settings of the value model's optimizer: the policy's, for a head on the policy's backbone."""
    return config.optimizer if critic.form == "shared" else critic.optimizer


def _updating(critic: CriticSection) -> Phase:
    return "update" if critic.form == "shared" else "value update"


def _summing(critic: CriticSection) -> Phase:
    return "sums" if critic.form == "shared" else "value sums"


def _moment_bytes(config: Config, critic: CriticSection, shapes: ValueShapes) -> int:
    return footprint.optimizer_bytes(shapes.held, eight_bit=_optimizer(config, critic).moments == "8bit")


def _master_bytes(config: Config, shapes: ValueShapes) -> int:
    """Bytes of the masters of all trained parameters, where there are masters. The float32 head has one too."""
    return footprint.exact_bytes(shapes.held) if keeps_value_masters(config) else 0


def _smaller(config: Config, critic: CriticSection) -> tuple[str, ...]:
    """Advice on how to make a value model smaller; a head cannot be smaller."""
    if critic.form == "shared":
        return ()
    adapter = ("train a critic.lora",) if critic.form == "model" and critic.lora is None else ()
    return (*adapter, "set critic.form = 'shared'")


def _fewer_bits(critic: CriticSection) -> tuple[str, ...]:
    return () if critic.form == "shared" else ("set critic.optimizer.moments = '8bit'",)
