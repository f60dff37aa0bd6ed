"""The shape of a decoding step: exact, or rounded up to a few sizes where steps are recorded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from winnow.engines.native.cuda_graphs import pad_rows
from winnow.records import IntArray

if TYPE_CHECKING:
    from winnow.engines.native.blocks import BlockPool, BlockTable
    from winnow.engines.native.scheduler import Scheduler


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
    rows = pad_rows(own.sequences, min(scheduler.rows, most) if in_order else scheduler.rows)
    return Shape(
        rows=rows,
        blocks=rows if in_order else min(_round_up(own.used), most),
        longest=_next_power_of_two(own.longest()),
        columns=own.width,
        in_order=in_order,
        prompts=max(_round_up(prompts.sequences), before.prompts if before else 0),
        prompt_blocks=max(min(_round_up(prompts.used), most_of_prompts), before.prompt_blocks if before else 0),
        prompt_longest=max(_next_power_of_two(prompts.longest()), before.prompt_longest if before else 0),
        readers=_round_up(scheduler.readers),
        widths=(own.width, prompts.width),
    )


def _in_order(own: BlockTable) -> bool:
    rows = own.sequences
    return own.longest() == 1 and own.used == rows and bool((own.table[:rows, 0] == np.arange(rows)).all())


def _round_up(number: int) -> int:
    """Round up by at most a quarter: there are four sizes between a power of two and the next."""
    step = max(1, (1 << (number - 1).bit_length()) >> 3)
    return -(-number // step) * step


def _next_power_of_two(number: int) -> int:
    """The smallest power of two that is at least `number`."""
    return 1 << (number - 1).bit_length()
