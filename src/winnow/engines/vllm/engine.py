"""vLLM as an engine: rollouts from its scheduler and kernels, on weights of its own.

It starts with random weights; the policy's come in through vLLM's weight-transfer interface, at the start as after
every update, and every worker records which version it has copied. vLLM is imported when the engine is made.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field

from winnow import seeds
from winnow.config import Config
from winnow.engines.base import Engine, EngineContext, OnRollout
from winnow.engines.own_weights import TOLERANCES
from winnow.engines.process.engine import second_process
from winnow.engines.requests import PendingRollout, SamplingRequest
from winnow.engines.stopping import StopRule
from winnow.engines.vllm.lora_request import ServedAdapter
from winnow.engines.vllm.memory import job, memory
from winnow.engines.vllm.served import FromPolicy, Served, describe
from winnow.engines.vllm.start import NO_SLEEP, VllmSettings, kernel_rank, start
from winnow.engines.weight_versions import check_newer
from winnow.errors import ConfigError, EngineError, WinnowError
from winnow.records import FloatArray, Group, Prompt, Sampling
from winnow.registry import register
from winnow.seeds import SeedName

if TYPE_CHECKING:
    from torch import Tensor

DTYPES = ("float32", "bfloat16")

Seconds = Annotated[float, Field(gt=0)]
Cuda = Annotated[str, Field(pattern=r"^cuda(:\d+)?$")]


def fits(config: Config) -> None:
    """Refuse what vLLM cannot do before anything is loaded. Raises ConfigError."""
    options, lora = config.rollout.engine.options, config.model.lora
    check(config.model.dtype, process=options.get("process", "inside"), device=options.get("device"))
    if options.get("sleep") and config.device == "cpu":
        raise ConfigError(NO_SLEEP)
    if options.get("lora") == "adapter":
        if lora is None:
            raise ConfigError(
                "rollout.engine.lora = 'adapter': there is no model.lora to serve; set one, or set "
                "rollout.engine.lora = 'merged'"
            )
        kernel_rank(lora.rank)


@register(
    "engine",
    requires="vllm",
    fits=fits,
    memory=memory,
    job=job,
    may_change=("gpu_memory_utilization", "key_value_gib", "timeout_seconds", "start_seconds"),
)
def vllm(
    context: EngineContext,
    *,
    process: Literal["inside", "own"] = "inside",
    device: Cuda | None = None,
    lora: Literal["merged", "adapter"] = "merged",
    tensor_parallel: Annotated[int, Field(gt=0)] = 1,
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.5,
    key_value_gib: Annotated[float, Field(gt=0)] | None = None,
    compiled: bool = True,
    sleep: bool = False,
    timeout_seconds: Seconds = 600.0,
    start_seconds: Seconds = 600.0,
) -> Engine:
    """vLLM on a copy of the policy, in the trainer's process or, on a device of its own, in one of its own."""
    settings = VllmSettings(
        tensor_parallel=tensor_parallel,
        gpu_memory_utilization=gpu_memory_utilization,
        key_value_gib=key_value_gib,
        compiled=compiled,
        sleep=sleep,
    )
    with TemporaryDirectory(prefix="winnow-vllm-") as folder:  # read once, at the start
        served = describe(context, Path(folder), adapter=lora == "adapter")
        check(served.dtype, process=process, device=device)
        if process == "inside":
            return FromPolicy(VllmEngine(served, settings), context.model, adapter=lora == "adapter")
        elsewhere = second_process(
            "winnow.engines.vllm.engine:VllmEngine",
            {"served": served, "settings": settings},
            timeout_seconds=timeout_seconds,
            start_seconds=start_seconds,
            environment=visible(device, tensor_parallel),
        )
        return FromPolicy(elsewhere, context.model, adapter=lora == "adapter")


def check(dtype: str, *, process: str, device: str | None) -> None:
    """Refuse a precision that vLLM lacks, and a device that it would not sample on. Raises ConfigError."""
    if device is not None and process == "inside":
        raise ConfigError(
            f"rollout.engine.device = {device!r}: inside the trainer's process vLLM samples where the policy is; set "
            f"rollout.engine.process = 'own', or leave the device out"
        )
    if dtype not in DTYPES:
        raise ConfigError(
            f"model.dtype = {dtype!r}: vLLM samples in float32 or bfloat16; choose one of them, or the engine 'native'"
        )


