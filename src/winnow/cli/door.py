"""What all commands share: the printing of text and errors, exit codes, and the arguments of several commands."""

from __future__ import annotations

import shlex
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from winnow.commands.exit_codes import BAD_INPUT, FAILED, INTERRUPTED, SAVED, code_of
from winnow.errors import DataError, WinnowError, format_with_code, resumable, resume_options
from winnow.trackers.feed import exit_if_running
from winnow.version import __version__
from winnow.view.screen import escape_logs, escape_unprintable, silence
from winnow.view.text import sanitize

__all__ = [
    "BAD_INPUT",
    "FAILED",
    "SAVED",
    "ConfigFile",
    "RunPath",
    "Sets",
    "Unsets",
    "app",
    "interruptible",
    "main",
    "print_resume_command",
    "print_text",
]


def print_text(text: str, *, err: bool = False) -> None:
    """Print on standard output, or with `err` on standard error. Text of models, files and users is escaped here, once
    for all commands, so that a terminal never interprets it.

    Raises DataError where the text cannot be written, for example on a full disk.
    """
    try:
        typer.echo(sanitize(text), err=err)
    except BrokenPipeError:  # the reader closed the pipe: the command exits without a message
        raise
    except OSError as error:
        stream, name = (sys.stderr, "error") if err else (sys.stdout, "output")
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
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            print_resume_command(error, ctx)
            raise typer.Exit(INTERRUPTED) from None
        except WinnowError as error:
            print_text(format_with_code(error), err=True)
            print_resume_command(error, ctx)
            raise typer.Exit(code_of(error)) from None

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **extra: Any) -> Any:
        words = list(args)  # a copy, as parsing empties `args`
        context = super().make_context(info_name, args, *rest, **extra)
        context.meta[_WORDS] = words
        return context


_WORDS = "winnow.words"  # key of the command's arguments in its context


def print_resume_command(error: BaseException, ctx: Any) -> None:
    """Print this command with the options with which it resumes, if the error is `resumable`."""
    options = resume_options(error)
    if options is not None:
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


app = typer.Typer(
    cls=CommandGroup,
    help="RL with verifiable rewards that treats the rollout budget as the thing to optimise.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print_text(f"winnow {__version__}")
        raise typer.Exit


@app.callback()
def door(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None: ...


ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="A TOML file.")]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override a key; may be repeated.")]
Unsets = Annotated[
    list[str] | None,
    typer.Option("--unset", metavar="A.B", help="Remove a key or a table of the file; may be repeated."),
]


def main() -> None:
    """The `winnow` command."""
    escape_unprintable()
    escape_logs()
    try:
        app()
    except SystemExit as end:
        exit_if_running(end.code if isinstance(end.code, int) else FAILED if end.code else 0)
        raise
    except Exception as error:  # a bug in winnow or in a user's function
        print_text("".join(traceback.format_exception(error)).rstrip(), err=True)
        exit_if_running(FAILED)
        sys.exit(FAILED)
