"""`winnow sweep`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from winnow.cli.door import FAILED, SAVED, app, print_resume_command, print_text
from winnow.errors import resumable
from winnow.installed import is_installed


@app.command()
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
    from winnow.commands.sweep.command import train_sweep

    options = {"output": output, "ray": ray}
    result = train_sweep(file, {key: value for key, value in options.items() if value is not None}, resume=resume)
    if "failed" in result.ends:
        print_text("some runs failed; a resume repeats them", err=True)
        print_resume_command(resumable(typer.Exit(FAILED)), ctx)
        raise typer.Exit(FAILED)
    if set(result.ends) != {"finished"}:
        print_text("interrupted", err=True)
        print_resume_command(resumable(typer.Exit(SAVED)), ctx)
        raise typer.Exit(SAVED)
    if not result.evaluated:
        print_text("finished; note: no run has an evaluation, so there is nothing to compare (keys: evaluate.*)")
        return
    _compare(result.folder, result.comparison)


def _compare(folder: Path, output: Path | None) -> None:
    """Print how to compare the runs, or with `output` compare them into a folder of tables and pictures."""
    from winnow.commands.sweep.comparison import mark_comparison

    command = ["winnow", "compare", str(folder)]
    if output is None:
        print_text(f"finished; compare them: {' '.join(command)}")
        return
    without = [] if is_installed("matplotlib") else ["--no-plot"]
    done = subprocess.run([sys.executable, "-m", *command, "--output", str(output), *without], check=False)
    if done.returncode:
        raise typer.Exit(FAILED)
    mark_comparison(output, folder)
    if without:
        print_text("note: there is no picture without matplotlib: pip install 'winnow-rl[plot]', then winnow compare")
