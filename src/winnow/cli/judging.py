"""Commands that judge without a model: `winnow score` and `audit`."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from winnow.cli.door import BAD_INPUT, FAILED, Sets, app, interruptible, say


@app.command()
def score(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Saved responses as JSON lines; a run folder, or a file of rollouts.")
    ],
    reward: Annotated[str, typer.Option(help="By name, or file.py:function.")],
    sets: Sets = None,
    workers: Annotated[int, typer.Option(min=0, help="Processes that judge; 0: none but this one.")] = 1,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A new file for the rows, as JSON lines.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the rows of --output.")] = False,
) -> None:
    """Score saved responses again: outcome, reason and seconds of every row."""
    from winnow.commands.score import configured, count_rows, describe, summary, verifiers_for, watched
    from winnow.commands.score import score as scored
    from winnow.commands.unfinished_scores import UnfinishedScores, settings_of_scores

    if resume and output is None:
        raise typer.BadParameter("--resume needs the file that is not finished: --output FILE")
    config = configured([f"verify.workers={workers}", *(sets or ())], reward=reward)
    with contextlib.ExitStack() as stack:
        kept = None
        if output is not None:
            asked = settings_of_scores(file, config, Path.cwd())
            kept = stack.enter_context(UnfinishedScores.open(output, asked, resume=resume))
            stack.enter_context(interruptible(kept.holds_a_row))
        verifiers = stack.enter_context(verifiers_for(config, Path.cwd()))
        there = count_rows(file)
        rows = [] if kept is None else list(kept.rows)
        for row in watched(scored(file, verifiers, done=len(rows)), there - len(rows)):
            rows.append(row)
            if kept is None:
                say(describe(row))
            else:
                kept.append(row)
        if kept is not None:
            kept.finish()
    for line in summary(rows):
        say(line)
    if len(rows) < there:
        say(f"{there - len(rows):,} rollouts were logged without their text, and are left out")


@app.command()
def audit(
    task: Annotated[str, typer.Argument(metavar="TASK", help="By name, or file.py:function.")],
    reward: Annotated[str, typer.Option(help="The reward whose golds these are.")] = "boxed",
    sets: Sets = None,
) -> None:
    """Is a task fit to be trained on? Golds against themselves, constant answers, repetitions, overlap of splits."""
    from winnow.commands.audit import audit_configured, describe
    from winnow.commands.score import configured

    found = audit_configured(configured(sets or (), task=task, reward=reward), Path.cwd())
    for line in describe(found):
        say(line)
    if not found.clean:
        raise typer.Exit(FAILED if found.faults else BAD_INPUT)
