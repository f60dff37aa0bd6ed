"""The command line: `winnow NAME` is declared in commands/NAME, with its work beside the declaration.

A command is imported when it is called, and imports its work inside the call: no help text needs torch.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from winnow.commands.command_line import FAILED, CommandGroup, print_text
from winnow.version import __version__
from winnow.view.screen import escape_logs, escape_unprintable

# name -> function of the module commands/NAME, in the order in which `winnow --help` lists them
DECLARED = {
    "train": "train",
    "sweep": "sweep",
    "eval": "evaluate",
    "init": "init",
    "check": "check",
    "doctor": "doctor",
    "list": "list_members",
    "fetch": "fetch",
    "profile": "profile",
    "show": "show",
    "plot": "plot",
    "report": "report",
    "export": "export",
    "compare": "compare",
    "score": "score",
    "replay": "replay",
    "audit": "audit",
}


class Commands(Mapping[str, Any]):
    """name -> command. A command is imported when it is read."""

    def __init__(self) -> None:
        self._imported: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._imported:
            function_name = DECLARED[name]
            function = getattr(importlib.import_module(f"winnow.commands.{name}"), function_name)
            alone = typer.Typer(add_completion=False)
            alone.command(name)(function)
            self._imported[name] = typer.main.get_command(alone)
        return self._imported[name]

    def __iter__(self) -> Iterator[str]:
        return iter(DECLARED)

    def __len__(self) -> int:
        return len(DECLARED)


class DeclaredCommands(CommandGroup):
    """The commands of `DECLARED`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.commands: Any = Commands()

    def format_help(self, *arguments: Any) -> None:
        """List the commands without importing them, which would take a second."""
        self.commands = {name: TyperCommand(name, help=docstring_of(name)) for name in DECLARED}
        super().format_help(*arguments)


def docstring_of(command: str) -> str | None:
    """The docstring of a command's function, read from its file."""
    spec = importlib.util.find_spec(f"winnow.commands.{command}")
    assert spec is not None
    assert spec.origin is not None
    module = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    functions = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}
    return ast.get_docstring(functions[DECLARED[command]])


app = typer.Typer(
    cls=DeclaredCommands,
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
def _options_of_all(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None: ...


def main() -> None:
    """The `winnow` command."""
    escape_unprintable()
    escape_logs()
    try:
        app()
    except SystemExit as end:
        _exit_despite_trackers(end.code if isinstance(end.code, int) else FAILED if end.code else 0)
        raise
    except Exception as error:  # a bug in winnow or in a user's function
        print_text("".join(traceback.format_exception(error)).rstrip(), err=True)
        _exit_despite_trackers(FAILED)
        sys.exit(FAILED)


def _exit_despite_trackers(code: int) -> None:
    """`exit_if_running` of trackers/feed.py, where a tracker may run: a command without a run does not import them."""
    if "winnow.trackers.feed" in sys.modules:
        from winnow.trackers.feed import exit_if_running

        exit_if_running(code)
