"""Commands for before a run: `winnow check`, `doctor`, `list` and `fetch`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from winnow.cli.door import FAILED, ConfigFile, Sets, Unsets, app, say


@app.command()
def check(
    config: ConfigFile,
    sets: Sets = None,
    unset: Unsets = None,
    memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Plan for this much memory on the policy's device, such as 80GiB."),
    ] = None,
    ranks: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="Plan for a run of so many processes on one machine."),
    ] = 1,
) -> None:
    """Validate a configuration and its data, print it resolved, and say what it costs. Reads no weights."""
    from winnow.commands.check import checked

    for line in checked(config, sets or (), memory, ranks, unset=unset or ()):
        say(line)


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for a report of an issue.")] = False,
    network: Annotated[bool, typer.Option("--network", help="Ask the hub whether it answers.")] = False,
) -> None:
    """Say what this machine is, what a run would take of it, and what is missing for what. Loads nothing."""
    from winnow.commands.doctor.examine import examine
    from winnow.commands.doctor.lines import lines

    report = examine(network=network)
    for line in [json.dumps(report, indent=1, allow_nan=False)] if as_json else lines(report):
        say(line)
    if not report["ok"]:
        raise typer.Exit(FAILED)


@app.command("list")
def list_(
    kind: Annotated[str | None, typer.Argument(help="losses, selectors, rewards, tasks, metrics ...")] = None,
) -> None:
    """What a configuration can name: each member with its options, their defaults, and what it does."""
    from winnow.commands.catalog import KINDS, catalog

    for block in KINDS if kind is None else catalog(kind):
        say(block)


@app.command()
def fetch(
    source: Annotated[str, typer.Argument(help="A task (gsm8k, math500, aime24 ...) or the hub id of a model.")],
    folder: Annotated[Path, typer.Argument(metavar="DEST", help="A folder that does not exist yet.")],
) -> None:
    """Bring a data set or a model of the hub into a folder; prints the SHA-256 of every file."""
    from winnow.commands.fetch import fetch_data, fetch_model, published

    data = published(source)
    for line in fetch_data(data, folder) if data else fetch_model(source, folder):
        say(line)
