"""`winnow eval`: evaluate a model on one or more tasks, resume, and compare with another model."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live

from winnow.commands.command_line import Sets, interruptible, print_text
from winnow.errors import ConfigError
from winnow.evaluation.progress import EvaluationProgress
from winnow.recipes import find_config
from winnow.view.screen import console_on, is_screen


def evaluate(
    model: Annotated[str, typer.Argument(help='A model folder, such as a checkpoint; "bundled"; or a hub id.')],
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="CONFIG", parser=find_config, help="A recipe or a TOML file. Default: the checkpoint's run."
        ),
    ] = None,
    tasks: Annotated[
        list[str] | None,
        typer.Option(
            "--task", "--tasks", metavar="NAME[=PATH],...", help="Names, or file.py:function. Default: the run's."
        ),
    ] = None,
    sets: Sets = None,
    problems: Annotated[int | None, typer.Option(min=1, help="Maximum number of problems. Default: all.")] = None,
    samples: Annotated[
        int | None, typer.Option("--samples", "--rollouts-per-prompt", min=1, help="Rollouts per problem.")
    ] = None,
    greedy: Annotated[
        bool | None, typer.Option("--greedy/--no-greedy", help="Also sample each problem once at temperature 0.")
    ] = None,
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "test",
    seed: Annotated[int | None, typer.Option(help="Seed of the sampling. Default: the run's.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Of the sampled rollouts. Default: the run's.")] = None,
    compare: Annotated[
        str | None,
        typer.Option(metavar="OTHER", help="Another model for the same problems; or the folder of an evaluation."),
    ] = None,
    task_defaults: Annotated[
        bool, typer.Option("--task-defaults", help="Use prompt, limits and reward of each task, not of the run.")
    ] = False,
    trust_run: Annotated[
        bool, typer.Option("--trust-run", help="Import the files that the checkpoint's run names, also another user's.")
    ] = False,
    output: Annotated[Path | None, typer.Option(help="A new folder for rollouts, report and metrics.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the evaluation in --output.")] = False,
    metrics: Annotated[
        Path | None, typer.Option("--json", help="Also write the metrics and their description to this file.")
    ] = None,
) -> None:
    """Evaluate a model, or compare two, on held-out problems with the engine and verifiers of training."""
    from winnow.evaluation.evaluate import run_evaluation
    from winnow.evaluation.folder import is_evaluation
    from winnow.evaluation.text import format_comparison, format_headline, format_table
    from winnow.state.disk import check_new, write_output_json

    if resume and output is None:
        raise typer.BadParameter("--resume needs the folder of the evaluation: --output FOLDER")
    if metrics is not None:
        check_new(metrics)
    options = {
        "evaluate.split": ("--split", split),
        "evaluate.temperature": ("--temperature", temperature),
        "seed": ("--seed", seed),
    }
    begun = interruptible(lambda: output is not None and is_evaluation(output))
    with evaluation_progress() as progress, begun, named_options(options, sets or ()):
        result = run_evaluation(
            model,
            config,
            tasks=tasks or (),
            sets=sets or (),
            compare=compare,
            into=output,
            resume=resume,
            trust_run=trust_run,
            task_defaults=task_defaults,
            progress=progress,
            problems=problems,
            rollouts_per_prompt=samples,
            greedy=greedy,
            split=split,
            seed=seed,
            temperature=temperature,
        )
    try:
        for task in result.tasks:
            print_text(format_headline(task) + "\n" * (len(result.tasks) > 1))
        if len(result.tasks) > 1:
            print_text(format_table(result.tasks))
        for comparison in result.comparisons:
            print_text(format_comparison(comparison))
        if against := against_folder(compare, output):
            print_text(f"against    {against}")
        for note in result.notes:
            print_text(f"note: {note}", err=True)
    finally:  # also if the reader of standard output has closed it
        if metrics is not None:
            write_output_json(metrics, result.metrics())
    written = [str(path) for path in (output, metrics) if path is not None]
    if written:
        print_text(f"written    {', '.join(written)}")


def against_folder(compare: str | None, output: Path | None) -> Path | None:
    """The folder with the other model's answers: the evaluation that is named, or the one beside the model's own."""
    from winnow.evaluation.folder import AGAINST, is_evaluation

    if compare is not None and is_evaluation(Path(compare)):
        return Path(compare)
    return output / AGAINST if compare is not None and output is not None else None


@contextmanager
def named_options(options: Mapping[str, tuple[str, Any]], sets: Sequence[str]) -> Iterator[None]:
    """A ConfigError inside names the option that gave the value of its key. `options` is key -> (option, value), the
    value None for an option that is not given. An override in `sets` names itself.
    """
    overridden = {assignment.partition("=")[0].strip() for assignment in sets}
    try:
        yield
    except ConfigError as error:
        option, value = options.get(error.key or "", ("", None))
        if value is None or error.key in overridden:
            raise
        raise error.within(option) from error


@contextmanager
def evaluation_progress(
    console: Console | None = None, *, clock: Callable[[], float] = time.monotonic
) -> Iterator[EvaluationProgress]:
    """Show the progress of an evaluation during the block, by default on standard error: standard output has only the
    results.
    """
    console = console or console_on(sys.stderr)
    if not is_screen(console):
        yield EvaluationProgress(console, None, clock)
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:  # no thread: workers are forked from here
        yield EvaluationProgress(console, live, clock)
