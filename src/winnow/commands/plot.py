"""`winnow plot`: a run as a picture and as a summary."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from winnow.commands.command_line import RunPath, note_cut_row, print_text


def plot(
    run: RunPath,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A new file; default: plot.png in the run.")
    ] = None,
    summary_only: Annotated[bool, typer.Option("--summary-only", help="Print the text without drawing.")] = False,
) -> None:
    """Draw a run in panels (accuracy, reward, length, loss, use of the budget), and print a summary."""
    from winnow.run_view.configuration import evaluations, heading
    from winnow.run_view.summary import summary
    from winnow.state.disk import check_new, check_replaced
    from winnow.state.logbook import read_metrics
    from winnow.state.manifest import MANIFEST
    from winnow.state.saved_runs import manifest_of

    if output is not None and not summary_only:
        check_new(output)
    rows, folder = read_metrics(run), run if run.is_dir() else run.parent
    note_cut_row(run)
    manifest = manifest_of(folder)
    evaluated = evaluations(manifest.data)
    print_text(summary(rows, manifest.config, evaluated))
    if not summary_only:
        from winnow.run_view.plot import draw
        from winnow.view.drawing import MARK, save_figure

        picture = output or folder / "plot.png"
        if not (folder / MANIFEST).exists():  # no run of winnow: the picture may be another program's
            check_replaced(picture, MARK, "a picture of winnow")
        title, subtitle = folder.resolve().name, heading(manifest.config)
        save_figure(draw(rows, title=title, subtitle=subtitle, evaluated=evaluated), picture)
        print_text(f"plot      {picture}")
