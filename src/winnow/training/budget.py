"""What a configuration results in: rollouts, sequences and updates, and the memory that each device needs for them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from winnow import ranks
from winnow.algos.chunks import kept_in_chunks
from winnow.budget.selection import kept_size
from winnow.config import Config, trained_tokens
from winnow.core.members import Members
from winnow.learner.gradient_sums import BUCKET
from winnow.learner.head import default_chunk_tokens, sums_head_gradient
from winnow.memory.demand import Demand
from winnow.memory.footprint import head
from winnow.memory.plan import MemoryPlan
from winnow.memory.predict import plan_memory
from winnow.memory.trained_model import policy_shapes, value_model
from winnow.models.meta import Skeleton
from winnow.verify.worker import can_be_sent


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The counts of one step, and of the evaluations around it."""

    prompts: int
    rollouts: int  # per step
    kept: int  # rollouts kept per prompt, at most
    updates: int  # optimizer updates per step
    rows: int  # sequences of an update, on average over those of an epoch
    longest_row: int  # tokens of the longest prompt and of the longest trained completion
    rows_at_once: int  # longest rows that fit into one micro-batch
    probe: int  # rollouts per probe, not trained on; 0 without one
    problems: int  # per evaluation
    evaluation: int  # rollouts per evaluation
    evaluations: int  # in the run; the maximum where `every_minutes` decides

    @property
    def micro_batches(self) -> int:
        """Micro-batches of such an update when every row has the longest length."""
        return math.ceil(self.rows / self.rows_at_once)


def budget(members: Members, problems: int | None = None) -> Budget:
    """The counts of a configuration. `problems` is the number of an evaluation's problems; None: as many as the
    configuration requests of each task, which may have fewer.
    """
    config = members.config
    rollout, update, evaluate = config.rollout, config.update, config.evaluate
    kept, probes = _kept(members), members.source == "probe"
    longest = config.prompt.max_prompt_tokens + trained_tokens(config)
    evaluated = (1 + len(evaluate.tasks)) * evaluate.problems if problems is None else problems
    return Budget(
        prompts=rollout.prompts_per_step,
        rollouts=rollout.prompts_per_step * rollout.rollouts_per_prompt,
        kept=kept,
        updates=update.epochs * update.updates_per_step,
        rows=math.ceil(rollout.prompts_per_step * kept / update.updates_per_step),
        longest_row=longest,
        rows_at_once=max(1, update.tokens_per_micro_batch // longest),
        probe=config.probe.every * rollout.prompts_per_step * config.probe.rollouts_per_prompt if probes else 0,
        problems=evaluated,
        evaluation=evaluated * (evaluate.rollouts_per_prompt + evaluate.greedy),
        evaluations=2 + min(config.steps - 1, _evaluations_on_time(config)),
    )


def _kept(members: Members) -> int:
    """Rollouts that the selectors keep, at most, of a prompt with `rollouts_per_prompt` rollouts. A selector without
    `keep_per_prompt` counts as keeping all.

    How many rollouts an earlier selector left in each chunk is unknown, so every chunk counts as full. The result is at
    most the number of rollouts that earlier selectors left.
    """
    left = n = members.config.rollout.rollouts_per_prompt
    for selector, section in zip(members.selectors, members.config.select, strict=True):
        keep, chunk = selector.options.get("keep_per_prompt"), section.chunk
        if keep is not None:
            left = kept_size(keep, left) if chunk is None else min(left, kept_in_chunks(keep, n, chunk))
    return left


def _evaluations_on_time(config: Config) -> int:
    """The most evaluations between the first step and the last.

    With `every_minutes` and without `max_hours`, nothing but the number of steps limits them: one before every step.
    """
    every, minutes = config.evaluate.every, config.evaluate.every_minutes
    by_steps = (config.steps - 1) // every if every else 0
    if not minutes:
        return by_steps
    return by_steps + math.ceil(60 * config.max_hours / minutes) - 1 if config.max_hours else config.steps


def plan_devices(members: Members, device: torch.device, *, longest_prompt: int | None = None) -> MemoryPlan:
    """The plan of a run with its policy on `device`: `plan_demand` of its `demand_of`."""
    return plan_demand(members, demand_of(members, device, longest_prompt=longest_prompt))


def demand_of(
    members: Members,
    device: torch.device,
    *,
    longest_prompt: int | None = None,
    memory: int | None = None,
    planned_ranks: int | None = None,
    like: Demand | None = None,
) -> Demand:
    """What a run with its policy on `device` demands. The shapes of its models are taken from the demand `like`, if one
    of a run with the same models is given: they take a second to build.

    Prompts have at most `longest_prompt` tokens; None: `prompt.max_prompt_tokens`. `memory` is the bytes of the device
    where that is not on this machine. `planned_ranks` is the number of ranks, all on one machine, of a run that this
    process plans without being one of them.

    Reads the model's settings and no weights. Raises DataError if there are no settings, ConfigError for adapters
    that do not fit the model, and for an embedding whose gradient norm an allocator needs and cannot be computed.
    """
    config, engine = members.config, members.engine
    model = like.model if like else policy_shapes(config)
    norms = members.gradient_norm if members.source != "none" else "none"
    if norms == "embedding" and not isinstance(model, Skeleton):  # a skeleton's embedding is a plain one
        from winnow.learner.gradient_norms import check_embedding  # computes with a model, which few runs need here

        check_embedding(model)
    chunk = default_chunk_tokens(model)
    count, here = (planned_ranks, planned_ranks) if planned_ranks else (ranks.count(), ranks.local_count())
    # Each of several ranks has its own device
    own_device = torch.cuda.current_device() if torch.cuda.is_available() and ranks.count() > 1 else 0
    return Demand(
        config=config,
        options=engine.options,
        model=model,
        prompt_tokens=config.prompt.max_prompt_tokens if longest_prompt is None else longest_prompt,
        device=f"cuda:{own_device}" if device == torch.device("cuda") else str(device),
        device_bytes=memory,
        source=members.source,
        gradient_norms=norms != "none",
        value_model=like.value_model if like else value_model(config, model),
        chunk_tokens=chunk,
        bucket=BUCKET,
        sums_head_gradient=sums_head_gradient(trained_tokens(config), chunk=chunk, hidden=head(model).shape[1]),
        ranks=count,
        ranks_here=here,
        judges=config.verify.workers if can_be_sent(members.reward) else 0,
    )


def plan_demand(members: Members, demand: Demand) -> MemoryPlan:
    """The plan of a run with its demand."""
    return plan_memory(demand, members.engine, needs=log_probs_needed(members))


def log_probs_needed(members: Members) -> frozenset[str]:
    """The members' needs, with "ref_logprobs" where rewards or advantages read the reference's."""
    return members.needs | ({"ref_logprobs"} if members.reference else set())
