"""`winnow check`: a configuration resolved, its first prompt, what it costs, whether it fits, and what to change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from winnow.commands.cost import describe, first_prompt_lines
from winnow.commands.dry_run import dry_run
from winnow.commands.run_settings import toml
from winnow.config_file import load
from winnow.errors import ConfigError, DataError
from winnow.memory.sizes import in_bytes
from winnow.report.text import safe, wrapped
from winnow.training.advice import advice, faster_decoding, unasked
from winnow.training.budget import budget
from winnow.training.combinations import check_ranks
from winnow.training.members import Members
from winnow.training.resolve import check_installed, resolve_members


def checked(
    config: Path, sets: Sequence[str], memory: str | None, ranks: int = 1, *, unset: Sequence[str] = ()
) -> Iterator[str]:
    """Line by line. `memory` ("80GiB") is the size of the policy's device, where it is not the one of this machine;
    `ranks` is how many processes are to compute the run, all on one machine.

    Raises WinnowError where a run would, and, after all that can be said, where a package is not here that the run
    needs, and where the run does not fit. With `memory`, which is of another machine, such a package is a note.
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
    lacking = _lacking(members)
    elsewhere = () if lacking is None or memory is None else (f"on this machine: {lacking}",)
    yield from (wrapped(f"note: {note}") for note in (*tried.notes, *elsewhere))
    if lacking is not None and memory is None:
        raise lacking
    if plan is not None:
        plan.check(tried.room)
    elif memory is not None:
        raise DataError(
            f"--memory {memory}: there is no plan to compare it with, as the model is not on this machine",
            remedy="download the model (winnow fetch)",
            key="model.path",
            code="data.missing",
        )


def _lacking(members: Members) -> ConfigError | None:
    """What is not installed here, or in another version."""
    try:
        check_installed(members)
    except ConfigError as error:
        return error
    return None
