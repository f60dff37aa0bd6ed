"""`winnow compare`: compares groups of training runs by their curves over seeds: table, speed-up, CSV and picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from winnow.commands.command_line import print_text


def compare(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="[LABEL=]PATH...", help="Run folders, folders of runs, sweeps, CSV files of curves."),
    ],
    baseline: Annotated[
        str | None, typer.Option(metavar="LABEL", help="The group to compare with. Default: the first.")
    ] = None,
    task: Annotated[str | None, typer.Option(help="One of the further tasks in evaluate.tasks.")] = None,
    measure: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="accuracy, correct_and_formatted, formatted, answer, eval/NAME of evaluations, reward/NAME of steps.",
        ),
    ] = "accuracy",
    costs: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Compute the seconds of every step from these costs (JSON), e.g. of `winnow profile`."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A new folder for tables (CSV) and the picture (PNG, SVG).")
    ] = None,
    no_plot: Annotated[bool, typer.Option("--no-plot", help="Write the tables without the picture.")] = False,
) -> None:
    """Compare groups of seeds: accuracy by time and tokens, and the speed-up to the baseline's plateau."""
    from winnow.state.cost_files import read_costs
    from winnow.state.disk import check_new, write_output_folder
    from winnow_lab.compare.comparison import compare_inputs
    from winnow_lab.compare.text import table, tables

    if output is not None:
        check_new(output)
        if not no_plot:
            from winnow_lab.compare.picture import pictures
    step_costs = None if costs is None else read_costs(costs)
    comparison = compare_inputs(paths, baseline=baseline, task=task, measure=measure, costs=step_costs)
    print_text(table(comparison))
    if output is not None:
        files = tables(comparison) | ({} if no_plot else pictures(comparison))
        write_output_folder(output, files)
        print_text(f"\nwritten   {output}: {', '.join(files)}")
