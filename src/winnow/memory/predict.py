"""Plan the memory of each part of a run from shapes alone, before any weight is read.

Weights, gradients and optimizer are exact. So is the native engine's key and value cache on a CPU under equal counts,
for the largest request that the configuration allows. The memory of a forward pass is an estimate
(memory/footprint.py). The plan counts live tensors: allocators keep some freed memory, and torch and CUDA use memory of
their own. All ranks have the same plan, that of the rank that is dealt most.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from winnow.families import EngineTraits
from winnow.memory import footprint
from winnow.memory.demand import Demand
from winnow.memory.parts import model_parts
from winnow.memory.plan import MemoryPart, MemoryPlan
from winnow.memory.usage import capacity
from winnow.models.device import describe_precision
from winnow.options import Bound
from winnow.user_code import with_named_errors

SHARE = 0.8  # of a device that a run may fill; the rest is for allocators, kernels and other programs


def plan_memory(demand: Demand, engine: Bound[EngineTraits], *, needs: frozenset[str]) -> MemoryPlan:
    """The memory plan of a run: parts of the policy, of a value model, and those that its engine declares. An engine
    that declares neither `memory` nor `job` is listed by its name alone.

    `needs` are the additional log-probs that loss and terms read ("old_logprobs", "ref_logprobs") and "entropy".

    An engine that rounds the weights evaluates in the policy's precision if, with such evaluations, two conditions
    hold. All parts reach their minimum. The run fills no more than SHARE of the policy's device, or needs no more than
    with evaluations on rounded weights.
    Memory that happens to be free does not count, so that a resumed run gets the same plan.
    """
    exact = _make_plan(demand, engine, needs)
    total = demand.device_bytes or capacity(torch.device(demand.device))
    need = exact.need_here(demand.device)
    suffices = all(part.least is None or part.bytes >= part.least for part in exact.parts)
    if suffices and (total is None or need <= SHARE * total):
        return exact
    rounded = _make_plan(replace(demand, exact_evaluation=False), engine, needs)
    return exact if suffices and need <= rounded.need_here(demand.device) else rounded


def _make_plan(demand: Demand, engine: Bound[EngineTraits], needs: frozenset[str]) -> MemoryPlan:
    """The plan for a demand, with exact evaluations or without."""
    parts = (*model_parts(demand, needs), *_engine_parts(demand, engine))
    job = engine.traits.job or (lambda demand: f"{demand.config.rollout.engine.label} samples")
    workers = demand.judges
    critic = demand.config.critic
    values = f" and value model ({critic.description})" if critic else ""
    policy = f"policy{values} on {demand.device} in {describe_precision(demand.config, demand.device)}"
    judges = f"{workers} worker{'s' * (workers > 1)} on the cpu" if workers else "the trainer itself"
    divided = f", {'sharded over' if demand.sharded else 'whole on each of'} {demand.ranks} ranks"
    among = divided if demand.ranks > 1 else ""
    return MemoryPlan(
        jobs=f"{policy}{among}; {job(demand)}; rewards by {judges}",
        parts=tuple(_fit_part(part, parts, demand) for part in parts),
        checkpoint=_checkpoint_bytes(demand, needs),
        ranks=demand.ranks,
        ranks_here=demand.ranks_here,
        exact_evaluation=demand.exact_evaluation,
    )


def _engine_parts(demand: Demand, engine: Bound[EngineTraits]) -> tuple[MemoryPart, ...]:
    """The parts that an engine declares. One step ahead, it samples while the policy is trained."""
    declared = engine.traits.memory or (lambda demand: ())

    def parts(demand: Demand) -> Iterator[MemoryPart]:
        for part in declared(demand):
            always = demand.config.rollout.ahead and part.phase == "generate"
            yield replace(part, phase="always") if always else part

    # `tuple` inside the guard: the function may be a generator, which raises only when it is read
    guarded = with_named_errors(f"'memory' of the engine {engine.name!r}", declared, lambda of: tuple(parts(of)))
    found: tuple[MemoryPart, ...] = guarded(demand)
    return found


def _fit_part(part: MemoryPart, parts: tuple[MemoryPart, ...], demand: Demand) -> MemoryPart:
    """Reduce a part that can do with less: to what the others leave of SHARE of its device, or half of what they leave.

    The larger of the two counts. Memory that happens to be free does not, because a resumed run must compute the same
    bits.
    """
    total = demand.device_bytes or capacity(torch.device(part.device))
    if not part.takes_rest or part.least is None or total is None:
        return part
    total //= demand.ranks_here if part.device == "cpu" else 1
    others = MemoryPlan("", tuple(other for other in parts if other is not part)).need(part.device)
    left = max(int(SHARE * total) - others, (total - others) // 2)
    size = max(part.least, left)
    return part if size >= part.bytes else replace(part, bytes=size, wanted=part.bytes)


def _checkpoint_bytes(demand: Demand, needs: frozenset[str]) -> int:
    """Bytes of a checkpoint: weights, adapters and optimizer; a reference that a reset can change; a value model.

    The policy's adapter is saved twice: alone, and merged into the base. Of a value model, no frozen base is saved.
    """
    policy = demand.policy
    saved = footprint.parameter_bytes(demand.model) + policy.master_bytes + policy.moment_bytes()
    if "ref_logprobs" in needs and demand.config.probe.outer_reset in ("reference", "both"):
        adapter = demand.config.model.lora is not None
        saved += footprint.gradient_bytes(demand.model) if adapter else footprint.parameter_bytes(demand.model)
    model = demand.value_model
    if model is None:
        return saved
    saved += model.master_bytes + model.moment_bytes()
    if model.masters and model.holds_layers:  # its parameters are not saved, as they are rounded from the masters
        return saved
    return saved + sum(p.numel() * p.element_size() for p in model.held.parameters() if p.requires_grad)
