"""`winnow check`: a configuration resolved, its first prompt, what it costs, whether it fits, and what to change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from winnow.commands.cost import describe, first_prompt_lines
from winnow.commands.dry_run import dry_run
from winnow.commands.run_settings import toml
from winnow.config_file import load
from winnow.errors import DataError
from winnow.memory.sizes import in_bytes
from winnow.report.text import safe, wrapped
from winnow.training.advice import advice, faster_decoding, unasked
from winnow.training.budget import budget
from winnow.training.combinations import check_ranks
from winnow.training.resolve import resolve_members


def checked(
    config: Path, sets: Sequence[str], memory: str | None, ranks: int = 1, *, unset: Sequence[str] = ()
) -> Iterator[str]:
    """Line by line. `memory` ("80GiB") is the size of the policy's device, where it is not the one of this machine;
    `ranks` is how many processes are to compute the run, all on one machine.

    Raises WinnowError where a run would, and, after all that can be said, where the run does not fit.
    """
    members = resolve_members(load(config, sets, unset), base=config.parent)
    check_ranks(members.config, ranks)
    settings, counts = members.config, budget(members)
    tried = dry_run(members, memory=None if memory is None else in_bytes(memory), ranks=ranks)
    first, plan = tried.first, tried.plan
    yield from (toml(settings), "")
    if first is not None:
        yield from map(safe, first_prompt_lines(first))
    yield from describe(settings, counts)
    if plan is not None:
        yield from map(safe, plan.lines(tried.room))
    planned = faster_decoding(members, plan) if plan is not None else ()
    unfit = advice(members, counts, ranks)
    for sentence in (*(unasked(members, first) if first else ()), *unfit, *planned):
        yield wrapped(f"! {sentence}")
    yield from (wrapped(f"note: {note}") for note in tried.notes)
    if plan is not None:
        plan.check(tried.room)
    elif memory is not None:
        raise DataError(f"--memory {memory}: there is no plan to compare it with; bring the model here (winnow fetch)")
