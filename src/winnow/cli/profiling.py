"""`winnow profile`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from winnow.cli.door import FAILED, ConfigFile, Sets, Unsets, app, say

if TYPE_CHECKING:
    from winnow.commands.profile.profiled import Profile

ENDS = (".csv", ".json", ".png", ".svg")


@app.command()
def profile(
    config: ConfigFile,
    sets: Sets = None,
    unset: Unsets = None,
    rollouts: Annotated[str, typer.Option(metavar="N,N,...", help="Sampled side by side.")] = "8,16,32,64,128,256,512",
    kept: Annotated[str, typer.Option(metavar="N,N,...", help="Given to one update.")] = "4,8,16,32,64",
    memory_limit: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Of model, optimizer, activations, such as 2GiB.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Repetitions of a point, of which the median counts.")] = 5,
    seconds: Annotated[float, typer.Option(min=0.1, help="That a point may take once its model is loaded.")] = 120.0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The beginning of new files: OUTPUT.csv, .json, .png, .svg.")
    ] = None,
) -> None:
    """Time sampling, updates and steps against the number of rollouts, on this machine. Trains nothing that is kept."""
    from winnow.commands.profile.points import Asked, numbers
    from winnow.commands.profile.profiled import prepared
    from winnow.memory.sizes import in_bytes
    from winnow.state.output_files import check_new

    asked = Asked(
        rollouts=numbers(rollouts, least=1, what="--rollouts"),
        kept=numbers(kept, least=2, what="--kept"),
        repeats=repeats,
        seconds=seconds,
        memory_limit=None if memory_limit is None else in_bytes(memory_limit),
    )
    if output is not None and not output.name:
        raise typer.BadParameter(f"--output: {output} is a folder; give the files that are written into it a name")
    files = [] if output is None else [output.with_name(output.name + end) for end in ENDS]
    check_new(*files)
    made = prepared(config, sets or (), asked, unset=unset or ())
    _measure(made, files)
    if not any(found.ending == "measured" for found in made.found):
        raise typer.Exit(FAILED)


def _measure(profile: Profile, files: list[Path]) -> None:
    """Say each point as it is measured, and write it; then what follows from all of them."""
    import contextlib
    import signal

    from winnow.commands.profile.tables import Rows, as_json, closing, line, opening
    from winnow.installed import is_installed
    from winnow.state.output_files import write_output_json

    draws = bool(files) and is_installed("matplotlib")
    with contextlib.ExitStack() as stack:
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C, which leaves no process behind
        stack.callback(signal.signal, signal.SIGTERM, before)
        rows = Rows(files[0]) if files else None
        for text in opening(profile):
            say(text)
        for found in profile.measure():
            say(line(found, repeats=profile.asked.repeats))
            if rows is not None:
                rows.write(found)
    for text in closing(profile):
        say(text)
    if files:
        write_output_json(files[1], as_json(profile))
        if draws:
            from winnow.commands.profile.panels import draw_profile

            draw_profile(profile, *files[2:])
        say(f"written    {', '.join(map(str, files if draws else files[:2]))}")
    if files and not draws:
        say("no picture: drawing needs matplotlib; pip install 'winnow-rl[plot]'")
