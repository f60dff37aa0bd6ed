"""The command line. A command imports what it needs when it runs: `--help`, `show` and `plot` start without torch."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from winnow.errors import EngineError, VerifierError, WinnowError, told
from winnow.version import __version__

BAD_INPUT, FAILED, SAVED, INTERRUPTED = 2, 1, 75, 130


class RunFailed(WinnowError):
    """A run that had begun to step could not go on."""


class Door(TyperGroup):
    """Turns deliberate errors into their message and an exit code; a traceback is for bugs."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except WinnowError as error:
            from winnow.report.text import safe

            typer.echo(safe(told(error)), err=True)
            failed = isinstance(error, (RunFailed, EngineError, VerifierError))
            raise typer.Exit(FAILED if failed else BAD_INPUT) from None


app = typer.Typer(
    cls=Door,
    help="RL with verifiable rewards that treats the rollout budget as the thing to optimise.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"winnow {__version__}")
        raise typer.Exit


@app.callback()
def door(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Say the version, and end.")
    ] = False,
) -> None: ...


ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="A TOML file.")]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override a key; may be repeated.")]


@app.command()
def train(
    config: ConfigFile,
    sets: Sets = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint.")] = False,
    allow_change: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="A key that a resume changes knowingly; may be repeated.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="The run folder, instead of the configuration's.")] = None,
) -> None:
    """Train a policy. Exit code 75: interrupted, and saved."""
    from winnow.config_file import load
    from winnow.report.progress import progress
    from winnow.training.fit import fit
    from winnow.training.resolve import resolve_members

    own = [] if output is None else [f"output={json.dumps(str(output), ensure_ascii=False)}"]
    members = resolve_members(load(config, [*(sets or ()), *own]), base=config.parent)
    with progress() as display:
        try:
            result = fit(members, resume=resume, allow_change=allow_change or (), watch=display)
        except WinnowError as error:
            raise (RunFailed(told(error)) if display.standing.begun else error) from error
    if result.interrupted:
        saved = " and saved" if result.model else ""
        typer.echo(f"interrupted after {result.steps} steps{saved}; go on with --resume", err=True)
        raise typer.Exit(SAVED)
    typer.echo(f"model: {result.model}")


@app.command("eval")
def evaluate(
    model: Annotated[str, typer.Argument(help='A model folder, such as a checkpoint; "bundled"; or a hub id.')],
    config: Annotated[Path | None, typer.Option(help="A TOML file; else that of the checkpoint's own run.")] = None,
    task: Annotated[list[str] | None, typer.Option(help="By name, or file.py:function. Default: the run's.")] = None,
    sets: Sets = None,
    problems: Annotated[int | None, typer.Option(min=1, help="How many problems, at most. Default: all.")] = None,
    rollouts_per_prompt: Annotated[int | None, typer.Option(min=1)] = None,
    greedy: Annotated[bool | None, typer.Option("--greedy/--no-greedy", help="Also once at temperature 0.")] = None,
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "test",
    seed: Annotated[int | None, typer.Option()] = None,
    temperature: Annotated[float | None, typer.Option()] = None,
    trust_run: Annotated[
        bool, typer.Option("--trust-run", help="Import the files that the checkpoint's run names, whoever made it.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option(help="Write every rollout here; a report (.txt) and metrics (.json) beside it.")
    ] = None,
    metrics: Annotated[
        Path | None, typer.Option("--json", help="Write metrics and what they are of here. Default: beside --output.")
    ] = None,
) -> None:
    """Evaluate a model on held-out problems, with the prompts, engine and verifiers of training."""
    from winnow.commands.evaluate import beside, evaluated, headline, write, write_metrics
    from winnow.commands.output import check_new

    if task is not None and len(task) > 1:
        raise typer.BadParameter(f"one task in a call, found {', '.join(task)}; call it once for each")
    if output is not None:
        metrics = metrics or beside(output, ".json")
    files = [*([] if output is None else [output, beside(output, ".txt")]), *([] if metrics is None else [metrics])]
    check_new(*files)
    measured = evaluated(
        model,
        config,
        sets=sets or (),
        trust_run=trust_run,
        task=task[0] if task else None,
        problems=problems,
        rollouts_per_prompt=rollouts_per_prompt,
        greedy=greedy,
        split=split,
        seed=seed,
        temperature=temperature,
    )
    typer.echo(headline(measured))
    if output is not None:
        write(measured, output)
    if metrics is not None:
        write_metrics(measured, metrics)
    if files:
        typer.echo(f"written    {', '.join(map(str, files))}")


@app.command()
def check(
    config: ConfigFile,
    sets: Sets = None,
    memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Plan for this much memory on the policy's device, such as 80GiB."),
    ] = None,
) -> None:
    """Validate a configuration and its data, print it resolved, and say what it costs. Reads no weights."""
    from winnow.commands.check import checked

    for line in checked(config, sets or (), memory):
        typer.echo(line)


@app.command("list")
def list_(
    kind: Annotated[str | None, typer.Argument(help="losses, selectors, rewards, tasks, metrics ...")] = None,
) -> None:
    """What a configuration can name: each member with its options, their defaults, and what it does."""
    from winnow.commands.catalog import KINDS, catalog

    for block in KINDS if kind is None else catalog(kind):
        typer.echo(block)


