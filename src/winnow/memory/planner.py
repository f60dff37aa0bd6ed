"""How much memory each part of a run will take, from shapes alone: known before any weight is read.

Weights, gradients and optimizer are exact; so is native's key and value cache on a CPU under equal counts, for the
largest request that the configuration allows. What a forward pass holds is an estimate (memory/footprint.py). Counted
is what is alive: an allocator keeps some of what was freed, and torch and CUDA take something for themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from winnow.config import Config
from winnow.memory import footprint
from winnow.memory.demand import Demand
from winnow.memory.plan import MemoryPart, MemoryPlan
from winnow.models.meta import weight_bytes


def plan_memory(
    demand: Demand,
    *,
    needs: frozenset[str],
    job: Callable[[Demand], str],
    engine_parts: Callable[[Demand], Iterable[MemoryPart]],
) -> MemoryPlan:
    """The plan of a run: the parts of the policy, and those that its engine declares.

    `needs` are the extra log-probs that loss and terms read ("old_logprobs", "ref_logprobs") and "entropy". `job` gives
    the sentence about the engine, `engine_parts` what it takes; both are traits of its registration.
    """
    workers = demand.config.verify.workers
    judges = f"{workers} worker{'s' * (workers > 1)} on the cpu" if workers else "the trainer itself"
    return MemoryPlan(
        jobs=f"policy on {demand.device}; {job(demand)}; rewards by {judges}",
        parts=(*_policy_parts(demand, needs), *engine_parts(demand)),
        checkpoint=_checkpoint_bytes(demand, needs),
    )


def _policy_parts(demand: Demand, needs: frozenset[str]) -> Iterator[MemoryPart]:
    config, model, device = demand.config, demand.model, demand.device
    weights, gradients = weight_bytes(model), footprint.gradient_bytes(model)
    adapter = () if config.model.lora else ("train a model.lora",)
    reduced = () if config.model.dtype == "bfloat16" else ("train a model.lora on model.dtype = 'bfloat16'",)
    yield MemoryPart("weights", weights, "always", device, reduced)
    yield MemoryPart("optimizer", footprint.optimizer_bytes(model), "always", device, adapter)
    if "ref_logprobs" in needs:  # of an adapter: a second one, once it is reset
        yield MemoryPart("reference", gradients if config.model.lora else weights, "always", device, adapter)
    yield MemoryPart("gradients", gradients, "update", device, adapter)
    tokens = _micro_batch_tokens(config, demand.prompt_tokens)
    saved = footprint.activation_bytes(model, tokens, checkpointing=config.model.gradient_checkpointing)
    yield MemoryPart("activations", saved, "update", device, _smaller_activations(config))
    chunk = min(footprint.CHUNK_TOKENS, tokens)
    logits = footprint.logits_bytes(model, chunk, entropy="entropy" in needs)
    yield MemoryPart("output layer", logits, "update", device)


def _micro_batch_tokens(config: Config, prompt_tokens: int) -> int:
    """Of the largest one: no more than a whole step has, and at least one sequence."""
    longest = prompt_tokens + config.rollout.max_new_tokens
    sequences = config.rollout.prompts_per_step * config.rollout.rollouts_per_prompt
    return max(longest, min(config.update.tokens_per_micro_batch, sequences * longest))


def _smaller_activations(config: Config) -> tuple[str, ...]:
    fewer = f"lower update.tokens_per_micro_batch, now {config.update.tokens_per_micro_batch}"
    return (fewer,) if config.model.gradient_checkpointing else (fewer, "set model.gradient_checkpointing = true")


def _checkpoint_bytes(demand: Demand, needs: frozenset[str]) -> int:
    """Weights, adapters and optimizer as they are saved; the reference too, where a reset can change it."""
    reset = demand.config.probe.outer_reset in ("reference", "both")
    reference = footprint.gradient_bytes(demand.model) if "ref_logprobs" in needs and reset else 0
    return footprint.saved_bytes(demand.model) + reference
