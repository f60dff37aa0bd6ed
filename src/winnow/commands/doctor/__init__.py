"""`winnow doctor`: describes this machine, the defaults of a run on it, and what is missing."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from winnow.commands.command_line import FAILED, print_text


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for a report of an issue.")] = False,
    network: Annotated[bool, typer.Option("--network", help="Test the connection to the hub.")] = False,
) -> None:
    """Describe this machine, the defaults of a run on it, and what is missing. Loads nothing."""
    from winnow.commands.doctor.examine import examine
    from winnow.commands.doctor.text import lines

    report = examine(network=network)
    for line in [json.dumps(report, indent=1, allow_nan=False)] if as_json else lines(report):
        print_text(line)
    if not report["ok"]:
        raise typer.Exit(FAILED)
