"""`winnow show`: the rollouts of a run as text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from winnow.commands.command_line import print_text


def show(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or a file of its rollouts.")],
    step: Annotated[
        int | None, typer.Option(min=0, help="Default: the last step; all steps with --failed or --prompt.")
    ] = None,
    worst: Annotated[int | None, typer.Option(min=1, help="The prompts with the lowest mean reward.")] = None,
    best: Annotated[int | None, typer.Option(min=1, help="The prompts with the highest mean reward.")] = None,
    dropped: Annotated[bool, typer.Option("--dropped", help="Rollouts not trained on.")] = False,
    failed: Annotated[bool, typer.Option("--failed", help="Rollouts whose verifier failed.")] = False,
    prompt: Annotated[str | None, typer.Option(metavar="ID", help="A prompt, by the beginning of its id.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Print whole texts, and every token.")] = False,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Each token with log-prob, value, return and advantage.")
    ] = False,
) -> None:
    """Read a run's rollouts: text, verdict, reward, advantage, and whether it was trained on."""
    from winnow.commands.show.text import Choice, format_rollouts

    if worst is not None and best is not None:
        raise typer.BadParameter("choose one of --worst and --best")
    choice = Choice(
        step=step, worst=worst, best=best, dropped=dropped, failed=failed, prompt=prompt, full=full, tokens=tokens
    )
    for block in format_rollouts(run, choice):
        print_text(block)
