"""Keys and values while decoding: of each prompt once, and of what each rollout has sampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor
from transformers import Cache

from winnow.records import IntArray

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class Layout:
    """What one token leaves behind in every layer."""

    layers: int
    heads: int  # of keys and values; several query heads may share one
    width: int  # of a head
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, model: PreTrainedModel, dtype: torch.dtype | None = None) -> Self:
        """Of a model, in its weights' precision or in `dtype`."""
        config = model.config.get_text_config()
        heads = config.num_attention_heads
        return cls(
            layers=config.num_hidden_layers,
            heads=getattr(config, "num_key_value_heads", None) or heads,
            width=getattr(config, "head_dim", None) or config.hidden_size // heads,
            dtype=dtype or model.dtype,
            device=model.device,
        )

    def table(self, rows: int, columns: int) -> Tensor:
        """[layers, 2, rows, heads, columns, width]: keys and values. Zeros, as what nobody has written is multiplied by
        a weight of 0, and 0 x NaN is NaN.
        """
        shape = (self.layers, 2, rows, self.heads, columns, self.width)
        return torch.zeros(shape, dtype=self.dtype, device=self.device)

    @property
    def bytes_per_token(self) -> int:
        return 2 * self.layers * self.heads * self.width * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Room:
    """How much a memory has room for, or how much of it is used."""

    tiles: int
    members: int  # rollouts that share a tile, at most
    prompt_columns: int  # P, tokens of a prompt
    rows: int  # R, rollouts
    columns: int  # C, tokens of a rollout

    def covers(self, other: Room) -> bool:
        return all(getattr(self, f.name) >= getattr(other, f.name) for f in fields(self))

    def joined(self, other: Room) -> Room:
        """The smallest that covers both."""
        return Room(**{f.name: max(getattr(self, f.name), getattr(other, f.name)) for f in fields(self)})

    def tokens(self) -> int:
        """That fit in, all rows together."""
        return self.tiles * self.prompt_columns + self.rows * self.columns


class KeyValues(Cache):  # type: ignore[misc]  # transformers is untyped here
    """A transformers cache in memory that is set aside once: tiles x P prompt tokens, and rows x C tokens of their own.

    A tile is a prompt with some of its rollouts, which all read the one copy of its keys and values. The rollouts' own
    tokens lie in a ring: at every step all rows write the same column, so one that began later simply has its
    tokens further on. What a row may not see (padding, columns of who was there before) the mask says.
    """

    def __init__(self, layout: Layout, room: Room) -> None:
        super().__init__(layers=[])
        self.layout, self.attended = layout, set[int]()  # the latter: layers that have asked
        self._prompts = layout.table(room.tiles, room.prompt_columns)
        self._own = layout.table(room.rows, room.columns)
        self._asking = self._places(room.tiles * room.members)
        self._hearing = self._places(room.rows)
        self._column, self._column_on_device = 0, torch.zeros(1, dtype=torch.int64, device=layout.device)
        self.used = room  # what the next forward pass looks at

    @property
    def bytes(self) -> int:
        """Memory of all keys and values."""
        return int(self._prompts.nbytes + self._own.nbytes)

    def store(self, read: Cache, owner: Sequence[int], tiles: Sequence[int]) -> None:
        """Keep what was read of left-padded prompts: of the `owner`-th for each tile in `tiles`."""
        for layer, source in enumerate(read.layers):
            for table, states in zip(self._prompts[layer], (source.keys, source.values), strict=True):
                table[list(tiles), :, self.used.prompt_columns - states.shape[2] : self.used.prompt_columns] = states[
                    list(owner)
                ]

    def seat(self, tile: IntArray, *, tight: bool = True) -> None:
        """Say which tile each living row [R] belongs to, after rows have come or gone.

        `tight` looks at no more seats of a tile than the fullest has; without it the shape stays as it is.
        """
        row, order, counts = np.arange(len(tile)), np.argsort(tile, kind="stable"), np.bincount(tile)
        member = np.empty_like(tile)
        member[order] = row - np.repeat(np.cumsum(counts) - counts, counts)
        if tight:
            self.used = replace(self.used, members=int(counts.max(initial=0)))
        heads = np.arange(self.layout.heads)
        of_row = row[:, None] * len(heads) + heads
        of_seat = (tile[:, None] * len(heads) + heads) * self.used.members + member[:, None]
        asking = np.zeros(self.used.tiles * len(heads) * self.used.members, dtype=np.int64)
        asking[of_seat] = of_row  # an empty seat asks what row 0 asks, and nobody listens
        self._asking[: len(asking)] = torch.from_numpy(asking)
        self._hearing.zero_()[: of_seat.size] = torch.from_numpy(of_seat.ravel())

    def turn(self, column: int, *, rows: int, columns: int) -> None:
        """The next forward pass writes `column` of `rows` rows, and reads `columns` columns."""
        self._column = column
        self._column_on_device.fill_(column)
        self.used = replace(self.used, rows=rows, columns=columns)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write one column of a layer [R, heads, 1, D]. What is returned is not used: `attend` reads the table."""
        for table, states in zip(self._own[layer_idx, :, : self.used.rows], (key_states, value_states), strict=True):
            if states.is_cuda:  # a recorded step finds the column in a tensor; a plain one writes three times as fast
                table.index_copy_(2, self._column_on_device, states)
            else:
                table[:, :, self._column] = states[:, :, 0]
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Asked by models that are not told positions; ours are."""
        return 0

    def move(self, source: Tensor, target: Tensor) -> None:
        """Overwrite rows `target` by rows `source`."""
        columns = self.used.columns
        self._own[:, :, target, :, :columns] = self._own[:, :, source, :, :columns]

    def attend(self, layer: int, queries: Tensor, mask: Tensor) -> Tensor:
        """What queries [R, Q, D], scaled, find in their prompt and in their own tokens; `mask` [R, P + C] is added.

        The queries of a tile's rows stand side by side, so that a prompt is read once for all of them.
        """
        used = self.used
        self.attended.add(layer)
        prompt_keys, prompt_values = self._prompts[layer, :, : used.tiles, :, : used.prompt_columns]
        own_keys, own_values = self._own[layer, :, : used.rows, :, : used.columns]
        asked = queries.view(used.rows, own_keys.shape[1], -1, queries.shape[2])  # [R, heads, queries per head, D]
        scores = torch.cat([self._by_tile(asked, prompt_keys.mT), asked @ own_keys.mT], dim=-1)
        exact = torch.promote_types(scores.dtype, torch.float32)
        weights = scores.to(exact).add_(mask[:, None, None]).softmax(dim=-1).to(scores.dtype)
        on_prompt, on_own = weights[..., : used.prompt_columns], weights[..., used.prompt_columns :]
        found: Tensor = self._by_tile(on_prompt, prompt_values) + on_own @ own_values
        return found.view(queries.shape)

    def _by_tile(self, of_rows: Tensor, of_tiles: Tensor) -> Tensor:
        """Per row, its [heads, q, X] times its tile's [heads, X, Y]."""
        tiles, heads, members = self.used.tiles, self.layout.heads, self.used.members
        rows, _, asked, _ = of_rows.shape
        seated = of_rows.flatten(0, 1).index_select(0, self._asking[: tiles * heads * members])
        product: Tensor = seated.view(tiles, heads, members * asked, -1) @ of_tiles
        heard = product.view(len(seated), -1).index_select(0, self._hearing[: rows * heads])
        return heard.view(rows, heads, asked, -1)

    def _places(self, seats: int) -> Tensor:
        return torch.zeros(seats * self.layout.heads, dtype=torch.int64, device=self.layout.device)
