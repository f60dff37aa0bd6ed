"""Decoding steps as CUDA graphs, recorded once per shape and replayed without Python between the kernels."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from winnow.errors import EngineError

MOST_SHAPES = 128  # recorded graphs that are kept; the oldest is dropped first


class CudaGraphs:
    """Recorded steps by shape. A step must be repeatable, and use tensors at fixed addresses."""

    def __init__(self) -> None:
        self._recorded: dict[Hashable, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def run(self, shape: Hashable, step: Callable[[], Tensor]) -> Tensor:
        """Replay `step` as recorded at the first run of this shape; the result is the same tensor at every run."""
        if shape not in self._recorded:
            if len(self._recorded) == MOST_SHAPES:
                self._recorded.pop(next(iter(self._recorded)))
            self._recorded[shape] = self._record(step)
        graph, output = self._recorded[shape]
        graph.replay()
        return output

    def _record(self, step: Callable[[], Tensor]) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            step()  # libraries allocate workspaces at the first call, which is not allowed during recording
        torch.cuda.current_stream().wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        try:
            # thread_local: another thread may read the weights to save them, and its calls must not abort the recording
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                output = step()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise EngineError(
                f"a decoding step of this model cannot be recorded as a CUDA graph ({error})",
                remedy='set rollout.engine = {use = "native", graphs = false}',
                key="rollout.engine.graphs",
                code="engine.failed",
            ) from error
        return graph, output


def pad_rows(rows: int, most: int) -> int:
    """Round rows up by at most half, and to at most `most`: few shapes are recorded, and few rows are padding."""
    step = max(1, (1 << (rows - 1).bit_length()) >> 2)
    return min(most, -(-rows // step) * step)
