"""Commands that read a run: `winnow show`, `plot`, `report` and `export`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from winnow.cli.door import BAD_INPUT, RunPath, app, print_text


@app.command()
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
    from winnow.commands.show.text import Choice
    from winnow.commands.show.text import show as blocks

    if worst is not None and best is not None:
        raise typer.BadParameter("choose one of --worst and --best")
    choice = Choice(
        step=step, worst=worst, best=best, dropped=dropped, failed=failed, prompt=prompt, full=full, tokens=tokens
    )
    for block in blocks(run, choice):
        print_text(block)


@app.command()
def plot(
    run: RunPath,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file; default: plot.png in the run.")] = None,
    summary_only: Annotated[bool, typer.Option("--summary-only", help="Print the text without drawing.")] = False,
) -> None:
    """Draw a run in panels (accuracy, reward, length, loss, use of the budget), and print a summary."""
    from winnow.run_view.configuration import changes_in, evaluations, heading
    from winnow.run_view.summary import summary
    from winnow.state.logbook import read_metrics
    from winnow.state.saved_runs import manifest_of

    rows, folder = read_metrics(run), run if run.is_dir() else run.parent
    _note_cut_row(run)
    manifest = manifest_of(folder)
    evaluated = evaluations(manifest.config, changes_in(manifest.data))
    print_text(summary(rows, manifest.config, evaluated))
    if not summary_only:
        from winnow.run_view.plot import plot as draw

        picture = output or folder / "plot.png"
        draw(rows, picture, title=folder.resolve().name, subtitle=heading(manifest.config), evaluated=evaluated)
        print_text(f"plot      {picture}")


@app.command()
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
    from winnow.commands.report.files import evaluations_of, output_of, parse_size, runs_at, write_report
    from winnow.view.text import one_line, wrap

    if port and not serve:
        raise typer.BadParameter("--port requires --serve: add it, or omit --port")
    reported = runs_at(runs)
    for run in reported:
        _note_cut_row(run.path)
    compared = evaluations_of(reported, evaluations)
    for note in compared.notes:
        print_text(wrap(f"note: {note}"), err=True)
    if serve:
        from winnow.commands.report.server import ReportServer
        from winnow.commands.report.server import serve as serve_until_interrupted

        if output is not None or limit is not None:
            raise typer.BadParameter("--serve writes no file: omit --output and --limit")
        server = ReportServer(reported, port=port, evaluations=compared.data)
        serve_until_interrupted(
            server, lambda url: print_text(f"serving   {url}  (for this machine only; Ctrl-C stops it)")
        )
        return
    max_bytes = parse_size("20MB" if limit is None else limit)
    written = write_report(reported, output_of(runs, output), limit=max_bytes, evaluations=compared.data)
    for note in written.notes:
        print_text(wrap(f"note: {note}"), err=True)
    rollouts = f"{written.included:,} of {written.of:,} rollouts"
    print_text(f"report    {one_line(str(written.path))}  ({written.size / 1e6:.1f} MB, {rollouts})")


@app.command()
def export(
    run: RunPath,
    history: Annotated[bool, typer.Option("--history", help="training_history.json: one entry per step.")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A new file; default: standard output.")] = None,
) -> None:
    """Rewrite a run's metrics for other programs; without an option, describe what can be written."""
    from winnow.commands.training_history import describe_export, training_history
    from winnow.state.logbook import read_metrics
    from winnow.state.output_files import check_new, write_output_json

    if output is not None:
        check_new(output)
    entries = training_history(read_metrics(run))
    _note_cut_row(run)
    if not history:
        print_text(describe_export(entries), err=True)
        raise typer.Exit(BAD_INPUT)
    if output is None:
        print_text(json.dumps(entries, indent=1, allow_nan=False))
    else:
        write_output_json(output, entries)


def _note_cut_row(run: Path) -> None:
    """Print a note where the last row of a run's metrics is incomplete, and therefore omitted."""
    from winnow.state.log_lines import ends_cut
    from winnow.state.logbook import METRICS

    path = run / METRICS if run.is_dir() else run
    if ends_cut(path):
        print_text(
            f"note: the last row of {path} is incomplete and omitted: it is being written, or a writer was killed",
            err=True,
        )