@app.command()
def show(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or a file of its rollouts.")],
    step: Annotated[int | None, typer.Option(min=0, help="Default: the last; all with --failed or --prompt.")] = None,
    worst: Annotated[int | None, typer.Option(min=1, help="The prompts with the lowest mean reward.")] = None,
    best: Annotated[int | None, typer.Option(min=1, help="The prompts with the highest mean reward.")] = None,
    dropped: Annotated[bool, typer.Option("--dropped", help="Rollouts not trained on.")] = False,
    failed: Annotated[bool, typer.Option("--failed", help="Rollouts whose verifier failed.")] = False,
    prompt: Annotated[str | None, typer.Option(metavar="ID", help="A prompt, by the beginning of its id.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Texts in full length.")] = False,
) -> None:
    """Read a run's rollouts: text, verdict, reward, advantage, and whether it was trained on."""
    from winnow.report.show import Choice
    from winnow.report.show import show as blocks

    if worst is not None and best is not None:
        raise typer.BadParameter("choose one of --worst and --best")
    choice = Choice(step=step, worst=worst, best=best, dropped=dropped, failed=failed, prompt=prompt, full=full)
    for block in blocks(run, choice):
        typer.echo(block)


@app.command()
def plot(
    run: RunPath,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Default: plot.png in the run folder.")] = None,
    summary_only: Annotated[bool, typer.Option("--summary-only", help="The text without the picture.")] = False,
) -> None:
    """Draw a run in four panels, and sum it up in text."""
    from winnow.report.summary import summary
    from winnow.state.logbook import read_metrics

    rows = read_metrics(run)
    _note_cut_row(run)
    typer.echo(summary(rows))
    if not summary_only:
        from winnow.report.heading import heading
        from winnow.report.plot import plot as draw

        folder = run if run.is_dir() else run.parent
        picture = output or folder / "plot.png"
        draw(rows, picture, title=folder.resolve().name, subtitle=heading(folder))
        typer.echo(f"plot      {picture}")


@app.command()
def export(
    run: RunPath,
    history: Annotated[bool, typer.Option("--history", help="training_history.json: one entry per step.")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file; default: standard output.")] = None,
) -> None:
    """Rewrite a run's metrics for other programs; without an option, say what there is to write."""
    from winnow.commands.output import check_new
    from winnow.report.training_history import described, training_history
    from winnow.state.logbook import read_metrics

    if output is not None:
        check_new(output)
    entries = training_history(read_metrics(run))
    _note_cut_row(run)
    if not history:
        typer.echo(described(entries), err=True)
        raise typer.Exit(BAD_INPUT)
    text = json.dumps(entries, indent=1, allow_nan=False)
    if output is None:
        typer.echo(text)
    else:
        output.write_text(text + "\n", encoding="utf-8")


def _note_cut_row(run: Path) -> None:
    """Say that the last row of a run's metrics is left out, where it is cut."""
    from winnow.report.text import safe
    from winnow.state.log_lines import ends_cut
    from winnow.state.logbook import METRICS

    path = run / METRICS if run.is_dir() else run
    if ends_cut(path):
        typer.echo(
            safe(f"note: the last row of {path} is cut and left out: it is still being written, or never was"), err=True
        )


@app.command()
def fetch(
    source: Annotated[str, typer.Argument(help="A task (gsm8k, math, math500) or the hub id of a model.")],
    folder: Annotated[Path, typer.Argument(metavar="DEST", help="A folder that does not exist yet.")],
) -> None:
    """Bring a data set or a model of the hub into a folder; prints the SHA-256 of every file."""
    from winnow.commands.fetch import fetch_data, fetch_model, published

    data = published(source)
    for line in fetch_data(data, folder) if data else fetch_model(source, folder):
        typer.echo(line)


@app.command()
def score(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Saved responses as JSON lines; a run folder, or a file of rollouts.")
    ],
    reward: Annotated[str, typer.Option(help="By name, or file.py:function.")],
    sets: Sets = None,
    workers: Annotated[int, typer.Option(min=0, help="Processes that judge; 0: none but this one.")] = 1,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the rows here, as JSON lines.")] = None,
) -> None:
    """Score saved responses again: outcome, reason and seconds of every row."""
    from winnow.commands.output import check_new
    from winnow.commands.score import configured, count_rows, describe, summary, verifiers_for, watched
    from winnow.commands.score import score as scored
    from winnow.state.log_rows import encode

    config = configured([f"verify.workers={workers}", *(sets or ())], reward=reward)
    if output is not None:
        check_new(output)
    rows = []
    with verifiers_for(config, Path.cwd()) as verifiers:
        there = count_rows(file)
        for row in watched(scored(file, verifiers), there):
            rows.append(row)
            if output is None:
                typer.echo(describe(row))
    if output is not None:
        output.write_bytes(b"".join(encode(row.row()) + b"\n" for row in rows))
    for line in summary(rows):
        typer.echo(line)
    if len(rows) < there:
        typer.echo(f"{there - len(rows):,} rollouts were logged without their text, and are left out")


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
        typer.echo(line)
    if not found.clean:
        raise typer.Exit(FAILED)


def main() -> None:
    """The `winnow` command."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    app()
