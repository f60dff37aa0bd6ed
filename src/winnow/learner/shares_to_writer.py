"""How one rank writes tensors that all ranks hold in shares: it requests them by name, and the others send their
shares.

The writer may read in any order and stop early. The exchange has a process group of its own, so that a save can run
beside training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
import torch.distributed
from torch import Tensor

from winnow import ranks
from winnow.errors import RunFolderError
from winnow.learner.sharding import is_sharded, local_share

T = TypeVar("T")

DONE, FAILED = -1, -2  # sent by the writer in place of a tensor's number


class SharesToWriter:
    """Tensors by name, the same names on every rank. No copy is made at first: a share is read when it is requested."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        self._shared = [name for name, tensor in tensors.items() if is_sharded(tensor)]

    def written(self, write: Callable[[], T]) -> T | None:
        """Run `write`, which may call `read`, on the writer, and return its result. Other ranks send shares until it
        has finished, and return None; where no tensor is shared, they return at once.

        An exception of `write` is raised on the writer, and RunFolderError on the ranks that send shares.
        """
        if not self._shared:
            return write() if ranks.is_writer() else None
        if not ranks.is_writer():
            self._serve()
            return None
        try:
            result = write()
        except BaseException:
            _send_request(FAILED)  # else the other ranks would wait for a request for ever
            raise
        _send_request(DONE)
        return result

    def read(self, name: str) -> Tensor:
        """On the writer: the whole tensor, in host memory where it was shared."""
        tensor = self._tensors[name]
        if not is_sharded(tensor):
            return tensor
        _send_request(self._shared.index(name))
        return self._gathered(tensor)

    def _serve(self) -> None:
        while (number := _receive_request()) >= 0:
            self._gathered(self._tensors[self._shared[number]])
        if number == FAILED:
            raise RunFolderError(
                "rank 0 could not save", remedy="read the message of rank 0 for the cause", code="run_folder.unsaved"
            )

    def _gathered(self, tensor: Tensor) -> Tensor:
        """The whole tensor on the writer. Of R rows each rank has the next ceil(R / ranks); the last ranks have fewer
        or none.
        """
        rows = -(-tensor.shape[0] // ranks.count())
        mine = local_share(tensor).detach().cpu()
        padded = mine.new_zeros((rows, *tensor.shape[1:]))
        padded[: len(mine)] = mine
        parts = [torch.empty_like(padded) for _ in range(ranks.count())] if ranks.is_writer() else None
        with ranks.exchanging("what is saved"):
            torch.distributed.gather(padded, parts, dst=0, group=ranks.saving_group())
        return torch.cat(parts)[: tensor.shape[0]] if parts else mine


def _send_request(number: int) -> None:
    with ranks.exchanging("what is saved"):
        torch.distributed.broadcast(torch.tensor([number]), src=0, group=ranks.saving_group())


def _receive_request() -> int:
    number = torch.zeros(1, dtype=torch.int64)
    with ranks.exchanging("what is saved"):
        torch.distributed.broadcast(number, src=0, group=ranks.saving_group())
    return int(number)
