"""How much a forward pass reads: exactly what is there, or rounded up to few sizes where steps are recorded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from winnow.engines.native.cuda_graphs import padded
from winnow.records import IntArray

if TYPE_CHECKING:
    from winnow.engines.native.blocks import BlockPool, BlockTable
    from winnow.engines.native.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class Shape:
    """How much the next forward pass reads. Recorded steps are recorded once per shape."""

    rows: int  # R, running rollouts
    blocks: int  # N, own blocks of all of them
    longest: int  # K, own blocks of the one that holds most
    columns: int  # of an own block that are read
    in_order: bool  # row r holds block r, and no other
    prompts: int  # S, that are in the cache
    prompt_blocks: int  # M, of all of them
    prompt_longest: int  # of the longest prompt
    readers: int  # rollouts that share a prompt, at most
    widths: tuple[int, int]  # tokens of an own block, and of a prompt's

    @property
    def single(self) -> bool:
        """Whether every rollout and every prompt holds one block."""
        return self.longest == 1 and self.prompt_longest == 1


def exact(pool: BlockPool, prompt_of_row: IntArray, columns: int) -> Shape:
    """What is there; `columns` is the most that a row has written."""
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


def rounded(scheduler: Scheduler, before: Shape | None) -> Shape:
    """As recorded steps want it: few sizes, none of more blocks than the pool has. What prompts take only grows within
    a request, from the shape `before`.
    """
    pool = scheduler.pool
    own, prompts, in_order = pool.own, pool.prompts, _in_order(pool.own)
    most, most_of_prompts = pool.tokens // own.width, pool.tokens // prompts.width
    rows = padded(own.sequences, min(scheduler.rows, most) if in_order else scheduler.rows)
    return Shape(
        rows=rows,
        blocks=rows if in_order else min(_sized(own.used), most),
        longest=_doubled(own.longest()),
        columns=own.width,
        in_order=in_order,
        prompts=max(_sized(prompts.sequences), before.prompts if before else 0),
        prompt_blocks=max(min(_sized(prompts.used), most_of_prompts), before.prompt_blocks if before else 0),
        prompt_longest=max(_doubled(prompts.longest()), before.prompt_longest if before else 0),
        readers=_sized(scheduler.readers),
        widths=(own.width, prompts.width),
    )


def _in_order(own: BlockTable) -> bool:
    rows = own.sequences
    return own.longest() == 1 and own.used == rows and bool((own.table[:rows, 0] == np.arange(rows)).all())


def _sized(number: int) -> int:
    """Rounded up by at most a quarter: four sizes between a power of two and the next."""
    step = max(1, (1 << (number - 1).bit_length()) >> 3)
    return -(-number // step) * step


def _doubled(number: int) -> int:
    """The next power of two."""
    return 1 << (number - 1).bit_length()
