"""`winnow report`: runs as a page for a browser, in one file or served."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from winnow.commands.command_line import note_cut_row, print_text


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, or a sweep's folder.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A file; default: report.html in the run folder.")
    ] = None,
    limit: Annotated[str | None, typer.Option(help="Maximum size of the rollouts in the file; default: 20MB.")] = None,
    evaluations: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="TRAINED BASE", help="Two folders of `winnow eval --output` to compare."),
    ] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="Show whole runs in a browser of this machine, until Ctrl-C.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port for --serve (0: any free port).")] = 0,
) -> None:
    """Write a page of runs for a browser: curves, budget, allocation, and rollouts token by token."""
    from winnow.view.text import one_line, parse_bytes, wrap
    from winnow_lab.report.files import evaluations_of, output_of, runs_at, write_report

    if port and not serve:
        raise typer.BadParameter("--port requires --serve: add it, or omit --port")
    reported = runs_at(runs)
    for run in reported:
        note_cut_row(run.path)
    compared, notes = evaluations_of(reported, evaluations)
    for note in notes:
        print_text(wrap(f"note: {note}"), err=True)
    if serve:
        from winnow_lab.report.server import ReportServer
        from winnow_lab.report.server import serve as serve_until_interrupted

        if output is not None or limit is not None:
            raise typer.BadParameter("--serve writes no file: omit --output and --limit")
        server = ReportServer(reported, port=port, evaluations=compared)
        serve_until_interrupted(
            server, lambda url: print_text(f"serving   {url}  (for this machine only; Ctrl-C stops it)")
        )
        return
    max_bytes = parse_bytes("20MB" if limit is None else limit)
    written = write_report(reported, output_of(runs, output), limit=max_bytes, evaluations=compared)
    for note in written.notes:
        print_text(wrap(f"note: {note}"), err=True)
    rollouts = f"{written.included:,} of {written.of:,} rollouts"
    print_text(f"report    {one_line(str(written.path))}  ({written.size / 1e6:.1f} MB, {rollouts})")
