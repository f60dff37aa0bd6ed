"""`winnow score`: verifies saved responses again, from JSON lines with texts and golds, or from a run's rollouts."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from winnow.commands.command_line import FAILED, Sets, interruptible, print_text
from winnow.errors import DataError
from winnow.view.screen import console_on


def score(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Saved responses as JSON lines; a run folder, or a file of rollouts.")
    ],
    reward: Annotated[str, typer.Option(help="By name, or file.py:function.")],
    sets: Sets = None,
    workers: Annotated[int, typer.Option(min=0, help="Processes that verify; 0: this one.")] = 1,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A new file for the rows, as JSON lines.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue after the rows of --output.")] = False,
) -> None:
    """Score saved responses again, with outcome, reason and seconds of every row."""
    from rich.progress import track

    from winnow_lab.score.folder import UnfinishedScores, settings_of_scores
    from winnow_lab.scoring import build_config, count_rows, describe, summary, verifiers_for
    from winnow_lab.scoring import score as scored

    if resume and output is None:
        raise typer.BadParameter("--resume needs the unfinished file: --output FILE")
    config = build_config([f"verify.workers={workers}", *(sets or ())], reward=reward)
    with contextlib.ExitStack() as stack:
        kept = None
        if output is not None:
            settings = settings_of_scores(file, config, Path.cwd())
            kept = stack.enter_context(UnfinishedScores.open(output, settings, resume=resume))
            stack.enter_context(interruptible(kept.has_a_row))
        verifiers = stack.enter_context(verifiers_for(config, Path.cwd()))
        total = count_rows(file)
        if not total:
            raise DataError(f"{file} contains no row", remedy="name a file of responses", code="data.empty")
        rows = [] if kept is None else list(kept.rows)
        console = console_on(sys.stderr)
        quiet, left = not console.is_terminal, total - len(rows)
        new = scored(file, verifiers, done=len(rows))
        for row in track(new, "scoring", total=left, console=console, disable=quiet, transient=True):
            rows.append(row)
            if kept is None:
                print_text(describe(row))
            else:
                kept.append(row)
        if kept is not None:
            kept.finish()
    for line in summary(rows):
        print_text(line)
    if len(rows) < total:
        print_text(f"{total - len(rows):,} rollouts have no text (cut, or not logged), and are omitted")
    if rows and all(row.outcome.failed for row in rows):
        raise typer.Exit(FAILED)
