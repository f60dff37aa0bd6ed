"""Which device does what, and how much memory each part of a run will take: known before any weight is read.

Weights, gradients and optimizer are exact; so are the tables of keys and values on a CPU under equal counts, for the
largest request that the configuration allows. What a forward pass holds is an estimate (learner/footprint.py). Counted
is what is alive: an allocator keeps some of what was freed, and torch and CUDA take something for themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch
from torch import nn
from transformers import PreTrainedModel

from winnow.config import Config, Member
from winnow.engines.native.cuda_graphs import padded
from winnow.engines.native.decoder import COLUMNS
from winnow.engines.native.kv_cache import Layout
from winnow.engines.native.scheduler import up
from winnow.engines.vllm.start import CPU_KEY_VALUE_GIB
from winnow.memory import footprint
from winnow.memory.plan import MemoryPlan, Part, Phase
from winnow.memory.usage import capacity
from winnow.models.adapter import add_lora
from winnow.models.meta import meta_model, weight_bytes
from winnow.registry import resolve
from winnow.training.members import Members

SAMPLED_BYTES = 16  # per logit: itself, its float32, that by the temperature, and its probability


def plan_devices(
    members: Members, device: torch.device, *, longest_prompt: int | None = None, memory: int | None = None
) -> MemoryPlan:
    """The plan of a run with its policy on `device`, whose prompts have at most `longest_prompt` tokens, or as many as
    the configuration lets them. `memory` are the bytes of such a device, where it is not the one that is here.

    Reads the model's settings, and no weight. Raises DataError where there are none, ConfigError for adapters that do
    not fit the model.
    """
    config, lora = members.config, members.config.model.lora
    where = "cuda:0" if device == torch.device("cuda") else str(device)
    model = meta_model(config.model.path, dtype=config.model.dtype)
    if lora is not None:
        model = cast(PreTrainedModel, add_lora(model, **lora.model_dump(), seed=0))
    prompt = config.prompt.max_prompt_tokens if longest_prompt is None else longest_prompt
    parts = (*_policy(members, model, prompt, where), *_engine(members, model, prompt, where, memory))
    return MemoryPlan(_jobs(config, where), parts, _remedies(config), _checkpoint(members, model))


def _checkpoint(members: Members, model: nn.Module) -> int:
    """Weights, adapters and optimizer as they are saved; the reference too, where it does not stay what it was."""
    of, lora = members.config.probe.outer_reset, members.config.model.lora
    moves = "ref_logprobs" in members.needs and of in ("reference", "both")
    reference = footprint.gradient_bytes(model) * (2 if lora else 1)  # an adapter's lies beside the policy's as well
    return footprint.saved_bytes(model) + moves * reference


def _jobs(config: Config, device: str) -> str:
    workers, engine = config.verify.workers, config.rollout.engine
    place = engine.options.get("device") or device
    process = " in a process of its own" if engine.options.get("process") == "own" else ""
    weights = (
        "the policy's own weights" if engine.options.get("dtype", "policy") == "policy" else "a copy of the weights"
    )
    how = {
        "native": f"native samples on {device} with {weights}",
        "hf": f"hf samples on {device} with a copy of the weights",
        "vllm": f"vllm samples on {place}{process} with a copy of the weights",
    }.get(_built_in(engine), f"{engine.label} samples")
    judges = f"{workers} worker{'s' * (workers > 1)} on the cpu" if workers else "the trainer itself"
    return f"policy on {device}; {how}; rewards by {judges}"


def _policy(members: Members, model: nn.Module, prompt: int, device: str) -> Iterator[Part]:
    config = members.config
    weights, gradients = weight_bytes(model), footprint.gradient_bytes(model)
    yield Part("weights", weights, "always", device)
    yield Part("optimizer", footprint.optimizer_bytes(model), "always", device)
    if "ref_logprobs" in members.needs:  # of an adapter: a second one, once it is reset
        yield Part("reference", gradients if config.model.lora else weights, "always", device)
    yield Part("gradients", gradients, "update", device)
    longest = prompt + config.rollout.max_new_tokens
    rows = config.rollout.prompts_per_step * config.rollout.rollouts_per_prompt
    tokens = max(longest, min(config.update.tokens_per_micro_batch, rows * longest))
    saved = footprint.activation_bytes(model, tokens, checkpointing=config.model.gradient_checkpointing)
    yield Part("activations", saved, "update", device)
    chunk = min(footprint.CHUNK_TOKENS, tokens)
    logits = footprint.logits_bytes(model, chunk, entropy="entropy" in members.needs)
    yield Part("output layer", logits, "update", device)


def _engine(members: Members, model: PreTrainedModel, prompt: int, device: str, memory: int | None) -> Iterator[Part]:
    """What a built-in engine takes. Of one that nobody here knows, nothing is said."""
    match _built_in(members.config.rollout.engine):
        case "native":
            yield from _native(members, model, prompt, device)
        case "hf":
            yield from _hf(members, model, prompt, device)
        case "vllm":
            yield from _vllm(members.config, model, device, memory)


def _hf(members: Members, model: PreTrainedModel, prompt: int, device: str) -> Iterator[Part]:
    """Every rollout has its prompt to itself."""
    yield Part("engine's copy", weight_bytes(model), "always", device)
    rows = max(rows for _, rows in _requests(members))
    tokens = rows * (prompt + members.config.rollout.max_new_tokens)
    yield Part("keys and values", tokens * Layout.of(model).bytes_per_token, "generate", device)
    yield from _forward(model, read=rows * prompt, rows=rows, device=device)


def _native(members: Members, model: PreTrainedModel, prompt: int, device: str) -> Iterator[Part]:
    """Its tables hold every prompt once, are kept between requests, and grow to the largest of each kind."""
    options, limit = members.config.rollout.engine.options, members.config.rollout.max_rollouts_at_once
    named = options.get("dtype", "policy")
    dtype = model.dtype if named == "policy" else getattr(torch, named)
    if named != "policy":
        yield Part("engine's copy", weight_bytes(model, dtype), "always", device)
    requests = _requests(members)
    rows, prompts = max(rows for _, rows in requests), max(min(limit, prompts) for prompts, _ in requests)
    if members.config.allocate.label != "uniform":
        prompts = min(limit, 2 * prompts)  # one with more rollouts than the others has several tiles
    columns = members.config.rollout.max_new_tokens
    if device.startswith("cuda") and options.get("graphs", True):
        prompt, columns, prompts = up(prompt, COLUMNS), up(columns, COLUMNS), padded(prompts, 2 * prompts)
        yield Part("recorded logits", rows * footprint.head(model).shape[0] * dtype.itemsize, "always", device)
    per_token = Layout.of(model, dtype).bytes_per_token
    table = (prompts * prompt + rows * columns) * per_token
    most = options.get("key_value_mb", 0) * 2**20
    yield Part("keys and values", min(table, most) if most else table, "always", device)
    passing = prompts * prompt * per_token  # as the model hands them over, before they are stored
    yield Part("prompts' keys and values", passing, "generate", device)
    yield from _forward(model, read=prompts * prompt, rows=rows, device=device)


def _forward(model: nn.Module, *, read: int, rows: int, device: str) -> Iterator[Part]:
    """What passes while `read` tokens of prompts are read, and while `rows` logits become tokens."""
    yield Part("reading prompts", footprint.forward_bytes(model, read), "generate", device)
    vocabulary = footprint.head(model).shape[0]
    yield Part("sampling", rows * vocabulary * SAMPLED_BYTES, "generate", device)


def _vllm(config: Config, model: nn.Module, device: str, memory: int | None) -> Iterator[Part]:
    """vLLM takes a share of its devices and plans within it. To a process of its own, weights go by way of memory that
    both share.
    """
    options = _options(config)
    phase: Phase = "generate" if options["sleep"] else "always"
    weights, parallel = weight_bytes(model), options["tensor_parallel"]
    for place in _places(options["device"] or device, parallel):
        tables = options["key_value_gib"] or (CPU_KEY_VALUE_GIB if place == "cpu" else None)
        if tables is None:
            share = options["gpu_memory_utilization"] * (memory or capacity(torch.device(place)) or 0)
            yield Part("vLLM", round(share), phase, place)
        else:
            yield Part("vLLM's weights", weights // parallel, phase, place)
            yield Part("vLLM's keys and values", round(tables * 2**30), phase, place)
    if config.model.lora is not None and options["lora"] == "merged":
        yield Part("merged weights", weights, "generate", device)
    if options["process"] == "own":
        yield Part("hand-over", weights, "always", "cpu")


def _places(first: str, count: int) -> list[str]:
    """ "cuda:1" and the devices after it; there is but one cpu."""
    kind, _, index = first.partition(":")
    return [first] * count if count == 1 or kind == "cpu" else [f"{kind}:{int(index or 0) + i}" for i in range(count)]


def _built_in(engine: Member) -> str:
    """The name of an engine of ours, however it was given; empty for a user's own, whatever that is called."""
    if isinstance(engine.use, str):
        return engine.use
    return next((name for name in ("native", "hf", "vllm") if resolve("engine", name).function is engine.use), "")


