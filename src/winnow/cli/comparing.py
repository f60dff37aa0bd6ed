"""`winnow compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from winnow.cli.door import app, say


@app.command()
def compare(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="[LABEL=]PATH...", help="Run folders, folders of runs, sweeps, CSV files of curves."),
    ],
    baseline: Annotated[
        str | None, typer.Option(metavar="LABEL", help="What the others are measured against. Default: the first.")
    ] = None,
    task: Annotated[str | None, typer.Option(help="A further task of evaluate.tasks.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A new folder for tables (CSV) and the picture (PNG, SVG).")
    ] = None,
    no_plot: Annotated[bool, typer.Option("--no-plot", help="The tables without the picture.")] = False,
) -> None:
    """Compare groups of seeds: accuracy by time and tokens, and who reaches the baseline's best how much sooner."""
    from winnow.commands.output import check_new
    from winnow.report.comparison.compared import compared
    from winnow.report.comparison.comparison_csv import write_tables
    from winnow.report.comparison.comparison_table import table

    if output is not None:
        check_new(output)
        if not no_plot:
            from winnow.report.comparison.comparison_picture import write_pictures
    found = compared(paths, baseline=baseline, task=task)
    say(table(found))
    if output is not None:
        output.mkdir()
        files = write_tables(found, output)
        if not no_plot:
            files += write_pictures(found, output)
        say(f"\nwritten   {output}: {', '.join(file.name for file in files)}")
