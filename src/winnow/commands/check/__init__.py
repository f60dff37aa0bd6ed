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
) -> None:
    """Validate a configuration and its data, and print it resolved with its costs. Reads no weights."""
    from winnow.commands.check.dry_run import check_lines

    for line in check_lines(config, sets or (), memory, ranks, unset=unset or ()):
        print_text(line)
