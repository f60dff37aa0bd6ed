"""`winnow profile`, and its plan of a step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from winnow.cli.door import FAILED, ConfigFile, Sets, Unsets, app, say

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from winnow.algos.costs import StepCosts
    from winnow.commands.profile.points import Asked, Found
    from winnow.commands.profile.profiled import Profile
    from winnow.commands.profile.step_plan import StepPlan

ENDS = (".csv", ".json", ".png", ".svg")
PLAN_ENDS = (".json", ".costs.json")
PLAN = "Plan of a step"
Run = Annotated[
    Path | None,
    typer.Option(metavar="RUN", help="A finished or running run: pass rates, lengths, seconds.", rich_help_panel=PLAN),
]
Costs = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Cost curves, instead of measuring them now.", rich_help_panel=PLAN),
]
Prompts = Annotated[
    int | None,
    typer.Option(min=1, help="Prompts of a step. Default: the best of 1/4 to 4 times now.", rich_help_panel=PLAN),
]
Memory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE", help="Of the policy's device, such as 80GiB. Default: what is free.", rich_help_panel=PLAN
    ),
]
Window = Annotated[int, typer.Option(min=1, help="Last steps of the run that count.", rich_help_panel=PLAN)]
Rate = Annotated[
    Literal["fixed", "tuned"],
    typer.Option(help="Whether the learning rate stays, or is tuned for each candidate.", rich_help_panel=PLAN),
]
Until = Annotated[
    float | None,
    typer.Option(min=0, max=1, help="Count progress up to this mean pass rate. Default: now.", rich_help_panel=PLAN),
]
Noises = Annotated[
    float | None, typer.Option(min=0, help="Of a rollout's gradient, over the signal.", rich_help_panel=PLAN)
]
Between = Annotated[
    float | None, typer.Option(min=0, help="Of the gradients of prompts, over the signal.", rich_help_panel=PLAN)
]
Spread = Annotated[
    float | None,
    typer.Option(min=0, max=1, help="Of the weights, those that carry the gradient.", rich_help_panel=PLAN),
]
AsMeasured = Annotated[
    bool, typer.Option("--as-measured", help="The curves' seconds, not at the run's scale.", rich_help_panel=PLAN)
]


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
    plan: Annotated[bool, typer.Option("--plan", help="Choose n, m and the prompts of a step.")] = False,
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
    """Time sampling, updates and steps against the number of rollouts, on this machine. Trains nothing that is kept.
    With --plan, choose n, m and the prompts of a step by these times and a run's statistics.
    """
    from winnow.commands.profile.points import Asked, numbers
    from winnow.commands.profile.profiled import prepared
    from winnow.memory.sizes import in_bytes
    from winnow.state.output_files import check_new

    of_plan = {
        "--run": run, "--costs": costs, "--prompts": prompts, "--memory": memory, "--until": until, "--noise": noise,
        "--between": between, "--spread": spread, "--as-measured": as_measured or None,
    }  # fmt: skip
    if not plan and (given := [name for name, value in of_plan.items() if value is not None]):
        raise typer.BadParameter(f"{given[0]} is for a plan; add --plan")
    if plan and run is None:
        raise typer.BadParameter("--plan needs --run RUN, a run of a few steps: its log has the pass rates")

    asked = Asked(
        rollouts=numbers(rollouts, least=1, what="--rollouts"),
        kept=numbers(kept, least=2, what="--kept"),
        repeats=repeats,
        seconds=seconds,
        memory_limit=None if memory_limit is None else in_bytes(memory_limit),
    )
    if output is not None and not output.name:
        raise typer.BadParameter(f"--output: {output} is a folder; give the files that are written into it a name")
    ends = PLAN_ENDS[: 1 if costs else 2] if plan else ENDS
    files = [] if output is None else [output.with_name(output.name + end) for end in ends]
    check_new(*files)
    if plan and run is not None:
        from winnow.commands.profile.plan_lines import opening_lines
        from winnow.commands.profile.planned_step import prepared_plan
        from winnow.commands.profile.step_plan import NOISE, SPREAD, PlanAsked
        from winnow.state.cost_file import read_costs

        wanted = PlanAsked(
            prompts=prompts,
            memory=None if memory is None else in_bytes(memory),
            law=learning_rate,
            noise=type(NOISE)(NOISE.rollout if noise is None else noise, NOISE.between if between is None else between),
            spread=SPREAD if spread is None else spread,
            calibrate=not as_measured,
            until=until,
        )
        known = None if costs is None else read_costs(costs)
        planned = prepared_plan(config, sets or (), run, wanted, window=window, unset=unset or ())
        for text in opening_lines(planned):
            say(text)
        found = known or _measured_costs(planned, config, sets or (), unset or (), asked)
        _say_plan(planned, found, config, files)
        return
    made = prepared(config, sets or (), asked, unset=unset or ())
    _measure(made, files)
    if not any(found.ending == "measured" for found in made.found):
        raise typer.Exit(FAILED)


def _measured_costs(
    plan: StepPlan, config: Path, sets: list[str] | tuple[()], unset: list[str] | tuple[()], asked: Asked
) -> StepCosts:
    """Measure the two curves of a plan now, and print each point."""
    from winnow.commands.profile.planned_step import curves_to_measure, measured_costs, measured_points
    from winnow.commands.profile.tables import line, opening

    profile = curves_to_measure(config, sets, plan, asked, unset=unset)
    for text in opening(profile):
        say(text)
    for found in _until_terminated(measured_points(profile)):
        say(line(found, repeats=asked.repeats))
    say("")
    return measured_costs(profile)


def _say_plan(plan: StepPlan, costs: StepCosts, config: Path, files: list[Path]) -> None:
    """Print the plan with these costs, and write it, and the costs where they were measured."""
    from winnow.commands.profile.plan_lines import as_plan_json, plan_lines
    from winnow.state.cost_file import as_json
    from winnow.state.output_files import write_output_json

    clock = plan.clock(costs)
    found = plan.candidates(clock)
    for text in plan_lines(plan, clock, found, config):
        say(text)
    contents = (as_plan_json(plan, clock, found), as_json(costs))
    for path, content in zip(files, contents, strict=False):
        write_output_json(path, content)
    if files:
        say(f"written    {', '.join(map(str, files))}")


def _until_terminated(found: Iterable[Any]) -> Iterator[Found]:
    """Points as they are measured; a signal to terminate then acts as Ctrl-C does, which leaves no process behind."""
    import signal

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield from found
    finally:
        signal.signal(signal.SIGTERM, before)


def _measure(profile: Profile, files: list[Path]) -> None:
    """Say each point as it is measured, and write it; then what follows from all of them."""
    from winnow.commands.profile.tables import Rows, as_json, closing, line, opening
    from winnow.installed import is_installed
    from winnow.state.output_files import write_output_json

    draws = bool(files) and is_installed("matplotlib")
    rows = Rows(files[0]) if files else None
    for text in opening(profile):
        say(text)
    for found in _until_terminated(profile.measure()):
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
