"""`winnow profile`: time and memory of sampling and updates for several numbers of rollouts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from winnow.commands.command_line import FAILED, ConfigFile, Sets, Unsets, print_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from winnow_lab.profile.measurement import Profile
    from winnow_lab.profile.points import PointResult

SUFFIXES = (".csv", ".json", ".png", ".svg")


def profile(
    config: ConfigFile,
    sets: Sets = None,
    unset: Unsets = None,
    rollouts: Annotated[
        str, typer.Option(metavar="N,N,...", help="Rollouts sampled at once.")
    ] = "8,16,32,64,128,256,512",
    kept: Annotated[str, typer.Option(metavar="N,N,...", help="Rollouts in one update.")] = "4,8,16,32,64",
    memory_limit: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Limit for model, optimizer and activations, such as 2GiB."),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Repetitions per point; their median is reported.")] = 5,
    seconds: Annotated[
        float, typer.Option(min=0.1, max=86_400, help="Time limit per point, excluding loading.")
    ] = 120.0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Prefix of the new files OUTPUT.csv, .json, .png, .svg.")
    ] = None,
) -> None:
    """Time sampling, updates and steps on this machine for several numbers of rollouts. Saves no model."""
    from winnow.state.disk import check_new
    from winnow.view.text import parse_bytes
    from winnow_lab.profile.measurement import prepare_profile
    from winnow_lab.profile.points import ProfileRequest, parse_counts

    request = ProfileRequest(
        rollouts=parse_counts(rollouts, least=1, what="--rollouts"),
        kept=parse_counts(kept, least=2, what="--kept"),
        repeats=repeats,
        seconds=seconds,
        memory_limit=None if memory_limit is None else parse_bytes(memory_limit),
    )
    if output is not None and not output.name:
        raise typer.BadParameter(f"--output: {output} is a folder; add a prefix for the names of the files")
    files = [] if output is None else [output.with_name(output.name + suffix) for suffix in SUFFIXES]
    check_new(*files)
    prepared_profile = prepare_profile(config, sets or (), request, unset=unset or ())
    _measure(prepared_profile, files)
    if not any(point.ending == "measured" for point in prepared_profile.found):
        raise typer.Exit(FAILED)


def _until_terminated(points: Iterable[Any]) -> Iterator[PointResult]:
    """Points as they are measured. SIGTERM meanwhile acts as Ctrl-C, so that no process remains."""
    import signal

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield from points
    finally:
        signal.signal(signal.SIGTERM, before)


def _measure(profile: Profile, files: list[Path]) -> None:
    """Print and write each point as it is measured; then print and write what follows from all points."""
    from winnow.installed import is_installed
    from winnow.state.disk import write_output_json
    from winnow_lab.profile.text import as_json, closing, line, opening, write_rows

    draws = bool(files) and is_installed("matplotlib")
    if files:
        write_rows(files[0], [])
    for text in opening(profile):
        print_text(text)
    for point in _until_terminated(profile.measure()):
        print_text(line(point, repeats=profile.request.repeats))
        if files:  # after each point, so that a later failure loses no measurement
            write_rows(files[0], profile.found)
    for text in closing(profile):
        print_text(text)
    if files:
        write_output_json(files[1], as_json(profile))
        if draws:
            from winnow_lab.profile.picture import draw_profile

            draw_profile(profile, *files[2:])
        print_text(f"written    {', '.join(map(str, files if draws else files[:2]))}")
    if files and not draws:
        print_text("note: there is no picture without matplotlib: pip install 'winnow-rl[plot]'")
