"""`winnow audit`: checks of a task with a reward."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from winnow.commands.command_line import BAD_INPUT, FAILED, Sets, print_text


def audit(
    task: Annotated[str, typer.Argument(metavar="TASK", help="By name, or file.py:function.")],
    reward: Annotated[str, typer.Option(help="The reward that verifies the gold answers.")] = "boxed",
    sets: Sets = None,
) -> None:
    """Check that a task is fit for training: gold and constant answers, repetitions, overlap of splits."""
    from winnow.commands.audit.checks import audit_configured, describe
    from winnow.evaluation.scoring import build_config

    result = audit_configured(build_config(sets or (), task=task, reward=reward), Path.cwd())
    for line in describe(result):
        print_text(line)
    if not result.clean:
        raise typer.Exit(FAILED if result.faults else BAD_INPUT)
