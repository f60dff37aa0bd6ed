"""What every command shares: how errors end it, and the arguments that several take."""

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
from winnow.report import tracker_threads
from winnow.report.foreign_logs import escape_logs
from winnow.report.screen import escape_unprintable, silence
from winnow.report.text import safe
from winnow.version import __version__

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
    "say",
    "say_what_goes_on",
]


def say(text: str, *, err: bool = False) -> None:
    """Print what a command says, on standard output or as an error. Whatever came from a model, a file or a user is
    escaped here, once for all commands, and never interpreted by a terminal.

    Raises DataError where it cannot be written, as to a file on a full disk.
    """
    try:
        typer.echo(safe(text), err=err)
    except BrokenPipeError:  # the reader has left, which ends the command without a word
        raise
    except OSError as error:
        stream, name = (sys.stderr, "error") if err else (sys.stdout, "output")
        silence(stream)  # Python would write what is left once more as it ends
        raise DataError(
            f"cannot write to standard {name}: {error.strerror}",
            remedy="make room, or send it elsewhere",
            code="data.unwritable",
        ) from error


class Door(TyperGroup):
    """Turns deliberate errors into their message and an exit code; a traceback is for bugs."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            say_what_goes_on(error, ctx)
            raise typer.Exit(INTERRUPTED) from None
        except WinnowError as error:
            say(format_with_code(error), err=True)
            say_what_goes_on(error, ctx)
            raise typer.Exit(code_of(error)) from None

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **extra: Any) -> Any:
        words = list(args)  # parsing empties `args`
        context = super().make_context(info_name, args, *rest, **extra)
        context.meta[_WORDS] = words
        return context


_WORDS = "winnow.words"  # of a call, in its context


def say_what_goes_on(error: BaseException, ctx: Any) -> None:
    """Print the command of this call with the options with which it continues, if an error is `resumable`."""
    options = resume_options(error)
    if options is not None:
        words = ctx.meta[_WORDS]
        more = [word for name in options for value in options[name] for word in (f"--{name.replace('_', '-')}", value)]
        resume = [] if "--resume" in words else ["--resume"]
        say(f"go on with: {shlex.join(['winnow', *words, *resume, *more])}", err=True)


@contextmanager
def interruptible(begun: Callable[[], bool]) -> Iterator[None]:
    """Have an interruption print the command that goes on, where by then something is there to go on with."""
    try:
        yield
    except KeyboardInterrupt as error:
        if begun():
            resumable(error)
        raise


app = typer.Typer(
    cls=Door,
    help="RL with verifiable rewards that treats the rollout budget as the thing to optimise.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _say_version(wanted: bool) -> None:
    if wanted:
        say(f"winnow {__version__}")
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
Unsets = Annotated[
    list[str] | None,
    typer.Option("--unset", metavar="A.B", help="Leave out a key or a table of the file; may be repeated."),
]


def main() -> None:
    """The `winnow` command."""
    escape_unprintable()
    escape_logs()
    try:
        app()
    except SystemExit as end:
        tracker_threads.leave(end.code if isinstance(end.code, int) else FAILED if end.code else 0)
        raise
    except Exception as error:  # a bug, of winnow's or of a function that a user gave
        say("".join(traceback.format_exception(error)).rstrip(), err=True)
        tracker_threads.leave(FAILED)
        sys.exit(FAILED)
