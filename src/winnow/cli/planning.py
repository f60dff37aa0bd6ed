"""Commands for use before a run: `winnow check`, `doctor`, `list` and `fetch`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from winnow.cli.door import FAILED, ConfigFile, Sets, Unsets, app, print_text


@app.command()
def check(
    config: ConfigFile,
    sets: Sets = None,
    unset: Unsets = None,
    memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Plan for a policy's device with this memory, such as 80GiB."),
    ] = None,
    ranks: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="Plan for a run of N processes on one machine."),
    ] = 1,
) -> None:
    """Validate a configuration and its data, and print it resolved with its costs. Reads no weights."""
    from winnow.commands.check.lines import check_lines

    for line in check_lines(config, sets or (), memory, ranks, unset=unset or ()):
        print_text(line)


@app.command()
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


@app.command("list")
def list_(
    kind: Annotated[str | None, typer.Argument(help="losses, selectors, rewards, tasks, metrics ...")] = None,
) -> None:
    """List what a configuration can name: each member with its options, their defaults, and its purpose."""
    from winnow.commands.list.catalog import KINDS, catalog

    for block in KINDS if kind is None else catalog(kind):
        print_text(block)


@app.command()
def fetch(
    source: Annotated[str, typer.Argument(help="A task (gsm8k, math500, aime24 ...) or the hub id of a model.")],
    folder: Annotated[Path, typer.Argument(metavar="DEST", help="A folder that does not exist yet.")],
) -> None:
    """Download a data set or a model from the hub into a folder, and print the SHA-256 of every file."""
    from winnow.commands.fetch.download import data_set_of, fetch_data, fetch_model

    data = data_set_of(source)
    for line in fetch_data(data, folder) if data else fetch_model(source, folder):
        print_text(line)
