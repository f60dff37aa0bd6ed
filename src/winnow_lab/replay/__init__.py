"""`winnow replay`: what a selector or an allocator would have kept of the rollouts that a run has logged."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from winnow.commands.command_line import print_text


def replay(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, also of TRL, verl or prime-rl.")],
    select: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A selector, by name or file.py:function; may be repeated. [max_variance]"),
    ] = None,
    keep: Annotated[int, typer.Option(min=1, help="Rollouts to keep per prompt.")] = 4,
    allocate: Annotated[
        str | None, typer.Option(metavar="NAME", help="Also an allocator, such as gvm, by name or file.py:function.")
    ] = None,
) -> None:
    """Select again among the rollouts that a run has logged: tokens of updates saved, and variance of kept rewards."""
    from winnow_lab.replay.replaying import replay as replayed
    from winnow_lab.replay.text import lines_of

    result = replayed(run, select=select or ["max_variance"], keep=keep, allocate=allocate)
    for line in lines_of(result):
        print_text(line)
