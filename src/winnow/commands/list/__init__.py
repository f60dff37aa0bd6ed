"""`winnow list`: what a configuration can name."""

from __future__ import annotations

from typing import Annotated

import typer

from winnow.commands.command_line import print_text


def list_members(
    kind: Annotated[str | None, typer.Argument(help="losses, selectors, rewards, tasks, metrics ...")] = None,
) -> None:
    """List what a configuration can name: each member with its options, their defaults, and its purpose."""
    from winnow.commands.list.catalog import KINDS, catalog

    for block in KINDS if kind is None else catalog(kind):
        print_text(block)
