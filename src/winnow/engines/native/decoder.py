"""Prefill and decoding on a transformers model: a prompt is read once for all its rows, which decode token by token."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from winnow.engines.native.cache_size import KVCacheSpec
from winnow.engines.native.cuda_graphs import CudaGraphs
from winnow.engines.native.kv_cache import KVCache
from winnow.engines.native.layout import own_arrays, prompt_arrays
from winnow.engines.native.reading import Text, read
from winnow.engines.native.scheduler import Scheduler
from winnow.engines.native.shapes import Shape, exact_shape, rounded_shape
from winnow.engines.native.shared_prompt import attention as shared_attention
from winnow.engines.native.uploads import Uploads
from winnow.records import IntArray

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Decoder:
    """Forward passes over the newest token of every row, with a cache whose memory is reserved once.

    It works on rows, independent of their rollouts. The computation depends only on the request, never on the capacity
    that earlier requests reserved: a resumed run must compute the same bits.
    """

    def __init__(self, model: PreTrainedModel, tokens: int, rows: int, graphs: CudaGraphs | None = None) -> None:
        """`tokens` is the size of the cache, `rows` the most rows of a step; with `graphs`, steps are recorded."""
        self.rows = rows
        self.cache = KVCache(KVCacheSpec.of(model), tokens, recorded=graphs is not None)
        self._model, self._graphs = model, graphs
        self._own, self._prompts, self._newest = (Uploads(model.device) for _ in range(3))
        size = (rows, model.config.get_text_config().vocab_size)
        self._logits = None if graphs is None else torch.zeros(size, dtype=model.dtype, device=model.device)

    @contextlib.contextmanager
    def sampling(self, scheduler: Scheduler) -> Iterator[None]:
        """While the model samples for a request: no dropout, no gradients, attention over shared prompts."""
        self._scheduler, self._pool = scheduler, scheduler.pool
        self.cache.begin(scheduler.pool)
        self._shape: Shape | None = None
        self._own_key: tuple[int, ...] = ()  # the state for which the index arrays were made
        self._prompts_key: tuple[int, ...] = ()
        self._placements = 0  # calls of `set_prompts`
        training = self._model.training
        self._model.eval()
        try:
            with shared_attention(self._model), torch.inference_mode():
                yield
        finally:
            self._model.train(training)

    def read(self, texts: Sequence[Text]) -> Tensor:
        """See `reading.read`."""
        return read(self._model, self.cache, texts)

    def set_prompts(self, numbers: IntArray) -> None:
        """Set the prompt of each row [R]."""
        self._prompt_of_row = numbers
        self._placements += 1

    def decode(self, tokens: IntArray, positions: IntArray, written: IntArray) -> Tensor:
        """Logits [R, V] after the newest tokens [R] at these positions of the text; `written` [R] is the number of
        tokens that each rollout has before its newest one.
        """
        running = len(tokens)
        self._arrange(int(written.max()) + 1)
        assert self._shape is not None
        self._step = self._newest.put(self._newest_arrays(tokens, positions, written, self._shape.rows))
        self.cache.begin_step(self._shape, {**self._own_index, **self._prompt_index, **self._step})
        if self._graphs is None:
            return self._forward()
        addresses = (self._own.address, self._prompts.address, self._newest.address)
        return self._graphs.run((self._shape, *addresses), self._forward)[:running]

    def _arrange(self, columns: int) -> None:
        """Rebuild the index arrays of rollouts and of prompts where blocks or rows have changed."""
        pool, prompts = self._pool, self._prompt_of_row
        recorded = self._graphs is not None
        shape = rounded_shape(self._scheduler, before=self._shape) if recorded else exact_shape(pool, prompts, columns)
        of_own = (shape.rows, shape.blocks, shape.longest, pool.own.changes)
        if of_own != self._own_key:
            self._own_index, self._own_key = self._own.put(own_arrays(pool, shape)), of_own
        sizes = (shape.rows, shape.prompts, shape.prompt_blocks, shape.prompt_longest, shape.readers)
        of_prompts = (*sizes, pool.prompts.changes, self._placements)
        if of_prompts != self._prompts_key:
            arrays = prompt_arrays(pool, shape, prompts, self.cache.spec.heads)
            self._prompt_index, self._prompts_key = self._prompts.put(arrays), of_prompts
        self._shape = shape

    def _newest_arrays(
        self, tokens: IntArray, positions: IntArray, written: IntArray, rows: int
    ) -> Mapping[str, IntArray]:
        """[rows] tokens, their positions, and the block and column for their keys and values; padding rows write behind
        the cache.
        """
        own, running = self._pool.own, len(tokens)
        arrays = {name: np.zeros(rows, dtype=np.int64) for name in ("token", "position", "block", "column")}
        arrays["block"][:] = -(-self.cache.tokens // own.width)
        arrays["token"][:running], arrays["position"][:running] = tokens, positions
        arrays["block"][:running] = own.table[np.arange(running), written // own.width]
        arrays["column"][:running] = written % own.width
        return arrays

    def _forward(self) -> Tensor:
        self.cache.begin_pass()
        rows = self.cache.shape.rows
        out = self._model(
            input_ids=self._step["token"][:, None],
            attention_mask=self.cache.no_mask,  # `attend` has a mask; without this one the model would make another
            position_ids=self._step["position"][:, None],
            past_key_values=self.cache,
            use_cache=True,
            shared=self.cache,
        )
        logits: Tensor = out.logits[:, -1]
        if self._logits is None:
            return logits
        # The result must not be in the graphs' memory pool, which other recorded steps reuse.
        return self._logits[:rows].copy_(logits)
