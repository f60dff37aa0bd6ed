"""What commands share: printing, exit codes (docs/runs.md lists them), arguments, and connecting to Ray."""

from __future__ import annotations

import os
import shlex
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Self

import typer
from typer.core import TyperGroup

from winnow.errors import (
    ConfigError,
    DataError,
    EngineError,
    RankError,
    VerifierError,
    WinnowError,
    format_with_code,
    resumable,
    resume_options,
)
from winnow.ranks import launched_count
from winnow.recipes import find_config
from winnow.view.screen import silence
from winnow.view.text import sanitize

BAD_INPUT, FAILED, SAVED, INTERRUPTED = 2, 1, 75, 130
CONNECT_SECONDS = 10  # to a Ray cluster
_WORDS = "winnow.words"  # key of the command's arguments in its context
ConfigFile = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG", parser=find_config, help="A recipe (winnow list recipes), or the path of a TOML file."
    ),
]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override a key; may be repeated.")]
Unsets = Annotated[
    list[str] | None,
    typer.Option("--unset", metavar="A.B", help="Remove a key or a table of the file; may be repeated."),
]


class RunFailed(WinnowError):
    """A run failed after its first step had begun."""

    @classmethod
    def of(cls, error: WinnowError) -> Self:
        """The same error as the failure of a run, with its parts and notes."""
        failure = cls(error.problem, remedy=error.remedy, key=error.key, code=error.code)
        for note in getattr(error, "__notes__", ()):
            failure.add_note(note)
        return failure


def code_of(error: BaseException) -> int:
    """The exit code of a command that raises `error`."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    failed = isinstance(error, (RunFailed, EngineError, VerifierError, RankError))
    return BAD_INPUT if isinstance(error, WinnowError) and not failed else FAILED


def print_text(
    text: str, *, err: bool = False, paint: Callable[[str], str] = lambda text: text, newline: bool = True
) -> None:
    """Print a line on standard output, or with `err` on standard error; without `newline`, a part of a line.

    Text of models, files and users is escaped here, once for all commands, so that a terminal never interprets it.
    `paint` may add colours to the escaped text; they are removed where the output is not a terminal, and with the
    variable NO_COLOR.

    Raises DataError if the text cannot be written, for example on a full disk.
    """
    stream, name = (sys.stderr, "error") if err else (sys.stdout, "output")
    color = False if "NO_COLOR" in os.environ else None
    try:  # typer's own choice of a stream would write UTF-8 where the encoding is ASCII
        typer.echo(paint(sanitize(text)), file=stream, err=err, nl=newline, color=color)
    except BrokenPipeError:  # the reader closed the pipe: the command exits without a message
        raise
    except OSError as error:
        silence(stream)  # else Python writes its buffer once more at exit, and fails again
        raise DataError(
            f"cannot write to standard {name}: {error.strerror}",
            remedy="make room, or redirect it elsewhere",
            code="data.unwritable",
        ) from error


class CommandGroup(TyperGroup):
    """Prints a deliberate error as its code and message, and exits with its exit code; a traceback is for bugs."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return self._invoke(ctx)
        except KeyboardInterrupt as error:
            print_resume_command(error, ctx)
            raise typer.Exit(INTERRUPTED) from None
        except WinnowError as error:
            print_text(format_with_code(error), err=True)
            print_resume_command(error, ctx)
            raise typer.Exit(code_of(error)) from None

    def _invoke(self, ctx: Any) -> Any:
        """A path that may not be used is refused here, once: even to ask whether it is a folder raises the error."""
        try:
            return super().invoke(ctx)
        except PermissionError as error:
            if error.filename is None:
                raise
            raise DataError(
                f"cannot use {error.filename}: {error.strerror}",
                remedy="allow it, or name another path",
                code="data.unreadable",
            ) from error

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **extra: Any) -> Any:
        words = list(args)  # a copy, as parsing empties `args`
        context = super().make_context(info_name, args, *rest, **extra)
        context.meta[_WORDS] = words
        return context


def print_resume_command(error: BaseException, ctx: Any) -> None:
    """Print this command with the options with which it resumes, if the error is `resumable`. A rank of another
    launcher prints none, because it does not know the user's command.
    """
    options = resume_options(error)
    if options is not None and launched_count() == 1:
        words = ctx.meta[_WORDS]
        more = [word for name in options for value in options[name] for word in (f"--{name.replace('_', '-')}", value)]
        resume = [] if "--resume" in words else ["--resume"]
        print_text(f"continue with: {shlex.join(['winnow', *words, *resume, *more])}", err=True)


@contextmanager
def interruptible(begun: Callable[[], bool]) -> Iterator[None]:
    """Mark a Ctrl-C in the block as `resumable` if `begun()` is true, so that the command to continue is printed."""
    try:
        yield
    except KeyboardInterrupt as error:
        if begun():
            resumable(error)
        raise


def note_cut_row(run: Path) -> None:
    """Print a note where the last row of a run's metrics is incomplete, and therefore omitted."""
    from winnow.state.log import METRICS, ends_cut

    path = run / METRICS if run.is_dir() else run
    if ends_cut(path):
        print_text(
            f"note: the last row of {path} is incomplete and omitted: it is being written, or a writer was killed",
            err=True,
        )


def connect_to_ray(ray: Any, address: str, **options: Any) -> None:
    """Connect the package `ray` to the cluster at `address`; "local" starts one on this machine.

    Raises ConfigError if the cluster cannot be reached.
    """
    host, _, port = address.rpartition("://")[2].rpartition(":")
    try:
        if host and port.isdigit():  # else Ray itself would retry for minutes
            socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
        ray.init(address=address, **options)
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"ray = {address!r}: the cluster cannot be reached: {error}",
            remedy="start the cluster, or correct its address",
            key="ray",
            code="config.cluster",
        ) from error
