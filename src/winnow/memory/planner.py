"""How much memory each part of a run will take, from shapes alone: known before any weight is read.

Weights, gradients and optimizer are exact; so is native's key and value cache on a CPU under equal counts, for the
largest request that the configuration allows. What a forward pass holds is an estimate (memory/footprint.py). Counted
is what is alive: an allocator keeps some of what was freed, and torch and CUDA take something for themselves. Several
ranks are planned alike, each as the one that is dealt most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import torch

from winnow.memory import footprint
from winnow.memory.demand import Demand
from winnow.memory.passes import pass_parts
from winnow.memory.plan import MemoryPart, MemoryPlan
from winnow.memory.policy_parts import policy_parts
from winnow.memory.usage import capacity
from winnow.memory.value_parts import learners_in_words, value_checkpoint_bytes, value_parts
from winnow.models.precision import in_words, keeps_masters

SHARE = 0.8  # of a device, which a run may fill: the rest is for allocators, kernels and other programs


def plan_memory(
    demand: Demand,
    *,
    needs: frozenset[str],
    job: Callable[[Demand], str],
    engine_parts: Callable[[Demand], Iterable[MemoryPart]],
) -> MemoryPlan:
    """The plan of a run: the parts of the policy and of a value model, and those that its engine declares.

    `needs` are the extra log-probs that loss and terms read ("old_logprobs", "ref_logprobs") and "entropy". `job` gives
    the sentence about the engine, `engine_parts` what it takes; both are traits of its registration.

    An engine that rounds the weights evaluates in the policy's own precision where its parts hold what they must, and
    where the run then fills no more than a SHARE of the policy's device, or needs no more than otherwise. What is free
    at the moment has no say in it.
    """
    exact = _planned(demand, needs, job, engine_parts)
    total = demand.device_bytes or capacity(torch.device(demand.device))
    need = exact.need_here(demand.device)
    holds = all(part.least is None or part.bytes >= part.least for part in exact.parts)
    if holds and (total is None or need <= SHARE * total):
        return exact
    rounded = _planned(replace(demand, exact_evaluation=False), needs, job, engine_parts)
    return exact if holds and need <= rounded.need_here(demand.device) else rounded


def _planned(
    demand: Demand,
    needs: frozenset[str],
    job: Callable[[Demand], str],
    engine_parts: Callable[[Demand], Iterable[MemoryPart]],
) -> MemoryPlan:
    """The plan, with or without exact evaluations, as the demand has it."""
    ours = (*policy_parts(demand, needs), *value_parts(demand), *pass_parts(demand, needs))
    parts = (*ours, *engine_parts(demand))
    workers = demand.config.verify.workers
    policy = f"{learners_in_words(demand)} on {demand.device} in {in_words(demand.config, demand.device)}"
    judges = f"{workers} worker{'s' * (workers > 1)} on the cpu" if workers else "the trainer itself"
    return MemoryPlan(
        jobs=f"{policy}{_among_ranks(demand)}; {job(demand)}; rewards by {judges}",
        parts=tuple(_adjusted(part, parts, demand) for part in parts),
        checkpoint=_checkpoint_bytes(demand, needs),
        ranks=demand.ranks,
        ranks_here=demand.ranks_here,
        exact_evaluation=demand.exact_evaluation,
    )


def _among_ranks(demand: Demand) -> str:
    if demand.ranks == 1:
        return ""
    return f", sharded over {demand.ranks} ranks" if demand.sharded else f", whole on each of {demand.ranks} ranks"


def _adjusted(part: MemoryPart, parts: tuple[MemoryPart, ...], demand: Demand) -> MemoryPart:
    """A part that makes do with less takes at most what the others leave of a SHARE of its device, or half of what they
    leave where that is more. What is free at the moment has no say: a resumed run must come to the same bits.
    """
    total = demand.device_bytes or capacity(torch.device(part.device))
    if not part.takes_rest or part.least is None or total is None:
        return part
    total //= demand.ranks_here if part.device == "cpu" else 1
    beside = tuple(other for other in parts if other is not part and other.phase != "load")  # it is made after that
    others = MemoryPlan("", beside).need(part.device)
    left = max(int(SHARE * total) - others, (total - others) // 2)
    held = max(part.least, left)
    return part if held >= part.bytes else replace(part, bytes=held, wanted=part.bytes)


def _checkpoint_bytes(demand: Demand, needs: frozenset[str]) -> int:
    """Weights, adapters and optimizer as they are saved; the reference too, where a reset can change it, and a value
    model.
    """
    reset = demand.config.probe.outer_reset in ("reference", "both")
    reference = footprint.parameter_bytes(demand.model)
    if demand.config.model.lora:
        reference = footprint.gradient_bytes(demand.model)
    eight_bit = demand.config.optimizer.moments == "8bit"
    saved = footprint.saved_bytes(demand.model, masters=keeps_masters(demand.config), eight_bit=eight_bit)
    return saved + ("ref_logprobs" in needs and reset) * reference + value_checkpoint_bytes(demand)
