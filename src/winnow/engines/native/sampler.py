"""Implementation of the native engine: a scheduler, a decoder, and the running rollouts.

At its start the engine checks on a prompt of two blocks that it computes the model's attention correctly.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from winnow.engines.base import EngineContext, OnRollout, PendingRollout, Turns
from winnow.engines.freshness import check_newer
from winnow.engines.native.cache import KVCache
from winnow.engines.native.cuda import CudaGraphs
from winnow.engines.native.decoder import Decoder, Text
from winnow.engines.native.linear import packed as packed_weights
from winnow.engines.native.memory import BLOCK
from winnow.engines.native.plain import is_plain
from winnow.engines.native.rows import RunningRollouts
from winnow.engines.native.scheduler import Scheduler
from winnow.engines.native.turns import RunningTurns
from winnow.engines.policy_copy import TOLERANCES, KVCacheSpec, PolicyCopy
from winnow.engines.requests import SamplingRequest
from winnow.engines.stopping import stop_rules
from winnow.errors import ConfigError, EngineError, unsupported
from winnow.memory.usage import capacity
from winnow.records import Group, Prompt, Sampling
from winnow.seeds import SeedName

if TYPE_CHECKING:
    from transformers import PreTrainedModel


# In standard deviations of the logits. HALF_GAP is for 16 bits, where rounding may select other experts
GAP, HALF_GAP = 1e-2, 0.5


def check_attention(model: PreTrainedModel) -> bool:
    """Decode two tokens and compare their logits with those of one plain forward pass. Returns whether the pass of
    plain.py decodes the model; any other is decoded by its modules.

    Raises ConfigError if the modules' logits differ, or if a layer does not attend through transformers'
    attention interface. Reading the configuration is not enough: a layer may change keys, values or mask outside the
    interface, for example repeat heads in another order.
    """
    kinds = set(getattr(model.config.get_text_config(), "layer_types", None) or ()) - {"full_attention"}
    if kinds:
        raise _unsupported(f"{', '.join(sorted(kinds))} layers")
    if is_plain(model) and _fault(model, modules=False) is None:
        return True
    if fault := _fault(model, modules=True):
        raise _unsupported(fault)
    return False


def _fault(model: PreTrainedModel, *, modules: bool) -> str | None:
    """How decoding differs from a plain forward pass, in words; None if it does not."""
    try:
        cache, decoded, plain = _decode_and_forward(model, modules=modules)
    except torch.OutOfMemoryError:
        raise
    except (TypeError, ValueError, RuntimeError, LookupError, AttributeError, AssertionError) as error:
        return f"a forward pass that raises {type(error).__name__}: {error}"
    if len(cache.attended) != cache.spec.layers:
        return "layers that do not attend through transformers' attention interface"
    if not plain.isfinite().all():
        return None  # the weights are not finite, which sampling reports
    off = float((decoded - plain).abs().max() / plain.std().clamp(min=1e-9))
    if not off <= (HALF_GAP if plain.dtype.itemsize < 4 else GAP):
        return f"layers with a different attention: decoded logits are off by {off:.2g} of their spread"
    return None


def _decode_and_forward(model: PreTrainedModel, *, modules: bool) -> tuple[KVCache, Tensor, Tensor]:
    """Decode two tokens after a prompt of two blocks.

    Returns the cache, the logits [V] of decoding, and the logits [V] of one plain forward pass over all tokens.
    """
    length = BLOCK + 3
    tokens = np.arange(length + 2) % model.config.get_text_config().vocab_size
    prompt = Prompt(id="", tokens=tokens[:length], text="", answer=None, task="")
    scheduler = Scheduler([PendingRollout(0, prompt, 0)], rows=1, longest=2)
    decoder = Decoder(model, scheduler.pool.tokens, rows=1, modules=modules)
    cache, row = decoder.cache, np.zeros(1, dtype=np.int64)
    with decoder.sampling(scheduler):
        cache.add_prompts(row + length)
        cache.add_rows(row)
        decoder.read([Text(tokens[:length], prompts=(0,))])
        decoder.set_prompts([0])
        cache.extend(row)
        for written in (0, 1):
            decoded = decoder.decode(tokens[length + written, None], row + length + written, row + written)[0]
        every = torch.from_numpy(tokens)[None].to(model.device)
        plain: Tensor = model(input_ids=every, use_cache=False).logits[0, -1]
    return cache, decoded, plain


def _unsupported(why: str) -> ConfigError:
    return unsupported(
        f"rollout.engine: native decodes full attention through transformers' interface only, and this model has {why}",
        remedy="use the engine 'hf'",
        key="rollout.engine",
    )


class Native:
    """See `native`."""

    _model: PreTrainedModel  # the module on which it decodes
    _decoder: Decoder | None
    keeps_turns = True

    def __init__(
        self,
        context: EngineContext,
        *,
        dtype: str = "policy",
        key_value_mb: int = 0,
        graphs: bool = True,
        packed: bool = True,
    ) -> None:
        self.version = 0
        self._policy = context.model
        in_dtype = None if dtype == "policy" else getattr(torch, dtype)
        copies = in_dtype is not None or context.sharded
        self._copy = PolicyCopy(context.copy_model(in_dtype), in_dtype) if copies else None
        # Of a policy that gets divided, only the copy has numbers
        self._modules = not check_attention(context.model if self._copy is None else self._copy.model)
        weights = sum(parameter.nbytes for parameter in context.model.parameters())
        half = ((capacity(context.device) or 2**40) - weights) // 2  # of the device's memory beside the weights
        self._cache_bytes = key_value_mb * 2**20 or context.cache_bytes or half
        self._set_model(context.model if self._copy is None else self._copy.model)
        trained = [weight.dtype for weight in context.model.parameters() if weight.requires_grad]
        self._trained_dtype = trained[0] if trained else context.model.dtype  # an adapter's on 16 bits is float32
        self._rounds = in_dtype not in (None, self._trained_dtype)
        self._exact = self._rounds and context.exact_evaluation and not context.sharded
        self.logprob_tolerance = TOLERANCES[self._model.dtype]
        self.preemptions = 0  # in all requests: a rollout waited because older ones needed its memory, and continued
        self._graphs = graphs and self._model.device.type == "cuda"
        self._pack = packed_weights if packed else contextlib.nullcontext
        self._at_once = context.max_rollouts_at_once
        vocabulary = context.model.config.get_text_config().vocab_size
        self._rule = stop_rules(context.tokenizer, context.stop_tokens, vocabulary)

    @property
    def key_value_bytes(self) -> int:
        """Memory of the key and value cache, which grows with the largest request so far."""
        return 0 if self._decoder is None else self._decoder.cache.bytes

    def generate(
        self,
        prompts: Sequence[Prompt],
        counts: Sequence[int],
        sampling: Sampling,
        *,
        seed: tuple[SeedName, ...],
        on_rollout: OnRollout | None = None,
        turns: Turns | None = None,
    ) -> list[Group]:
        """See `Engine`; with `turns`, the rollouts of the groups are last turns."""
        rule = self._rule(sampling.stop)
        request = SamplingRequest(prompts, counts, rule=rule, version=self.version, on_rollout=on_rollout)
        scheduler = Scheduler(
            request.rollouts,
            rows=self._at_once,
            longest=sampling.max_new_tokens if turns is None else turns.max_tokens,
            tokens=self._tokens,
            fixed=self._graphs,
        )
        decoder = self._get_decoder(scheduler.pool.tokens, scheduler.rows)
        try:
            with request, self._pack(self._model), decoder.sampling(scheduler):
                one_turn = (decoder, scheduler, sampling, seed)
                running = RunningRollouts(*one_turn) if turns is None else RunningTurns(*one_turn, turns)
                while running.admit():
                    request.check()
                    running.finish(running.sample(rule), request)
                    running.decode()
        except BaseException:
            self._decoder = None  # its cache may contain NaN, and attention with a weight of 0 would still give NaN
            raise
        self.preemptions += scheduler.preemptions
        return request.groups()

    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        """See `Engine`. Copies the weights if it decodes on a copy; else raises EngineError for weights that are not
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
        rounded copy, if the memory plan has room. Keys and values then need twice the bytes per token for a float32
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
            graphs = CudaGraphs() if self._graphs else None
            last = self._decoder = Decoder(self._model, tokens, rows, graphs, modules=self._modules)
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
