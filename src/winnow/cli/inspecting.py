"""Commands that read a run: `winnow show`, `plot`, `report` and `export`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from winnow.cli.door import BAD_INPUT, RunPath, app, say


@app.command()
def show(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or a file of its rollouts.")],
    step: Annotated[int | None, typer.Option(min=0, help="Default: the last; all with --failed or --prompt.")] = None,
    worst: Annotated[int | None, typer.Option(min=1, help="The prompts with the lowest mean reward.")] = None,
    best: Annotated[int | None, typer.Option(min=1, help="The prompts with the highest mean reward.")] = None,
    dropped: Annotated[bool, typer.Option("--dropped", help="Rollouts not trained on.")] = False,
    failed: Annotated[bool, typer.Option("--failed", help="Rollouts whose verifier failed.")] = False,
    prompt: Annotated[str | None, typer.Option(metavar="ID", help="A prompt, by the beginning of its id.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Texts in full length, and every token.")] = False,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Each token with log-prob, value, return and advantage.")
    ] = False,
) -> None:
    """Read a run's rollouts: text, verdict, reward, advantage, and whether it was trained on."""
    from winnow.report.show import Choice
    from winnow.report.show import show as blocks

    if worst is not None and best is not None:
        raise typer.BadParameter("choose one of --worst and --best")
    choice = Choice(
        step=step, worst=worst, best=best, dropped=dropped, failed=failed, prompt=prompt, full=full, tokens=tokens
    )
    for block in blocks(run, choice):
        say(block)


@app.command()
def plot(
    run: RunPath,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file; default: plot.png in the run.")] = None,
    summary_only: Annotated[bool, typer.Option("--summary-only", help="The text without the picture.")] = False,
) -> None:
    """Draw a run in panels: accuracy, reward, length, loss, and where the budget went; and sum it up in text."""
    from winnow.report.heading import heading
    from winnow.report.run_changes import changes_in, evaluations
    from winnow.report.summary import summary
    from winnow.state.logbook import read_metrics
    from winnow.state.saved_runs import manifest_of

    rows, folder = read_metrics(run), run if run.is_dir() else run.parent
    _note_cut_row(run)
    manifest = manifest_of(folder)
    evaluated = evaluations(manifest.config, changes_in(manifest.data))
    say(summary(rows, manifest.config, evaluated))
    if not summary_only:
        from winnow.report.plot import plot as draw

        picture = output or folder / "plot.png"
        draw(rows, picture, title=folder.resolve().name, subtitle=heading(manifest.config), evaluated=evaluated)
        say(f"plot      {picture}")


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, or a sweep's folder.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A file; default: report.html in the run folder.")
    ] = None,
    limit: Annotated[str | None, typer.Option(help="Rollouts in the file take so much at most; default: 20MB.")] = None,
    evaluations: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="TRAINED BASE", help="Two folders of `winnow eval --output`, to show beside each other."),
    ] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="Show whole runs in a browser of this machine, until Ctrl-C.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of --serve; 0: any that is free.")] = 0,
) -> None:
    """One page of runs for a browser: curves, budget, allocation, and rollouts token by token."""
    from winnow.commands.report import evaluations_of, output_of, runs_at, size, write_report
    from winnow.report.text import one_line, wrapped

    if port and not serve:
        raise typer.BadParameter("--port is of --serve: give both, or leave it out")
    found = runs_at(runs)
    for run in found:
        _note_cut_row(run.path)
    compared = evaluations_of(found, evaluations)
    for note in compared.notes:
        say(wrapped(f"note: {note}"), err=True)
    if serve:
        from winnow.commands.report_server import ReportServer
        from winnow.commands.report_server import serve as answer

        if output is not None or limit is not None:
            raise typer.BadParameter("--serve writes no file: leave out --output and --limit")
        server = ReportServer(found, port=port, evaluations=compared.data)
        answer(server, lambda url: say(f"serving   {url}  (this machine alone; Ctrl-C ends it)"))
        return
    most = size("20MB" if limit is None else limit)
    written = write_report(found, output_of(runs, output), limit=most, evaluations=compared.data)
    for note in written.notes:
        say(wrapped(f"note: {note}"), err=True)
    rollouts = f"{written.included:,} of {written.of:,} rollouts"
    say(f"report    {one_line(str(written.path))}  ({written.size / 1e6:.1f} MB, {rollouts})")


@app.command()
def export(
    run: RunPath,
    history: Annotated[bool, typer.Option("--history", help="training_history.json: one entry per step.")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A new file; default: standard output.")] = None,
) -> None:
    """Rewrite a run's metrics for other programs; without an option, say what there is to write."""
    from winnow.report.training_history import described, training_history
    from winnow.state.logbook import read_metrics
    from winnow.state.output_files import check_new, write_output_json

    if output is not None:
        check_new(output)
    entries = training_history(read_metrics(run))
    _note_cut_row(run)
    if not history:
        say(described(entries), err=True)
        raise typer.Exit(BAD_INPUT)
    if output is None:
        say(json.dumps(entries, indent=1, allow_nan=False))
    else:
        write_output_json(output, entries)


def _note_cut_row(run: Path) -> None:
    """Say that the last row of a run's metrics is left out, where it is cut."""
    from winnow.state.log_lines import ends_cut
    from winnow.state.logbook import METRICS

    path = run / METRICS if run.is_dir() else run
    if ends_cut(path):
        say(f"note: the last row of {path} is cut and left out: it is still being written, or never was", err=True)
