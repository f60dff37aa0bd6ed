"""The command line: `winnow NAME` is declared in commands/NAME, with its work beside the declaration.

An installed package adds a command by an entry point of the group "winnow.commands", which names its function. A
command is imported when it is called, and imports its work inside the call: no help text needs torch.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from winnow.commands.command_line import FAILED, CommandGroup, print_text
from winnow.errors import INTERRUPTIONS, ConfigError
from winnow.installed import COMMANDS, entry_points, package_of, registering
from winnow.version import __version__
from winnow.view.screen import escape_logs, escape_unprintable

# heading -> name -> function of the module commands/NAME, in the order in which `winnow --help` lists them
DECLARED = {
    "Train and evaluate": {"init": "init", "check": "check", "train": "train", "eval": "evaluate"},
    "Read a run": {"show": "show", "plot": "plot", "export": "export"},
    "Members, data, machine": {"list": "list_members", "fetch": "fetch", "doctor": "doctor"},
}


@dataclass(frozen=True)
class Command:
    """The function of a command, which is imported when the command is called."""

    name: str
    module: str
    function: str
    package: str = ""  # that adds it, as "a-package 1.0"; empty for one of winnow's own modules

    def load(self) -> Any:
        """The command. Raises ConfigError if that of an installed package cannot be imported, or is no function."""
        try:
            alone = typer.Typer(add_completion=False)
            alone.command(self.name)(getattr(importlib.import_module(self.module), self.function))
            return typer.main.get_command(alone)
        except INTERRUPTIONS:
            raise
        except BaseException as error:
            if not self.package:
                raise
            raise ConfigError(
                f"the command {self.name!r} of {self.package} cannot be imported from {self.module}:{self.function}: "
                f"{type(error).__name__}: {error}",
                remedy=f"repair or uninstall {self.package}",
                code="config.not_installed",
            ) from error

    @property
    def help(self) -> str | None:
        """The docstring of the function, read from its file."""
        functions = (node for node in syntax_of(self.module).body if isinstance(node, ast.FunctionDef))
        return next((ast.get_docstring(node) for node in functions if node.name == self.function), None)

    @property
    def heading(self) -> str:
        """The heading in `winnow --help`; of a package, the first sentence of its docstring."""
        if not self.package:
            return next(heading for heading, functions in DECLARED.items() if self.name in functions)
        package = self.module.partition(".")[0]
        about = ast.get_docstring(syntax_of(package)) or f"Commands of {self.package}"
        sentence = re.split(r"[.]?\n|[.] |[.]$", about)[0]
        return f"{sentence} ({package})"


OWN = {
    name: Command(name, f"winnow.commands.{name}", function)
    for functions in DECLARED.values()
    for name, function in functions.items()
}


def known_commands() -> dict[str, Command]:
    """name -> command: winnow's own, then those of installed packages. A name is the first one's that has it."""
    known = dict(OWN)
    for point in entry_points(COMMANDS):
        known.setdefault(point.name, Command(point.name, point.module, point.attr, package_of(point)))
    return known


def syntax_of(module: str) -> ast.Module:
    """The syntax tree of a module, which is not imported, as no package around it is. Empty without a readable file."""
    name, *inner = module.split(".")
    try:
        spec = importlib.util.find_spec(name)
        for part in inner:
            name, places = f"{name}.{part}", None if spec is None else spec.submodule_search_locations
            spec = None if places is None else PathFinder.find_spec(name, places)
        return ast.parse("" if spec is None else Path(spec.origin or "").read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return ast.parse("")


class Commands(Mapping[str, Any]):
    """name -> command. A command is imported when it is read."""

    def __init__(self) -> None:
        self._imported: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._imported:
            self._imported[name] = (OWN.get(name) or known_commands()[name]).load()
        return self._imported[name]

    def __iter__(self) -> Iterator[str]:
        return iter(known_commands())

    def __len__(self) -> int:
        return len(known_commands())


class AllCommands(CommandGroup):
    """The commands of winnow and of installed packages."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.commands: Any = Commands()

    def format_help(self, *arguments: Any) -> None:
        """List the commands without importing them, which would take a second."""
        self.commands = {
            name: TyperCommand(name, help=command.help, rich_help_panel=command.heading)
            for name, command in known_commands().items()
        }
        super().format_help(*arguments)
        if missing := registering():
            print_text(f"Further commands are not installed here: {missing}")

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in self.commands and (missing := registering()):
            raise ConfigError(
                f"the command {args[0]!r} is not installed here", remedy=missing, code="config.not_installed"
            )
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=AllCommands,
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
