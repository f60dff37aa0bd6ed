"""`winnow profile`: time and memory of sampling and updates for several numbers of rollouts, and a plan of a step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from winnow.commands.command_line import FAILED, ConfigFile, Sets, Unsets, print_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from winnow.algos.costs import StepCosts
    from winnow_lab.profile.measurement import Profile
    from winnow_lab.profile.plan import StepPlan
    from winnow_lab.profile.points import PointResult, ProfileRequest


SUFFIXES = (".csv", ".json", ".png", ".svg")
PLAN_SUFFIXES = (".json", ".costs.json")
PLAN = "Plan of a step"
Run = Annotated[
    Path | None,
    typer.Option(
        metavar="RUN", help="A run, also unfinished, with pass rates, lengths and seconds.", rich_help_panel=PLAN
    ),
]
Costs = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Read the cost curves from FILE instead of measuring them.", rich_help_panel=PLAN
    ),
]
Prompts = Annotated[
    int | None,
    typer.Option(
        min=1, help="Prompts per step. Default: the best of 1/4 to 4 times the current.", rich_help_panel=PLAN
    ),
]
Memory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Memory of the policy's device, such as 80GiB. Default: the free memory.",
        rich_help_panel=PLAN,
    ),
]
Window = Annotated[int, typer.Option(min=1, help="Number of the run's last steps to read.", rich_help_panel=PLAN)]
Rate = Annotated[
    Literal["fixed", "tuned"],
    typer.Option(help="Keep the learning rate, or tune it for each candidate.", rich_help_panel=PLAN),
]
Until = Annotated[
    float | None,
    typer.Option(
        min=0, max=1, help="Count progress up to this mean pass rate. Default: the current.", rich_help_panel=PLAN
    ),
]
Noises = Annotated[
    float | None,
    typer.Option(min=0, help="Noise of a rollout's gradient, relative to the signal.", rich_help_panel=PLAN),
]
Between = Annotated[
    float | None,
    typer.Option(min=0, help="Noise between the gradients of prompts, relative to the signal.", rich_help_panel=PLAN),
]
Spread = Annotated[
    float | None,
    typer.Option(min=0, max=1, help="Fraction of the weights that carry the gradient.", rich_help_panel=PLAN),
]
AsMeasured = Annotated[
    bool,
    typer.Option(
        "--as-measured", help="Use the curves' seconds without scaling them to the run.", rich_help_panel=PLAN
    ),
]


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
    seconds: Annotated[float, typer.Option(min=0.1, help="Time limit per point, excluding loading.")] = 120.0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Prefix of the new files OUTPUT.csv, .json, .png, .svg.")
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Choose n, m and the prompts per step.")] = False,
    run: Run = None,
    costs: Costs = None,
    prompts: Prompts = None,
    memory: Memory = None,
    window: Window = 20,
    learning_rate: Rate = "fixed",
    until: Until = None,
    noise: Noises = None,
    between: Between = None,
    spread: Spread = None,
    as_measured: AsMeasured = False,
) -> None:
    """Time sampling, updates and steps on this machine for several numbers of rollouts. Saves no model.
    With --plan, choose n, m and the prompts per step from these times and a run's statistics.
    """
    from winnow.memory.plan import parse_bytes
    from winnow.state.disk import check_new
    from winnow_lab.profile.measurement import prepare_profile
    from winnow_lab.profile.points import ProfileRequest, parse_counts

    of_plan = {
        "--run": run, "--costs": costs, "--prompts": prompts, "--memory": memory, "--until": until, "--noise": noise,
        "--between": between, "--spread": spread, "--as-measured": as_measured or None,
    }  # fmt: skip
    if not plan and (given := [name for name, value in of_plan.items() if value is not None]):
        raise typer.BadParameter(f"{given[0]} is for a plan; add --plan")
    if plan and run is None:
        raise typer.BadParameter("--plan needs --run RUN, a run of a few steps: its log contains the pass rates")

    request = ProfileRequest(
        rollouts=parse_counts(rollouts, least=1, what="--rollouts"),
        kept=parse_counts(kept, least=2, what="--kept"),
        repeats=repeats,
        seconds=seconds,
        memory_limit=None if memory_limit is None else parse_bytes(memory_limit),
    )
    if output is not None and not output.name:
        raise typer.BadParameter(f"--output: {output} is a folder; add a prefix for the names of the files")
    suffixes = PLAN_SUFFIXES[: 1 if costs else 2] if plan else SUFFIXES
    files = [] if output is None else [output.with_name(output.name + suffix) for suffix in suffixes]
    check_new(*files)
    if plan and run is not None:
        from winnow_lab.costs import read_costs
        from winnow_lab.profile.plan import NOISE, SPREAD, PlanRequest, prepare_plan
        from winnow_lab.profile.plan_text import opening_lines

        wanted = PlanRequest(
            prompts=prompts,
            memory=None if memory is None else parse_bytes(memory),
            law=learning_rate,
            noise=type(NOISE)(NOISE.rollout if noise is None else noise, NOISE.between if between is None else between),
            spread=SPREAD if spread is None else spread,
            calibrate=not as_measured,
            until=until,
        )
        given_costs = None if costs is None else read_costs(costs)
        planned = prepare_plan(config, sets or (), run, wanted, window=window, unset=unset or ())
        for text in opening_lines(planned):
            print_text(text)
        step_costs = given_costs or _measured_costs(planned, config, sets or (), unset or (), request)
        _print_plan(planned, step_costs, config, files)
        return
    prepared_profile = prepare_profile(config, sets or (), request, unset=unset or ())
    _measure(prepared_profile, files)
    if not any(point.ending == "measured" for point in prepared_profile.found):
        raise typer.Exit(FAILED)


def _measured_costs(
    plan: StepPlan, config: Path, sets: list[str] | tuple[()], unset: list[str] | tuple[()], request: ProfileRequest
) -> StepCosts:
    """Measure the two curves of a plan now, and print each point."""
    from winnow_lab.profile.plan import costs_of, curves_to_measure, measure_points
    from winnow_lab.profile.text import line, opening

    profile = curves_to_measure(config, sets, plan, request, unset=unset)
    for text in opening(profile):
        print_text(text)
    for point in _until_terminated(measure_points(profile)):
        print_text(line(point, repeats=request.repeats))
    print_text("")
    return costs_of(profile)


def _print_plan(plan: StepPlan, costs: StepCosts, config: Path, files: list[Path]) -> None:
    """Print the plan with these costs. Write it to `files`, with the costs where they were measured."""
    from winnow.state.disk import write_output_json
    from winnow_lab.costs import as_json
    from winnow_lab.profile.plan_text import as_plan_json, plan_lines

    clock = plan.clock(costs)
    candidates = plan.candidates(clock)
    for text in plan_lines(plan, clock, candidates, config):
        print_text(text)
    contents = (as_plan_json(plan, clock, candidates), as_json(costs))
    for path, content in zip(files, contents, strict=False):
        write_output_json(path, content)
    if files:
        print_text(f"written    {', '.join(map(str, files))}")


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
    from winnow_lab.profile.text import Rows, as_json, closing, line, opening

    draws = bool(files) and is_installed("matplotlib")
    rows = Rows(files[0]) if files else None
    for text in opening(profile):
        print_text(text)
    for point in _until_terminated(profile.measure()):
        print_text(line(point, repeats=profile.request.repeats))
        if rows is not None:
            rows.write(point)
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
