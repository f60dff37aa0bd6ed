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
from rich.text import Text

from winnow.commands.command_line import Sets, interruptible, print_text
from winnow.errors import ConfigError
from winnow.evaluation.progress import EvaluationProgress
from winnow.recipes import find_config
from winnow.view.screen import console_on, is_screen, silence
from winnow.view.text import format_count, format_duration, one_line

EVERY = 0.2  # seconds between two updates of the live line
QUIET = 10.0  # seconds without a line, after which one is printed; without a live line


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


class ProgressDisplay(EvaluationProgress):
    """Counts rollouts and prints the progress."""

    def __init__(self, console: Console, live: Live | None, clock: Callable[[], float]) -> None:
        self._console, self._live, self._clock = console, live, clock
        self._total = self._done = self._skipped = self._tokens = 0
        self._began = self._drawn = clock()
        self._task = ""

    def loading(self, model: str) -> None:
        self._print(f"loading {model}")

    def begin(self, rollouts: int) -> None:
        self._total = rollouts

    def resumed(self, task: str, rollouts: int) -> None:
        self._done, self._skipped = self._done + rollouts, self._skipped + rollouts
        if rollouts:
            self._print(f"{task}: {rollouts:,} rollouts were done before")

    def start_task(self, task: str) -> None:
        """Set the task that is sampled from now on. The clock starts at the first call, after the model is loaded."""
        self._began = self._clock() if not self._task else self._began
        self._task = task

    def rollout(self, tokens: int) -> None:
        self._done, self._tokens = self._done + 1, self._tokens + tokens
        now = self._clock()
        if now - self._drawn <= (EVERY if self._live is not None else QUIET):
            return
        self._drawn = now
        if self._live is not None:
            self._show(self._live.update, Text(self.line(), no_wrap=True, overflow="ellipsis"), refresh=True)
        else:
            self._print(self.line())

    def part(self, problems: int, of: int) -> None:
        """Print how many problems of the task are done, unless there is a live line."""
        if self._live is None:
            self._drawn = self._clock()
            self._print(f"{problems:,} of {of:,} problems; {self.line()}")

    def line(self) -> str:
        """The progress in one line: the task, rollouts, tokens per second and the time that is left."""
        seconds, sampled = self._clock() - self._began, self._done - self._skipped
        pace = f"  {format_count(self._tokens / seconds)} tok/s" if seconds > 0 and self._tokens else ""
        left = seconds / sampled * (self._total - self._done) if sampled else None
        ends = "" if left is None else f"  {format_duration(left)} left"
        return one_line(f"{self._task}  {self._done:,}/{self._total:,} rollouts{pace}{ends}")

    def _print(self, text: str) -> None:
        self._show(self._console.print, one_line(text), markup=False, highlight=False, emoji=False, soft_wrap=True)

    def _show(self, write: Callable[..., object], *what: Any, **how: Any) -> None:
        """Write to the console. If that is not possible any more, only the display ends."""
        try:
            write(*what, **how)
        except OSError:  # the reader closed the pipe, the terminal is closed, or the disk is full
            silence(self._console.file)


@contextmanager
def evaluation_progress(
    console: Console | None = None, *, clock: Callable[[], float] = time.monotonic
) -> Iterator[ProgressDisplay]:
    """Show the progress of an evaluation during the block, by default on standard error: standard output has only the
    results.
    """
    console = console or console_on(sys.stderr)
    if not is_screen(console):
        yield ProgressDisplay(console, None, clock)
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:  # no thread: workers are forked from here
        yield ProgressDisplay(console, live, clock)
