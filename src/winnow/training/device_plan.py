"""The memory plan of a configuration: the work of each device, and whether the run fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch

from winnow import ranks
from winnow.config import trained_tokens
from winnow.learner.gradient_norms import sums_head_gradient
from winnow.learner.policy import default_chunk_tokens
from winnow.learner.sharding import BUCKET
from winnow.memory.demand import Demand, measured_rollouts, sampling_requests, value_model
from winnow.memory.footprint import head
from winnow.memory.plan import MemoryPlan
from winnow.memory.planner import plan_memory
from winnow.models.adapter import add_lora
from winnow.models.meta import meta_model
from winnow.training.members import Members
from winnow.user_code import with_named_errors

if TYPE_CHECKING:
    from winnow.models.meta import MetaModel


def plan_devices(
    members: Members,
    device: torch.device,
    *,
    longest_prompt: int | None = None,
    memory: int | None = None,
    planned_ranks: int | None = None,
) -> MemoryPlan:
    """The plan of a run with its policy on `device`.

    Prompts have at most `longest_prompt` tokens; None: `prompt.max_prompt_tokens`. `memory` is the bytes of the device
    where that is not on this machine. `planned_ranks` is the number of ranks, all on one machine, of a run that this
    process plans without being one of them.

    An engine that declares neither `memory` nor `job` is listed by its name alone. Reads the model's settings and no
    weights. Raises DataError where there are no settings, ConfigError for adapters that do not fit the model.
    """
    config, lora = members.config, members.config.model.lora
    model = meta_model(
        config.model.path,
        dtype=config.model.dtype,
        adaptable=lora is not None,
        quantization=config.model.quantization,
    )
    if lora is not None:
        model = cast("MetaModel", add_lora(model, **lora.model_dump(), seed=0))
    engine, chunk = members.engine, default_chunk_tokens(model)
    count, here = (planned_ranks, planned_ranks) if planned_ranks else (ranks.count(), ranks.local_count())
    demand = Demand(
        config=config,
        options=engine.options,
        model=model,
        prompt_tokens=config.prompt.max_prompt_tokens if longest_prompt is None else longest_prompt,
        device=f"cuda:{_own_device()}" if device == torch.device("cuda") else str(device),
        device_bytes=memory,
        requests=sampling_requests(config, probes=members.source == "probe", ranks=count),
        measured=measured_rollouts(config, members.source, count),
        value_model=value_model(config, model),
        chunk_tokens=chunk,
        bucket=BUCKET,
        sums_head_gradient=sums_head_gradient(trained_tokens(config), chunk=chunk, hidden=head(model).shape[1]),
        ranks=count,
        ranks_here=here,
    )
    job = engine.traits.job or (lambda demand: f"{config.rollout.engine.label} samples")
    parts = engine.traits.memory or (lambda demand: ())
    return plan_memory(
        demand,
        needs=members.needs | ({"ref_logprobs"} if members.reference else set()),
        job=job,
        # `tuple` inside the guard: the function may be a generator, which raises only when it is read
        engine_parts=with_named_errors(
            f"'memory' of the engine {engine.name!r}", parts, lambda demand: tuple(parts(demand))
        ),
    )


def _own_device() -> int:
    """Number of the CUDA device of this process; each of several ranks has its own."""
    return torch.cuda.current_device() if torch.cuda.is_available() and ranks.count() > 1 else 0
