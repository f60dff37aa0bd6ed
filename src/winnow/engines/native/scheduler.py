"""Which rollouts are sampled together: prompts in tiles, and the line in which rollouts wait for a row."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from winnow.engines.native.kv_cache import Room
from winnow.engines.requests import Slot
from winnow.errors import EngineError
from winnow.records import Prompt

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True)
class Tile:
    """A prompt and some of its rollouts, which read one copy of its keys and values."""

    prompt: Prompt
    unfinished: int  # rollouts that still need the prompt
    place: int = -1  # in the memory, from its first rollout's coming to its last one's going
    logits: Tensor | None = None  # [V] after the prompt


def tiles(slots: Sequence[Slot]) -> list[tuple[Tile, Slot]]:
    """Every rollout with its tile, prompts of like length together (least padding).

    A tile holds no more rollouts than a prompt gets on average: one prompt with many does not make every other's
    tile as wide. With equal counts there is one tile per prompt.
    """
    by_length = sorted(slots, key=lambda slot: (len(slot.prompt.tokens), slot.place))
    groups = [list(group) for _, group in itertools.groupby(by_length, key=lambda slot: slot.place)]
    members = -(-len(slots) // max(1, len(groups)))
    seated = []
    for chunk in (group[i : i + members] for group in groups for i in range(0, len(group), members)):
        tile = Tile(chunk[0].prompt, unfinished=len(chunk))
        seated += [(tile, slot) for slot in chunk]
    return seated


def exactly(room: Room) -> Room:
    """What is set aside where no more is than is needed."""
    return room


class Line:
    """Rollouts waiting for a row, and the places in memory that their tiles take."""

    def __init__(
        self,
        slots: Sequence[Slot],
        *,
        rows: int,
        columns: int,
        tokens: int | None = None,
        held: Callable[[Room], Room] = exactly,
    ) -> None:
        """At most `rows` rollouts at once, of `columns` tokens each, in memory for `tokens` tokens; where more is set
        aside for a room than it needs, `held` says how much.

        Raises EngineError where that memory does not hold a single rollout.
        """
        self._waiting = deque(tiles(slots))
        opened = {id(tile): tile for tile, _ in self._waiting}.values()
        prompt = max((len(tile.prompt.tokens) for tile in opened), default=0)
        members = max((tile.unfinished for tile in opened), default=0)

        def room(living: int) -> Room:
            tiles = min(living, len(opened))  # an open tile has a row, so there are never more of them
            return Room(tiles=tiles, members=members, prompt_columns=prompt, rows=living, columns=columns)

        self.room = room(min(rows, len(self._waiting)))
        while tokens is not None and held(self.room).tokens() > tokens:
            if self.room.rows == 1:
                raise _too_little(tokens, prompt + columns)
            self.room = room(self.room.rows - 1)
        self._free = list(range(self.room.tiles))

    def admit(self, living: int) -> list[tuple[Tile, Slot]]:
        """The rollouts that come in now: none until an eighth of the rows is free, as reading prompts costs a step."""
        free = self.room.rows - living
        if not self._waiting or (free < len(self._waiting) and 8 * free < self.room.rows):
            return []
        return [self._waiting.popleft() for _ in range(min(free, len(self._waiting)))]

    def open(self, admitted: Sequence[tuple[Tile, Slot]]) -> list[Tile]:
        """The tiles among them that have no place yet, with a place each."""
        fresh = list({id(tile): tile for tile, _ in admitted if tile.place < 0}.values())
        for tile in fresh:
            tile.place = self._free.pop()
        return fresh

    def leave(self, tile: Tile) -> None:
        """A rollout is finished; the place of a tile's last one is free again."""
        tile.unfinished -= 1
        if tile.unfinished == 0:
            self._free.append(tile.place)
            tile.place = -1


def up(number: int, multiple: int) -> int:
    """Rounded up."""
    return -(-number // multiple) * multiple


def _too_little(tokens: int, wanted: int) -> EngineError:
    return EngineError(
        f"rollout.engine.key_value_mb holds {tokens} tokens, and one rollout with its prompt takes up to {wanted}; "
        f"raise it, or lower rollout.max_new_tokens"
    )
