"""Prefill and decoding on a transformers model: a prompt is read once, then every row gets a token at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from winnow.engines.native.cache_size import CacheSize, KVCacheSpec, round_columns, rounded
from winnow.engines.native.cuda_graphs import CudaGraphs, padded
from winnow.engines.native.kv_cache import KVCache
from winnow.engines.native.shared_prompt import attention as shared_attention
from winnow.engines.padding import left_pad
from winnow.errors import ConfigError
from winnow.models.precision import distinct_places
from winnow.records import IntArray, Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedModel

GAP, HALF_GAP = 1e-2, 0.5  # in standard deviations of the logits; the latter in 16 bits, where experts may change


class Decoder:
    """Everything that a forward pass reads and writes, in memory that is allocated once, of the size `capacity`.

    It works on rows, whichever rollouts they belong to. What is computed depends on the request alone, and never on the
    capacity that earlier requests have left: a resumed run must come to the same bits.
    """

    def __init__(self, model: PreTrainedModel, capacity: CacheSize, graphs: CudaGraphs | None = None) -> None:
        device, exact = model.device, torch.promote_types(model.dtype, torch.float32)
        self.capacity = capacity
        self.cache = KVCache(KVCacheSpec.of(model), capacity)
        self._model = model
        self._graphs = graphs
        self._token = torch.zeros(capacity.rows, dtype=torch.int64, device=device)  # the newest of each row
        self._position = torch.zeros(capacity.rows, dtype=torch.int64, device=device)  # of that token
        columns = capacity.prompt_columns + capacity.columns
        self._mask = torch.zeros(capacity.rows, columns, dtype=exact, device=device)
        vocabulary = model.config.get_text_config().vocab_size
        size = (capacity.rows, vocabulary)
        self._logits = None if graphs is None else torch.zeros(size, dtype=model.dtype, device=device)

    @contextlib.contextmanager
    def sampling(self, size: CacheSize) -> Iterator[None]:
        """While the model samples for a request of a size: no dropout, no gradients, attention over shared prompts."""
        self.cache.used = size if self._graphs is None else rounded(size)
        self._size = size
        training = self._model.training
        self._model.eval()
        try:
            with shared_attention(self._model), torch.inference_mode():
                yield
        finally:
            self._model.train(training)

    def prefill(self, prompts: Sequence[Prompt], blocks: Sequence[int]) -> Tensor:
        """Put each prompt into its block; the logits [prompts, V] of what comes next. One that recurs is read once."""
        distinct = {id(prompt): prompt for prompt in prompts}
        numbers = {key: number for number, key in enumerate(distinct)}
        owner = [numbers[id(prompt)] for prompt in prompts]
        tokens, real = left_pad(list(distinct.values()), pad=0, device=self._token.device)
        positions = (real.cumsum(dim=-1) - 1).clamp_(min=0)
        out = self._model(
            input_ids=tokens, attention_mask=real, position_ids=positions, use_cache=True, logits_to_keep=1
        )
        self.cache.store(out.past_key_values, owner, blocks)
        logits: Tensor = out.logits[owner, -1]
        return logits

    def begin_rows(self, rows: slice, prompt_lengths: Tensor) -> None:
        """New rollouts in these rows: their mask shows the real tokens of their prompt, and no column of the ring."""
        lengths = prompt_lengths.to(self._mask.device)
        prompt = self.cache.used.prompt_columns
        padding = torch.arange(prompt, device=self._mask.device) < prompt - lengths[:, None]
        self._position[rows] = lengths - 1
        self._mask[rows] = -torch.inf
        self._mask[rows, :prompt] = torch.where(padding, -torch.inf, 0.0).to(self._mask.dtype)

    def set_block_table(self, blocks: IntArray) -> None:
        """Set which block each running row [R] reads."""
        self.cache.set_block_table(blocks, tight=self._graphs is None)

    def move(self, source: Tensor, target: Tensor) -> None:
        """Overwrite rows `target` by rows `source`."""
        source, target = source.to(self._mask.device), target.to(self._mask.device)
        with distinct_places():
            for table in (self._token, self._position, self._mask):
                table[target] = table[source]
        self.cache.move(source, target)

    def append(self, token: Tensor) -> None:
        """Append a token [R] to every running row."""
        self._token[: len(token)] = token
        self._position[: len(token)] += 1

    def decode(self, running: int, written: int) -> Tensor:
        """Logits [running, V] after the newest tokens, whose column is the `written`-th (from 1) of the request."""
        ring = self._size.columns
        column, columns, rows = (written - 1) % ring, min(written, ring), running
        if self._graphs is not None:
            rows, columns = padded(running, self._size.rows), round_columns(columns)
        self._mask[:running, self.cache.used.prompt_columns + column] = 0
        self.cache.begin_step(column, rows=rows, columns=columns)
        logits = self._forward() if self._graphs is None else self._graphs.run(self.cache.used, self._forward)
        return logits[:running]

    def _forward(self) -> Tensor:
        used = self.cache.used
        out = self._model(
            input_ids=self._token[: used.rows, None],
            attention_mask=self._mask[: used.rows, None, None, : used.prompt_columns + used.columns],
            position_ids=self._position[: used.rows, None],
            past_key_values=self.cache,
            use_cache=True,
            shared=self.cache,
        )
        logits: Tensor = out.logits[:, -1]
        if self._logits is None:
            return logits
        # A recorded step may leave nothing behind in the graphs' own memory.
        return self._logits[: used.rows].copy_(logits)


def check_attention(model: PreTrainedModel) -> None:
    """Decode two tokens and compare their logits with those of one plain forward pass. Raises ConfigError where they
    differ, or where a layer does not attend through transformers' attention interface.

    A layer may do more to keys, values and mask than the interface shows (repeat heads in another order, say).
    """
    kinds = set(getattr(model.config.get_text_config(), "layer_types", None) or ()) - {"full_attention"}
    if kinds:
        raise _unfit(f"{', '.join(sorted(kinds))} layers")
    try:
        decoder = Decoder(model, CacheSize(blocks=1, rows_per_block=1, prompt_columns=3, rows=1, columns=2))
        decoded, plain = _two_ways(decoder, model)
    except torch.OutOfMemoryError:
        raise
    except (TypeError, ValueError, RuntimeError, LookupError, AttributeError, AssertionError) as error:
        raise _unfit(f"a forward pass that says {type(error).__name__}: {error}") from error
    if len(decoder.cache.attended) != decoder.cache.spec.layers:
        raise _unfit("layers that do not attend through transformers' attention interface")
    if not plain.isfinite().all():
        return  # broken weights, which sampling reports
    off = float((decoded - plain).abs().max() / plain.std().clamp(min=1e-9))
    if not off <= (HALF_GAP if plain.dtype.itemsize < 4 else GAP):
        raise _unfit(f"layers that attend in a way of their own: decoded logits are off by {off:.2g} of their spread")


def _two_ways(decoder: Decoder, model: PreTrainedModel) -> tuple[Tensor, Tensor]:
    """Logits [V] after a prompt of three tokens and two decoded ones, and from one forward pass over all five."""
    tokens = torch.arange(5) % model.config.get_text_config().vocab_size
    prompt = Prompt(id="", tokens=tokens[:3].numpy(), text="", answer=None, task="")
    with decoder.sampling(decoder.capacity):
        decoder.prefill([prompt], [0])
        decoder.begin_rows(slice(0, 1), torch.tensor([3]))
        decoder.set_block_table(np.zeros(1, dtype=np.int64))
        for written in (1, 2):
            decoder.append(tokens[2 + written, None].to(model.device))
            decoded = decoder.decode(1, written)[0]
        plain: Tensor = model(input_ids=tokens[None].to(model.device), use_cache=False).logits[0, -1]
    return decoded, plain


def _unfit(why: str) -> ConfigError:
    return ConfigError(
        f"rollout.engine: native decodes full attention through transformers' interface only, and this model has "
        f"{why}; use the engine 'hf'"
    )
