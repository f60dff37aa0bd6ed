"""Index arrays on the device, at addresses that depend only on their sizes, as recorded steps need."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from winnow.records import IntArray


class Uploads:
    """Device memory into which arrays are copied side by side; on a CPU they are not copied."""

    def __init__(self, device: torch.device) -> None:
        self._memory = torch.zeros(0, dtype=torch.int64, device=device)

    @property
    def address(self) -> int:
        """The address of the memory, which changes when it grows."""
        return self._memory.data_ptr()

    def put(self, arrays: Mapping[str, IntArray]) -> dict[str, Tensor]:
        """The arrays as tensors, which are valid until the next call."""
        if not self._memory.is_cuda:
            return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
        flat = torch.from_numpy(np.concatenate([array.ravel() for array in arrays.values()]))
        if len(flat) > len(self._memory):
            self._memory = torch.zeros(2 * len(flat), dtype=torch.int64, device=self._memory.device)
        self._memory[: len(flat)].copy_(flat)
        pieces = torch.split(self._memory[: len(flat)], [array.size for array in arrays.values()])
        return {name: piece.view(array.shape) for (name, array), piece in zip(arrays.items(), pieces, strict=True)}
