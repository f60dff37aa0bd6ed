"""Decoding steps as CUDA graphs, recorded once per shape and replayed without Python between the kernels.

A step's shape is exact, or rounded up to a few sizes where steps are recorded. Index arrays are at addresses that
depend only on their sizes, as recorded steps need.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from winnow.errors import EngineError
from winnow.records import IntArray

if TYPE_CHECKING:
    from winnow.engines.native.scheduler import BlockPool, BlockTable, Scheduler


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


def round_up(number: int, parts: int) -> int:
    """Round up to a multiple of the next power of two / `parts`: few shapes are recorded, and little is padding."""
    step = max(1, (1 << (number - 1).bit_length()) // parts)
    return -(-number // step) * step


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes that the next forward pass reads. Steps are recorded once per shape."""

    rows: int  # R, running rollouts
    blocks: int  # N, blocks of all running rollouts, without their prompts
    longest: int  # K, most blocks of one rollout
    columns: int  # columns of a rollout's block that are read
    in_order: bool  # row r has block r, and no other
    prompts: int  # S, prompts in the cache
    prompt_blocks: int  # M, blocks of all prompts
    prompt_longest: int  # most blocks of one prompt
    readers: int  # most rollouts that share a prompt
    widths: tuple[int, int]  # tokens of a rollout's block, and of a prompt's block

    @property
    def single(self) -> bool:
        """Whether every rollout and every prompt has one block."""
        return self.longest == 1 and self.prompt_longest == 1


def exact_shape(pool: BlockPool, prompt_of_row: IntArray, columns: int) -> Shape:
    """The sizes in use; `columns` is the most columns that a row has written."""
    own, prompts = pool.own, pool.prompts
    longest = own.longest()
    return Shape(
        rows=own.sequences,
        blocks=own.used,
        longest=longest,
        columns=columns if longest == 1 else own.width,
        in_order=_in_order(own),
        prompts=prompts.sequences,
        prompt_blocks=prompts.used,
        prompt_longest=prompts.longest(),
        readers=int(np.bincount(prompt_of_row).max(initial=0)),
        widths=(own.width, prompts.width),
    )


def rounded_shape(scheduler: Scheduler, before: Shape | None) -> Shape:
    """Sizes rounded up to a few values for recorded steps, never to more blocks than the pool has. The sizes of prompts
    only grow within a request, from the shape `before`.
    """
    pool = scheduler.pool
    own, prompts, in_order = pool.own, pool.prompts, _in_order(pool.own)
    most, most_of_prompts = pool.tokens // own.width, pool.tokens // prompts.width
    rows = min(round_up(own.sequences, 4), scheduler.rows, most if in_order else scheduler.rows)
    return Shape(
        rows=rows,
        blocks=rows if in_order else min(round_up(own.used, 8), most),
        longest=round_up(own.longest(), 1),
        columns=own.width,
        in_order=in_order,
        prompts=max(round_up(prompts.sequences, 8), before.prompts if before else 0),
        prompt_blocks=max(min(round_up(prompts.used, 8), most_of_prompts), before.prompt_blocks if before else 0),
        prompt_longest=max(round_up(prompts.longest(), 1), before.prompt_longest if before else 0),
        readers=round_up(scheduler.readers, 8),
        widths=(own.width, prompts.width),
    )


def _in_order(own: BlockTable) -> bool:
    rows = own.sequences
    return own.longest() == 1 and own.used == rows and bool((own.table[:rows, 0] == np.arange(rows)).all())


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
        if not arrays:
            return {}
        flat = torch.from_numpy(np.concatenate([array.ravel() for array in arrays.values()]))
        if len(flat) > len(self._memory):
            self._memory = torch.zeros(2 * len(flat), dtype=torch.int64, device=self._memory.device)
        self._memory[: len(flat)].copy_(flat)
        pieces = torch.split(self._memory[: len(flat)], [array.size for array in arrays.values()])
        return {name: piece.view(array.shape) for (name, array), piece in zip(arrays.items(), pieces, strict=True)}
