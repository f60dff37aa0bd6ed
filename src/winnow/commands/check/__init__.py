"""`winnow check`: a resolved configuration, its first prompt, its costs, the memory plan, and advice."""

from __future__ import annotations

from typing import Annotated

import typer

from winnow.commands.command_line import ConfigFile, Sets, Unsets, print_text


def check(
    config: ConfigFile,
    sets: Sets = None,
    unset: Unsets = None,
    memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Plan for a policy's device with this memory, such as 80GiB."),
    ] = None,
    ranks: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="Plan for a run of N processes on one machine."),
    ] = 1,
    prove: Annotated[
        bool, typer.Option("--prove", help="Also rehearse an update without numbers, under torch's memory tracker.")
    ] = False,
    prove_minutes: Annotated[
        float, typer.Option(min=0.01, metavar="MINUTES", help="Stop the rehearsal after this time.")
    ] = 15.0,
    every_key: Annotated[bool, typer.Option("--all", help="Print the keys at their defaults, too.")] = False,
) -> None:
    """Validate a configuration and its data, and print what it changes, its costs and its memory. Reads no weights."""
    from winnow.commands.check.dry_run import check_lines

    limit = 60 * prove_minutes if prove else None
    for line in check_lines(config, sets or (), memory, ranks, unset=unset or (), prove=limit, whole=every_key):
        print_text(line)