class VllmEngine:
    """See `vllm`. Takes whole models by the names of their checkpoints; until the first its version is -1.

    A rollout is a request of its own, with a seed of its own: `on_rollout` gets it when it is finished, it can be
    aborted and repeated alone, and the prefix cache shares what prompts have in common. Stop strings are found here and
    not by vLLM, so that every engine ends a rollout at the same token.
    """

    def __init__(self, served: Served, settings: VllmSettings) -> None:
        self.version = -1
        self.logprob_tolerance = TOLERANCES[getattr(torch, served.dtype)]
        self._served = served
        self._sleep = settings.sleep
        self._rule = functools.cache(partial(StopRule, served.tokenizer, served.stop_tokens, served.vocabulary))
        with engine_errors("start"):
            self._llm = start(served, settings)
        self._adapter = None if served.adapter is None else ServedAdapter(self._llm.llm_engine, served.adapter)

    def generate(
        self,
        prompts: Sequence[Prompt],
        counts: Sequence[int],
        sampling: Sampling,
        *,
        seed: tuple[SeedName, ...],
        on_rollout: OnRollout | None = None,
    ) -> list[Group]:
        """See `Engine`. Raises EngineError when the workers' weights are not of `version`, too."""
        rule = self._rule(sampling.stop)
        request = SamplingRequest(prompts, counts, rule=rule, version=self.version, on_rollout=on_rollout)
        _check_context(request.rollouts, sampling, self._served.context_tokens)
        self._wake()
        self._check_fresh()
        self._sample(request, rule, sampling, seed)
        if self._sleep:
            with engine_errors("sleep"):
                self._llm.sleep(level=1)
        return request.groups()

    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Copy weights into vLLM's workers, and empty the prefix cache, which older weights have filled.

        They are those of the whole model; where an adapter is served, first with it, and then of the adapter alone.
        """
        check_newer(version, than=self.version)
        adapter = {name: weights[name] for name in self._served.adapter_names.intersection(weights)}
        base = {name: weight for name, weight in weights.items() if name not in adapter}
        _check_names(adapter, self._served.adapter_names)
        if self._adapter is None or self.version < 0:
            _check_names(base, self._served.names)
        self._wake("weights")
        with engine_errors("take new weights"):
            if base:
                self._copy(base, version)
            if self._adapter is not None:
                self._adapter.load(adapter, version)
            emptied = self._llm.reset_prefix_cache()
        if not emptied:
            raise EngineError("vLLM kept prefixes read by older weights; rollouts must not be in flight during a load")
        self.version = version

    def close(self) -> None:
        """See `Engine`; ends vLLM's workers."""
        self._llm.llm_engine.engine_core.shutdown()

    def _copy(self, weights: Mapping[str, Tensor], version: int) -> None:
        self._llm.start_weight_update()
        self._llm.update_weights({"update_info": {"weights": weights, "version": version}})
        self._llm.finish_weight_update(weight_version=str(version))

    def _sample(self, request: SamplingRequest, rule: StopRule, sampling: Sampling, seed: tuple[SeedName, ...]) -> None:
        adapter = {} if self._adapter is None else {"lora_request": self._adapter.request}
        engine, unfinished = self._llm.llm_engine, {str(i): pending for i, pending in enumerate(request.rollouts)}
        try:
            with engine_errors("take prompts"):
                for name, pending in unfinished.items():
                    parameters = self._parameters(pending, rule, sampling, seed)
                    engine.add_request(name, _prompt(pending), parameters, **adapter)
            while unfinished:
                with engine_errors("sample"):
                    outputs = engine.step()
                for output in outputs:
                    completion = output.outputs[0]
                    tokens = np.array(completion.token_ids, dtype=np.int64)
                    if not output.finished and not rule.ends(tokens):
                        continue
                    if not output.finished:
                        engine.abort_request([output.request_id])
                    request.finish(unfinished.pop(output.request_id), tokens, _logprobs(completion))
        finally:
            engine.abort_request(list(unfinished))

    def _parameters(
        self, pending: PendingRollout, rule: StopRule, sampling: Sampling, seed: tuple[SeedName, ...]
    ) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            max_tokens=sampling.max_new_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            seed=seeds.derive(*seed, pending.prompt.id, pending.index) % 2**63,
            stop_token_ids=list(rule.tokens),
            ignore_eos=True,  # of vLLM's own guess; ours are named
            logprobs=0,  # of the sampled token alone
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.CUMULATIVE if rule.strings else RequestOutputKind.FINAL_ONLY,
        )

    def _wake(self, *tags: str) -> None:
        """Where it sleeps between steps: take back the memory for what `tags` name, or for everything."""
        if self._sleep:
            with engine_errors("wake up"):
                self._llm.wake_up(list(tags) or None)

    def _check_fresh(self) -> None:
        """With an adapter the base stays what it was at first, and the adapter is what must be new."""
        wanted = self.version if self._adapter is None else 0
        with engine_errors("tell its version"):
            held = set(self._llm.collective_rpc("weights_version"))
            fresh = held == {wanted} and (self._adapter is None or self._adapter.is_of(self.version))
        if not fresh:
            raise EngineError(
                f"stale weights: vLLM's workers have copied version {', '.join(sorted(map(str, held)))}, and rollouts "
                f"of version {self.version} were asked for; load the weights again"
            )


