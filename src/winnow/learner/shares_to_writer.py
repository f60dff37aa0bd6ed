"""How one rank writes what all ranks hold in shares: it asks for tensors by name, and the others answer until it ends.

The writer reads in what order it likes, and may stop in the middle. All of it is exchanged in a process group of its
own, so a save goes on beside training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
import torch.distributed
from torch import Tensor

from winnow import ranks
from winnow.errors import RunFolderError
from winnow.learner.sharding import is_sharded, own_share

T = TypeVar("T")

DONE, FAILED = -1, -2  # what the writer says instead of the number of a tensor


class SharesToWriter:
    """Tensors by name, the same names on every rank; the shares are read as they are now."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        self._shared = [name for name, tensor in tensors.items() if is_sharded(tensor)]

    def written(self, write: Callable[[], T]) -> T | None:
        """On the writer what `write` returns, which may call `read`; on the others None, once that has ended, or, where
        nothing is shared, at once.

        Raises on the writer what `write` raises, and on the others RunFolderError where it raised.
        """
        if not self._shared:
            return write() if ranks.is_writer() else None
        if not ranks.is_writer():
            self._serve()
            return None
        try:
            done = write()
        except BaseException:
            _say(FAILED)
            raise
        _say(DONE)
        return done

    def read(self, name: str) -> Tensor:
        """On the writer: a tensor, whole, and on the host where it was shared."""
        tensor = self._tensors[name]
        if not is_sharded(tensor):
            return tensor
        _say(self._shared.index(name))
        return self._gathered(tensor)

    def _serve(self) -> None:
        while (number := _said()) >= 0:
            self._gathered(self._tensors[self._shared[number]])
        if number == FAILED:
            raise RunFolderError(
                "rank 0 could not save", remedy="read the message of rank 0 for the cause", code="run_folder.unsaved"
            )

    def _gathered(self, tensor: Tensor) -> Tensor:
        """Of [R, ...] each rank has the next ceil(R / ranks) rows, the last ones fewer or none."""
        rows = -(-tensor.shape[0] // ranks.count())
        mine = own_share(tensor).detach().cpu()
        padded = mine.new_zeros((rows, *tensor.shape[1:]))
        padded[: len(mine)] = mine
        parts = [torch.empty_like(padded) for _ in range(ranks.count())] if ranks.is_writer() else None
        with ranks.exchanging("what is saved"):
            torch.distributed.gather(padded, parts, dst=0, group=ranks.saving_group())
        return torch.cat(parts)[: tensor.shape[0]] if parts else mine


def _say(number: int) -> None:
    with ranks.exchanging("what is saved"):
        torch.distributed.broadcast(torch.tensor([number]), src=0, group=ranks.saving_group())


def _said() -> int:
    number = torch.zeros(1, dtype=torch.int64)
    with ranks.exchanging("what is saved"):
        torch.distributed.broadcast(number, src=0, group=ranks.saving_group())
    return int(number)
