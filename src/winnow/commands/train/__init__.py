"""`winnow train`: trains in this process, as one of several ranks, as their parent, or on a Ray cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, cast, get_args

import typer

from winnow.commands.command_line import FAILED, SAVED, ConfigFile, Sets, Unsets, print_resume_command
from winnow.control_groups import affinity
from winnow.errors import resumable
from winnow.view.screen import Progress

AUTO = "auto"


def _check_progress(how: str) -> str:
    if how not in get_args(Progress):
        raise typer.BadParameter(f"{how!r} is none of {', '.join(get_args(Progress))}")
    return how


def _check_ranks(ranks: str) -> str:
    if ranks != AUTO and not (ranks.isdecimal() and len(ranks) < 10 and int(ranks) > 0):
        raise typer.BadParameter(f"{ranks!r} is neither a positive number nor {AUTO}")
    return ranks


def train(
    ctx: typer.Context,
    config: ConfigFile,
    sets: Sets = None,
    unset: Unsets = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the newest checkpoint.")] = False,
    allow_change: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="A key that a resume may change; may be repeated.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="The run folder, instead of the configuration's.")] = None,
    ranks: Annotated[
        str,
        typer.Option(
            metavar="N",
            callback=_check_ranks,
            help="Number of processes of the run; auto: one per GPU, or on a CPU one per core.",
        ),
    ] = "1",
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help='A Ray cluster that runs the ranks; "local" starts one here.')
    ] = None,
    progress: Annotated[
        str,
        typer.Option(
            metavar="HOW",
            callback=_check_progress,
            help="auto (live in a terminal, else lines), plain, json (an object per event on standard output) or none.",
        ),
    ] = "auto",
    restarts: Annotated[int, typer.Option(min=0, help="On Ray: maximum number of restarts after a rank failed.")] = 3,
) -> None:
    """Train a policy. Exit code 75 means interrupted and saved."""
    allowed = affinity()  # before torch is imported
    from winnow.commands.train.here import TrainingRequest, train_here
    from winnow.state.folder import has_finished_step

    # JSON's strings are TOML's: a path with quotes or backslashes stays one value.
    set_output = [] if output is None else [f"output={json.dumps(str(output), ensure_ascii=False)}"]
    request = TrainingRequest(
        config,
        sets=(*(sets or ()), *set_output),
        unset=tuple(unset or ()),
        resume=resume,
        allow_change=tuple(allow_change or ()),
        progress=cast(Progress, progress),
    )
    if ray is not None and progress == "json":
        raise typer.BadParameter("Ray also writes to standard output: read metrics.jsonl of the run instead")
    if ray is not None and ranks == AUTO:
        raise typer.BadParameter("auto counts the cores and GPUs of this machine: give the number of ranks on Ray")
    if ray is not None:
        from winnow.commands.train.on_ray import launch_on_ray

        code = launch_on_ray(request, ray, int(ranks), restarts=restarts)
    elif ranks == "1":
        code = train_here(request)
    else:
        from winnow.commands.train.elastic import launch, ranks_for

        count = ranks_for(request, allowed) if ranks == AUTO else int(ranks)
        code = launch(request, count, allowed=allowed) if count > 1 else train_here(request)
    if code == SAVED or (code == FAILED and has_finished_step(request.members().output)):
        print_resume_command(resumable(typer.Exit(code)), ctx)
    if code:
        raise typer.Exit(code)