def visible(device: str | None, count: int) -> dict[str, str]:
    """The environment in which a process sees `count` CUDA devices from `device` ("cuda:1") on, and no others.

    Raises ConfigError where the trainer itself does not see that many.
    """
    if device is None:
        return {}
    _, _, first = device.partition(":")
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = listed.split(",") if listed else [str(i) for i in range(int(first or 0) + count)]
    shown = names[int(first or 0) :][:count]
    if len(shown) < count:
        raise ConfigError(
            f"rollout.engine.device = {device!r} with tensor_parallel = {count}: CUDA_VISIBLE_DEVICES shows {listed!r} "
            f"only; name devices that are there"
        )
    return {"CUDA_VISIBLE_DEVICES": ",".join(shown)}


def _check_context(rollouts: Sequence[PendingRollout], sampling: Sampling, context_tokens: int) -> None:
    longest = max((len(pending.prompt.tokens) for pending in rollouts), default=0)
    if longest + sampling.max_new_tokens > context_tokens:
        raise EngineError(
            f"a prompt of {longest} tokens and max_new_tokens = {sampling.max_new_tokens} are more than the "
            f"{context_tokens} tokens that vLLM was started for; lower one, or raise prompt.max_prompt_tokens"
        )


def _check_names(weights: Mapping[str, Tensor], names: frozenset[str]) -> None:
    if wrong := sorted(names.symmetric_difference(weights)):
        what = "lack" if wrong[0] in names else "have a needless"
        raise EngineError(f"the weights {what} {wrong[0]!r} ({len(wrong)} such names); hand over the whole model")


def _prompt(pending: PendingRollout) -> dict[str, list[int]]:
    return {"prompt_token_ids": pending.prompt.tokens.tolist()}


def _logprobs(completion: Any) -> FloatArray:
    """[L] of the sampled tokens. Raises EngineError where they are not finite."""
    found = np.array(completion.logprobs.logprobs, dtype=np.float64)
    if len(found) != len(completion.token_ids) or not np.isfinite(found).all():
        raise EngineError(
            "vLLM's log-probs are not finite: the policy's weights have diverged; lower optimizer.learning_rate and go "
            "on from an earlier checkpoint"
        )
    return found


@contextlib.contextmanager
def engine_errors(action: str) -> Iterator[None]:
    """Raise vLLM's own exceptions as EngineError: there are too many kinds of them to tell apart."""
    try:
        yield
    except WinnowError:
        raise
    except Exception as error:
        beginning = " ".join(str(error).split()[:60])  # of many lines the first rarely says what was wrong
        reason = f"{type(error).__name__}: {beginning}"
        raise EngineError(
            f"vLLM could not {action}: {reason}. Where memory ran out, lower rollout.engine.gpu_memory_utilization (or "
            f"key_value_gib) or rollout.max_rollouts_at_once; where it does not know the model, use the engine "
            f"'native'; then resume the run"
        ) from error
