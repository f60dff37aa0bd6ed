"""Implementation of the native engine: a scheduler, a decoder, and the running rollouts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from winnow.engines.base import EngineContext, OnRollout
from winnow.engines.native.attention_check import check_attention
from winnow.engines.native.cache_size import KVCacheSpec
from winnow.engines.native.cuda_graphs import CudaGraphs
from winnow.engines.native.decoder import Decoder
from winnow.engines.native.packed_weights import packed as packed_weights
from winnow.engines.native.running import RunningRollouts
from winnow.engines.native.scheduler import Scheduler
from winnow.engines.own_weights import TOLERANCES, PolicyCopy
from winnow.engines.requests import SamplingRequest
from winnow.engines.stopping import stop_rules
from winnow.engines.weight_versions import check_newer
from winnow.errors import EngineError
from winnow.memory.usage import capacity
from winnow.records import Group, Prompt, Sampling
from winnow.seeds import SeedName

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Native:
    """See `native`."""

    _model: PreTrainedModel  # the module on which it decodes
    _decoder: Decoder | None

    def __init__(
        self,
        context: EngineContext,
        *,
        dtype: str = "policy",
        key_value_mb: int = 0,
        graphs: bool = True,
        packed: bool = True,
    ) -> None:
        check_attention(context.model)
        self.version = 0
        self._policy = context.model
        in_dtype = None if dtype == "policy" else getattr(torch, dtype)
        copies = in_dtype is not None or context.sharded
        self._copy = PolicyCopy(context.model, in_dtype) if copies else None
        self._cache_bytes = _cache_limit(context, key_value_mb)
        self._set_model(context.model if self._copy is None else self._copy.model)
        self._trained_dtype = _trained_dtype(context.model)
        self._rounds = in_dtype not in (None, self._trained_dtype)
        self._exact = self._rounds and context.exact_evaluation and not context.sharded
        self.logprob_tolerance = TOLERANCES[self._model.dtype]
        self._preemptions = 0
        self._graphs = graphs and self._model.device.type == "cuda"
        self._pack = packed_weights if packed else contextlib.nullcontext
        self._at_once = context.max_rollouts_at_once
        self._rule = stop_rules(context.tokenizer, context.stop_tokens, context.model.config.vocab_size)

    @property
    def key_value_bytes(self) -> int:
        """Memory of the key and value cache, which grows with the largest request so far."""
        return 0 if self._decoder is None else self._decoder.cache.bytes

    @property
    def preemptions(self) -> int:
        """Preemptions in all requests: a rollout waited because older ones needed its memory, and continued later."""
        return self._preemptions

    def generate(
        self,
        prompts: Sequence[Prompt],
        counts: Sequence[int],
        sampling: Sampling,
        *,
        seed: tuple[SeedName, ...],
        on_rollout: OnRollout | None = None,
    ) -> list[Group]:
        """See `Engine`."""
        rule = self._rule(sampling.stop)
        request = SamplingRequest(prompts, counts, rule=rule, version=self.version, on_rollout=on_rollout)
        scheduler = Scheduler(
            request.rollouts,
            rows=self._at_once,
            longest=sampling.max_new_tokens,
            tokens=self._tokens,
            fixed=self._graphs,
        )
        decoder = self._get_decoder(scheduler.pool.tokens, scheduler.rows)
        try:
            with request, decoder.sampling(scheduler), self._pack(self._model):
                running = RunningRollouts(decoder, scheduler, sampling, seed)
                while running.admit():
                    request.check()
                    running.finish(running.sample(rule), request)
                    running.decode()
        except BaseException:
            self._decoder = None  # its cache may contain NaN, and attention with a weight of 0 would still give NaN
            raise
        self._preemptions += scheduler.preemptions
        return request.groups()

    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        """See `Engine`. Copies the weights where it decodes on a copy; else raises EngineError for weights that are not
        those of the policy's module.
        """
        check_newer(version, than=self.version)
        if self._copy is None:
            self._check_policy_weights(weights)
        else:
            self._copy.load(weights)
        self.version = version

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[int | None]:
        """See `winnow.engines.base.evaluating`. Inside it, the engine decodes on the policy's module instead of a
        rounded copy, where the memory plan has room. Keys and values then need twice the bytes per token for a float32
        policy, within the same limit.
        """
        if not self._exact or self._copy is None:
            yield torch.finfo(self._model.dtype).bits if self._rounds else None
            return
        try:
            self._set_model(self._policy)
            yield torch.finfo(self._trained_dtype).bits
        finally:
            self._set_model(self._copy.model)

    def close(self) -> None:
        """See `Engine`; releases the key and value cache."""
        self._decoder = None

    def _set_model(self, model: PreTrainedModel) -> None:
        """Decode on this model from now on. Drops the cache, because caches of two precisions would exceed the plan."""
        self._model, self._decoder = model, None
        self._tokens = self._cache_bytes // KVCacheSpec.of(model).bytes_per_token

    def _get_decoder(self, tokens: int, rows: int) -> Decoder:
        """The decoder of the last request if it is large enough, else a larger one."""
        last = self._decoder
        if last is None or last.cache.tokens < tokens or last.rows < rows:
            if last is not None:
                tokens, rows = max(tokens, last.cache.tokens), max(rows, last.rows)
            last = self._decoder = None  # frees its memory before more is reserved
            last = self._decoder = Decoder(self._model, tokens, rows, CudaGraphs() if self._graphs else None)
        return last

    def _check_policy_weights(self, weights: Mapping[str, Tensor]) -> None:
        state = self._policy.state_dict()
        for name, weight in weights.items():
            if name not in state or state[name].data_ptr() != weight.data_ptr():
                raise EngineError(
                    f"{name!r} is not a weight of the policy's module, on which the native engine decodes",
                    remedy="pass the module's weights, not copies of them, or use the engine 'hf'",
                    code="engine.contract",
                )


def _trained_dtype(policy: PreTrainedModel) -> torch.dtype:
    """The precision of the policy's trained weights: an adapter is in float32 even on a base of 16 bits."""
    trained: list[torch.dtype] = [weight.dtype for weight in policy.parameters() if weight.requires_grad]
    return trained[0] if trained else policy.dtype


def _cache_limit(context: EngineContext, key_value_mb: int) -> int:
    """Most bytes of keys and values: `key_value_mb` if it is set, else the memory that the plan leaves, else half of
    the device's memory beside the weights.
    """
    if key_value_mb:
        return key_value_mb * 2**20
    weights = sum(parameter.nbytes for parameter in context.model.parameters())
    return context.cache_bytes or ((capacity(context.model.device) or 2**40) - weights) // 2
