"""`winnow plan`: how many rollouts, prompts and trained rollouts a step should have, from a log or before a run."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from winnow.commands.command_line import Sets, Unsets, print_text
from winnow.recipes import find_config

BEFORE = "Without a run"
GRADIENT = "The gradient's noise (docs/planner.md)"


def plan(
    target: Annotated[
        str,
        typer.Argument(
            metavar="RUN|CONFIG", help="The folder of a run of winnow, TRL, verl or prime-rl; or a configuration."
        ),
    ],
    sets: Sets = None,
    unset: Unsets = None,
    costs: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Cost curves: the .json of winnow profile, or a file of configs/costs."),
    ] = None,
    as_measured: Annotated[
        bool, typer.Option("--as-measured", help="Use the curves' seconds without scaling them to the run.")
    ] = False,
    memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Memory of the policy's device, such as 80GiB. Default: the free memory."),
    ] = None,
    window: Annotated[int, typer.Option(min=1, help="Number of the run's last steps to read.")] = 20,
    draws: Annotated[int, typer.Option(min=20, help="Draws of the bootstrap, or worlds of the prior.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draws.")] = 0,
    learning_rate: Annotated[
        Literal["fixed", "tuned"], typer.Option(help="Keep the learning rate, or tune it for each setting.")
    ] = "tuned",
    advantage: Annotated[
        Literal["grpo", "dr_grpo", "rloo"] | None,
        typer.Option(help="The advantage of another trainer's run. Default: grpo."),
    ] = None,
    pass_rate: Annotated[
        float,
        typer.Option(help="The median of the prompts that are sometimes solved.", rich_help_panel=BEFORE),
    ] = 0.3,
    length: Annotated[
        float | None,
        typer.Option(min=1, help="Tokens of a rollout. Default: half of the most.", rich_help_panel=BEFORE),
    ] = None,
    noise: Annotated[float | None, typer.Option(min=0, help="Of a rollout.", rich_help_panel=GRADIENT)] = None,
    between: Annotated[float | None, typer.Option(min=0, help="Between prompts.", rich_help_panel=GRADIENT)] = None,
    spread: Annotated[
        float | None, typer.Option(min=0, max=1, help="Fraction of the weights with it.", rich_help_panel=GRADIENT)
    ] = None,
    trust_run: Annotated[
        bool, typer.Option("--trust-run", help="Import the files that the run names, also another user's.")
    ] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="A new JSON file.")] = None,
) -> None:
    """Choose n, m and the prompts of a step: from a run's log, with intervals, or before a run."""
    from winnow.algos.step_plan import NOISE, SPREAD
    from winnow.state.cost_files import read_costs
    from winnow.state.disk import check_new, write_output_json
    from winnow.training.size_fits import PlanRequest
    from winnow.view.text import parse_bytes

    if output is not None:
        check_new(output)
    request = PlanRequest(
        memory=None if memory is None else parse_bytes(memory),
        law=learning_rate,
        noise=type(NOISE)(NOISE.rollout if noise is None else noise, NOISE.between if between is None else between),
        spread=SPREAD if spread is None else spread,
        calibrate=not as_measured,
    )
    curves = None if costs is None else read_costs(costs)
    run = Path(os.path.expanduser(target))
    if run.is_dir():
        if sets or unset:
            raise typer.BadParameter("--set and --unset change a configuration, and a run has its own already")
        from winnow_lab.plan.evidence import evidence_of
        from winnow_lab.plan.from_log import LogPlan
        from winnow_lab.plan.text import log_json, log_lines

        evidence = evidence_of(run, window=window, credit=advantage)
        if noise is None and between is None and evidence.noise is not None:
            measured = type(NOISE)(NOISE.rollout * evidence.noise, NOISE.between * evidence.noise)
            request = replace(request, noise=measured, measured=True)
        from_log = LogPlan(evidence, request, curves, draws, seed, trust_run)
        lines, content = list(log_lines(from_log)), log_json(from_log)
    else:
        from winnow.algos.size_prior import Prior
        from winnow.training.first_plan import FirstPlan
        from winnow.training.resolve import resolve_file
        from winnow.training.size_fits import Fits
        from winnow_lab.plan.text import first_json, first_lines

        config = find_config(target)
        members = resolve_file(config, sets or (), unset or ())
        most = members.config.rollout.max_new_tokens
        if length is not None and length > most:
            raise typer.BadParameter(f"--length {length:g}: a rollout has at most rollout.max_new_tokens = {most}")
        prior = Prior(pass_rate, length or max(1.0, most / 2))
        first = FirstPlan(Fits(members, request.memory), request, prior, curves, draws, seed)
        given = [
            word for name, of in (("--unset", unset), ("--set", sets)) for value in of or () for word in (name, value)
        ]
        lines, content = list(first_lines(first, config, given)), first_json(first)
    for line in lines:
        print_text(line)
    if output is not None:
        write_output_json(output, content)
        print_text(f"{'written':14}{output}")
