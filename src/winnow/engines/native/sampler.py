"""What the native engine does: a scheduler, a decoder, and the running rollouts between them."""

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
from winnow.engines.own_weights import TOLERANCES, OwnWeights
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

    _model: PreTrainedModel  # that it decodes on
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
        own = in_dtype is not None or context.sharded
        self._copy = OwnWeights(context.model, in_dtype) if own else None
        self._cache_bytes = _bound(context, key_value_mb)
        self._decode_on(context.model if self._copy is None else self._copy.model)
        self._trained_in = _trained_in(context.model)
        self._rounds = in_dtype not in (None, self._trained_in)
        self._exact = self._rounds and context.exact_evaluation and not context.sharded
        self.logprob_tolerance = TOLERANCES[self._model.dtype]
        self._put_back = 0
        self._graphs = graphs and self._model.device.type == "cuda"
        self._weights = packed_weights if packed else contextlib.nullcontext  # what a request decodes on
        self._at_once = context.max_rollouts_at_once
        self._rule = stop_rules(context.tokenizer, context.stop_tokens, context.model.config.vocab_size)

    @property
    def key_value_bytes(self) -> int:
        """Memory of the key and value cache, which grows with the largest request so far."""
        return 0 if self._decoder is None else self._decoder.cache.bytes

    @property
    def put_back(self) -> int:
        """Rollouts of all requests that had to make room for older ones, and went on later; each time counted."""
        return self._put_back

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
        decoder = self._decoder_of(scheduler.pool.tokens, scheduler.rows)
        try:
            with request, decoder.sampling(scheduler), self._weights(self._model):
                running = RunningRollouts(decoder, scheduler, sampling, seed)
                while running.admit():
                    request.check()
                    running.finish(running.sample(rule), request)
                    running.decode()
        except BaseException:
            self._decoder = None  # its cache may hold NaN, and attention's weight of 0 for it would still give NaN
            raise
        self._put_back += scheduler.put_back
        return request.groups()

    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Takes the version, and refuses any but the module's own weights; where it decodes on a copy, copies them."""
        check_newer(version, than=self.version)
        if self._copy is None:
            self._check_own(weights)
        else:
            self._copy.copy(weights)
        self.version = version

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[int | None]:
        """See `winnow.engines.base.evaluating`. In place of a rounded copy it decodes on the policy's own module, which
        takes no further copy: keys and values take twice the bytes per token, within the same bound.
        """
        if not self._exact or self._copy is None:
            yield torch.finfo(self._model.dtype).bits if self._rounds else None
            return
        try:
            self._decode_on(self._policy)
            yield torch.finfo(self._trained_in).bits
        finally:
            self._decode_on(self._copy.model)

    def close(self) -> None:
        """See `Engine`; releases the key and value cache."""
        self._decoder = None

    def _decode_on(self, model: PreTrainedModel) -> None:
        """From now on. The cache is of the other model's precision; two would take more memory than is planned."""
        self._model, self._decoder = model, None
        self._tokens = self._cache_bytes // KVCacheSpec.of(model).bytes_per_token

    def _decoder_of(self, tokens: int, rows: int) -> Decoder:
        """The last request's, if it is large enough: memory is reserved again only for a request that needs more."""
        last = self._decoder
        if last is None or last.cache.tokens < tokens or last.rows < rows:
            if last is not None:
                tokens, rows = max(tokens, last.cache.tokens), max(rows, last.rows)
            last = self._decoder = None  # frees its memory before more is reserved
            last = self._decoder = Decoder(self._model, tokens, rows, CudaGraphs() if self._graphs else None)
        return last

    def _check_own(self, weights: Mapping[str, Tensor]) -> None:
        own = self._policy.state_dict()
        for name, weight in weights.items():
            if name not in own or own[name].data_ptr() != weight.data_ptr():
                raise EngineError(
                    f"{name!r} is not a weight of the policy's module, on which the native engine decodes",
                    remedy="pass the module's weights, not copies of them, or use the engine 'hf'",
                    code="engine.contract",
                )


def _trained_in(policy: PreTrainedModel) -> torch.dtype:
    """The precision of the policy's trained weights: an adapter is in float32 also on a base of 16 bits."""
    trained: list[torch.dtype] = [weight.dtype for weight in policy.parameters() if weight.requires_grad]
    return trained[0] if trained else policy.dtype


def _bound(context: EngineContext, key_value_mb: int) -> int:
    """Bytes of keys and values at most: as many as are given, what the memory plan leaves, or, without a plan, half of
    what the weights leave of the device.
    """
    if key_value_mb:
        return key_value_mb * 2**20
    weights = sum(parameter.nbytes for parameter in context.model.parameters())
    return context.cache_bytes or ((capacity(context.model.device) or 2**40) - weights) // 2
