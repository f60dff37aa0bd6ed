"""`winnow list`: what a configuration can name."""

from __future__ import annotations

from typing import Annotated

import typer

from winnow.commands.command_line import print_text


def list_members(
    kind: Annotated[str | None, typer.Argument(help="recipes, losses, selectors, rewards, tasks, metrics ...")] = None,
) -> None:
    """List the recipes, or what a configuration can name: members with their options, defaults and purpose; keys."""
    from winnow.commands.list.catalog import KINDS, catalog

    for block in KINDS if kind is None else catalog(kind):
        print_text(block)