def _options(config: Config) -> dict[str, Any]:
    """The engine's, with the defaults of those not given."""
    engine = config.rollout.engine
    defaults = {name: option.default for name, option in resolve("engine", engine.use).options.items()}
    return {**defaults, **engine.options}


def _requests(members: Members) -> list[tuple[int, int]]:
    """(prompts, rollouts at once) of all that is sampled in one go; on average, where an allocator decides."""
    config = members.config
    rollout, evaluate, probe = config.rollout, config.evaluate, config.probe
    asked = [
        (rollout.prompts_per_step, rollout.rollouts_per_prompt),
        (evaluate.problems, evaluate.rollouts_per_prompt),
        *([(evaluate.problems, 1)] if evaluate.greedy else []),
        *([(probe.every * rollout.prompts_per_step, probe.rollouts_per_prompt)] if members.source == "probe" else []),
    ]
    return [(prompts, min(rollout.max_rollouts_at_once, prompts * each)) for prompts, each in asked]


def _remedies(config: Config) -> Mapping[str, tuple[str, ...]]:
    """What makes a part smaller, by its name, as far as it is not done yet."""
    update, rollout = config.update, config.rollout
    adapter = () if config.model.lora else ("train a model.lora",)
    sampled = (f"lower rollout.max_rollouts_at_once, now {rollout.max_rollouts_at_once}",)
    share = ("lower rollout.engine.gpu_memory_utilization",)
    return {
        "weights": () if config.model.dtype == "bfloat16" else ("train a model.lora on model.dtype = 'bfloat16'",),
        "optimizer": adapter,
        "gradients": adapter,
        "reference": adapter,
        "activations": (
            f"lower update.tokens_per_micro_batch, now {update.tokens_per_micro_batch}",
            *(() if config.model.gradient_checkpointing else ("set model.gradient_checkpointing = true",)),
        ),
        "engine's copy": ("use rollout.engine = 'native'",),
        "keys and values": sampled,
        "prompts' keys and values": sampled,
        "reading prompts": sampled,
        "sampling": sampled,
        "vLLM": share,
        "vLLM's keys and values": ("lower rollout.engine.key_value_gib",),
    }
