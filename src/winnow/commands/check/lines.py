"""`winnow check`: a resolved configuration, its first prompt, its costs, the memory plan, and advice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from winnow.commands.check.cost import describe, first_prompt_lines
from winnow.commands.check.dry_run import dry_run
from winnow.config_file import load
from winnow.errors import ConfigError, DataError
from winnow.evaluation.settings import format_toml
from winnow.memory.sizes import parse_bytes
from winnow.training.advice import advice, faster_decoding, missing_answer_forms
from winnow.training.budget import budget
from winnow.training.combinations import check_ranks
from winnow.training.members import Members
from winnow.training.resolve import check_installed, resolve_members
from winnow.view.text import sanitize, wrap


def check_lines(
    config: Path, sets: Sequence[str], memory: str | None, ranks: int = 1, *, unset: Sequence[str] = ()
) -> Iterator[str]:
    """The report, line by line. `memory` ("80GiB") is that of the policy's device on another machine than this one;
    `ranks` is the number of processes of the run, all on one machine.

    Raises WinnowError where a run would. Last, it raises where a package is missing and where the run does not fit.
    With `memory`, a missing package is only a note, as the run is for another machine.
    """
    members = resolve_members(load(config, sets, unset), base=config.parent)
    check_ranks(members.config, ranks)
    settings, counts = members.config, budget(members)
    result = dry_run(members, memory=None if memory is None else parse_bytes(memory), ranks=ranks)
    first, plan = result.first, result.plan
    yield from (format_toml(settings), "")
    if first is not None:
        yield from map(sanitize, first_prompt_lines(first))
    yield from describe(settings, counts)
    if plan is not None:
        yield from map(sanitize, plan.lines(result.room))
    planned = faster_decoding(members, plan) if plan is not None else ()
    unfit = advice(members, counts, ranks)
    for sentence in (*(missing_answer_forms(members, first) if first else ()), *unfit, *planned):
        yield wrap(f"! {sentence}")
    lacking = _lacking(members)
    elsewhere = () if lacking is None or memory is None else (f"on this machine: {lacking}",)
    yield from (wrap(f"note: {note}") for note in (*result.notes, *elsewhere))
    if lacking is not None and memory is None:
        raise lacking
    if plan is not None:
        plan.check(result.room)
    elif memory is not None:
        raise DataError(
            f"--memory {memory}: there is no plan to compare it with, as the model is not on this machine",
            remedy="download the model (winnow fetch)",
            key="model.path",
            code="data.missing",
        )


def _lacking(members: Members) -> ConfigError | None:
    """The error about a package that is not installed, or has an unfit version; None without one."""
    try:
        check_installed(members)
    except ConfigError as error:
        return error
    return None
