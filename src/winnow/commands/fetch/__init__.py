"""`winnow fetch`: download a data set or a model from the hub into a folder, so that runs need no network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from winnow.commands.command_line import print_text


def fetch(
    source: Annotated[str, typer.Argument(help="A task (gsm8k, math500, aime24 ...) or the hub id of a model.")],
    folder: Annotated[Path, typer.Argument(metavar="DEST", help="A folder that does not exist yet.")],
) -> None:
    """Download a data set or a model from the hub into a folder, and print the SHA-256 of every file."""
    from winnow.commands.fetch.download import data_set_of, fetch_data, fetch_model

    data = data_set_of(source)
    for line in fetch_data(data, folder) if data else fetch_model(source, folder):
        print_text(line)
