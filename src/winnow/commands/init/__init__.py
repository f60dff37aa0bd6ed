"""`winnow init`: a folder with a configuration and a reward that train as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from winnow.commands.command_line import print_text


def init(
    folder: Annotated[Path, typer.Argument(metavar="NAME", help="A folder that does not exist yet.")],
    recipe: Annotated[str, typer.Option(help="The recipe to start from: winnow list recipes.")] = "arithmetic",
) -> None:
    """Make a folder with a configuration that explains its keys, and with a reward function. Both train as they are."""
    from winnow.commands.init.project import write_project

    project = write_project(folder, recipe)
    print_text(f"written    {project.config}, {project.reward}")
    print_text(f"train it:  {project.command}")
