"""The policy's own module as a decoder: prompts are read once, then every row gets a token at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from winnow.engines.native.cuda_graphs import Graphs, padded
from winnow.engines.native.kv_cache import KeyValues, Layout, Room
from winnow.engines.native.scheduler import up
from winnow.engines.native.shared_prompt import attention as shared_attention
from winnow.engines.padding import left_pad
from winnow.errors import ConfigError
from winnow.records import IntArray, Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedModel

GAP, HALF_GAP = 1e-2, 0.5  # in standard deviations of the logits; the latter in 16 bits, where experts may change
COLUMNS = 64  # a recorded step reads prompts and ring in pieces of this many columns


class Decoder:
    """Everything that a forward pass reads and writes, in memory that is set aside once for as many rows as `room` has.

    It knows rows, not rollouts. At any time all rows write the same column of a ring. What is computed depends on the
    request alone, never on how much room earlier ones have left: a resumed run must come to the same bits.
    """

    def __init__(self, model: PreTrainedModel, room: Room, graphs: Graphs | None = None) -> None:
        device, exact = model.device, torch.promote_types(model.dtype, torch.float32)
        self.room = room
        self.key_values = KeyValues(Layout.of(model), room)
        self._model = model
        self._graphs = graphs
        self._token = torch.zeros(room.rows, dtype=torch.int64, device=device)  # the newest of each row
        self._position = torch.zeros(room.rows, dtype=torch.int64, device=device)  # of that token
        self._mask = torch.zeros(room.rows, room.prompt_columns + room.columns, dtype=exact, device=device)
        vocabulary = model.config.get_text_config().vocab_size
        self._logits = None if graphs is None else torch.zeros(room.rows, vocabulary, dtype=model.dtype, device=device)

    @contextlib.contextmanager
    def sampling(self, request: Room) -> Iterator[None]:
        """While the model samples for a request: no dropout, no gradients, and attention over shared prompts."""
        self.key_values.used = request if self._graphs is None else rounded(request)
        self._request = request
        training = self._model.training
        self._model.eval()
        try:
            with shared_attention(self._model), torch.inference_mode():
                yield
        finally:
            self._model.train(training)

    def read(self, prompts: Sequence[Prompt], tiles: Sequence[int]) -> Tensor:
        """Put each prompt into its tile; the logits [prompts, V] of what comes next. One that recurs is read once."""
        distinct = {id(prompt): prompt for prompt in prompts}
        places = {key: place for place, key in enumerate(distinct)}
        owner = [places[id(prompt)] for prompt in prompts]
        tokens, real = left_pad(list(distinct.values()), pad=0, device=self._token.device)
        positions = (real.cumsum(dim=-1) - 1).clamp_(min=0)
        read = self._model(
            input_ids=tokens, attention_mask=real, position_ids=positions, use_cache=True, logits_to_keep=1
        )
        self.key_values.store(read.past_key_values, owner, tiles)
        logits: Tensor = read.logits[owner, -1]
        return logits

    def start(self, rows: slice, prompt_lengths: Tensor) -> None:
        """Rows begin: they see the real tokens of their prompt, and nothing of the ring."""
        lengths = prompt_lengths.to(self._mask.device)
        prompt = self.key_values.used.prompt_columns
        padding = torch.arange(prompt, device=self._mask.device) < prompt - lengths[:, None]
        self._position[rows] = lengths - 1
        self._mask[rows] = -torch.inf
        self._mask[rows, :prompt] = torch.where(padding, -torch.inf, 0.0).to(self._mask.dtype)

    def seat(self, tiles: IntArray) -> None:
        """Say which tile each living row [R] reads."""
        self.key_values.seat(tiles, tight=self._graphs is None)

    def move(self, source: Tensor, target: Tensor) -> None:
        """Overwrite rows `target` by rows `source`."""
        source, target = source.to(self._mask.device), target.to(self._mask.device)
        for table in (self._token, self._position, self._mask):
            table[target] = table[source]
        self.key_values.move(source, target)

    def take(self, token: Tensor) -> None:
        """The next token of every living row [R]."""
        self._token[: len(token)] = token
        self._position[: len(token)] += 1

    def advance(self, living: int, time: int) -> Tensor:
        """Logits [living, V] after the newest tokens, which are the `time`-th (from 1) that went into the ring."""
        ring = self._request.columns
        column, columns, rows = (time - 1) % ring, min(time, ring), living
        if self._graphs is not None:
            rows, columns = padded(living, self._request.rows), up(columns, COLUMNS)
        self._mask[:living, self.key_values.used.prompt_columns + column] = 0
        self.key_values.turn(column, rows=rows, columns=columns)
        logits = self._forward() if self._graphs is None else self._graphs.run(self.key_values.used, self._forward)
        return logits[:living]

    def _forward(self) -> Tensor:
        used = self.key_values.used
        out = self._model(
            input_ids=self._token[: used.rows, None],
            attention_mask=self._mask[: used.rows, None, None, : used.prompt_columns + used.columns],
            position_ids=self._position[: used.rows, None],
            past_key_values=self.key_values,
            use_cache=True,
            shared=self.key_values,
        )
        logits: Tensor = out.logits[:, -1]
        if self._logits is None:
            return logits
        # A recorded step may leave nothing behind in the graphs' own memory.
        return self._logits[: used.rows].copy_(logits)


def rounded(request: Room) -> Room:
    """The room that recorded steps take for a request: few sizes, so that few are recorded."""
    return Room(
        tiles=padded(request.tiles, 2 * request.tiles),
        members=padded(request.members, 2 * request.members),
        prompt_columns=up(request.prompt_columns, COLUMNS),
        rows=request.rows,
        columns=up(request.columns, COLUMNS),
    )


def check_attention(model: PreTrainedModel) -> None:
    """Decode two tokens, and see whether every layer attended as it was told to: their logits are those of one plain
    forward pass. Raises ConfigError.

    A layer may do more to keys, values and mask than the interface shows (repeat heads in another order, say).
    """
    kinds = set(getattr(model.config.get_text_config(), "layer_types", None) or ()) - {"full_attention"}
    if kinds:
        raise _unfit(f"{', '.join(sorted(kinds))} layers")
    try:
        decoder = Decoder(model, Room(tiles=1, members=1, prompt_columns=3, rows=1, columns=2))
        decoded, plain = _two_ways(decoder, model)
    except torch.OutOfMemoryError:
        raise
    except (TypeError, ValueError, RuntimeError, LookupError, AttributeError, AssertionError) as error:
        raise _unfit(f"a forward pass that says {type(error).__name__}: {error}") from error
    if len(decoder.key_values.attended) != decoder.key_values.layout.layers:
        raise _unfit("layers that do not attend through transformers' attention interface")
    if not plain.isfinite().all():
        return  # broken weights, of which sampling says more
    off = float((decoded - plain).abs().max() / plain.std().clamp(min=1e-9))
    if not off <= (HALF_GAP if plain.dtype.itemsize < 4 else GAP):
        raise _unfit(f"layers that attend in a way of their own: decoded logits are off by {off:.2g} of their spread")


def _two_ways(decoder: Decoder, model: PreTrainedModel) -> tuple[Tensor, Tensor]:
    """Logits [V] after a prompt of three tokens and two decoded ones, and from one forward pass over all five."""
    tokens = torch.arange(5) % model.config.get_text_config().vocab_size
    prompt = Prompt(id="", tokens=tokens[:3].numpy(), text="", answer=None, task="")
    with decoder.sampling(decoder.room):
        decoder.read([prompt], [0])
        decoder.start(slice(0, 1), torch.tensor([3]))
        decoder.seat(np.zeros(1, dtype=np.int64))
        for time in (1, 2):
            decoder.take(tokens[2 + time, None].to(model.device))
            decoded = decoder.advance(1, time)[0]
        plain: Tensor = model(input_ids=tokens[None].to(model.device), use_cache=False).logits[0, -1]
    return decoded, plain


def _unfit(why: str) -> ConfigError:
    return ConfigError(
        f"rollout.engine: native decodes full attention through transformers' interface only, and this model has "
        f"{why}; use the engine 'hf'"
    )
