"""`winnow sweep`: train each configuration of a grid with each seed, one run or a few at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from winnow.commands.command_line import FAILED, SAVED, print_resume_command, print_text
from winnow.errors import resumable


def sweep(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="SWEEP", help="A TOML file: configurations, and seeds.")],
    resume: Annotated[bool, typer.Option("--resume", help="Continue the unfinished runs.")] = False,
    output: Annotated[
        str | None, typer.Option(metavar="PATH", help="The sweep's folder, instead of the one in the file.")
    ] = None,
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help='A Ray cluster; "auto": this machine\'s; "local": a new one.')
    ] = None,
) -> None:
    """Train a grid of configurations with several seeds, then compare. Exit code 75 means interrupted and saved."""
    from winnow_lab.sweep.loop import train_sweep

    options = {"output": output, "ray": ray}
    result = train_sweep(file, {key: value for key, value in options.items() if value is not None}, resume=resume)
    if "failed" in result.ends:
        print_text("some runs failed; a resume continues them", err=True)
        print_resume_command(resumable(typer.Exit(FAILED)), ctx)
        raise typer.Exit(FAILED)
    if set(result.ends) != {"finished"}:
        print_text("interrupted", err=True)
        print_resume_command(resumable(typer.Exit(SAVED)), ctx)
        raise typer.Exit(SAVED)
    if not result.evaluated:
        print_text("finished; note: no run has an evaluation, so there is nothing to compare (keys: evaluate.*)")
        return
    from winnow_lab.sweep.process import compare

    compare(result.folder, result.comparison)
