"""`winnow eval`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from winnow.cli.door import Sets, app, interruptible, print_text


@app.command("eval")
def evaluate(
    model: Annotated[str, typer.Argument(help='A model folder, such as a checkpoint; "bundled"; or a hub id.')],
    config: Annotated[Path | None, typer.Option(help="A TOML file. Default: the checkpoint's run.")] = None,
    tasks: Annotated[
        list[str] | None,
        typer.Option(
            "--task", "--tasks", metavar="NAME[=PATH],...", help="Names, or file.py:function. Default: the run's."
        ),
    ] = None,
    sets: Sets = None,
    problems: Annotated[int | None, typer.Option(min=1, help="Maximum number of problems. Default: all.")] = None,
    samples: Annotated[
        int | None, typer.Option("--samples", "--rollouts-per-prompt", min=1, help="Rollouts per problem.")
    ] = None,
    greedy: Annotated[
        bool | None, typer.Option("--greedy/--no-greedy", help="Also sample each problem once at temperature 0.")
    ] = None,
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "test",
    seed: Annotated[int | None, typer.Option()] = None,
    temperature: Annotated[float | None, typer.Option()] = None,
    compare: Annotated[
        str | None,
        typer.Option(metavar="OTHER", help="Another model for the same problems; or the folder of an evaluation."),
    ] = None,
    task_defaults: Annotated[
        bool, typer.Option("--task-defaults", help="Use prompt, limits and reward of each task, not of the run.")
    ] = False,
    trust_run: Annotated[
        bool, typer.Option("--trust-run", help="Import the files that the checkpoint's run names, also another user's.")
    ] = False,
    output: Annotated[Path | None, typer.Option(help="A new folder for rollouts, report and metrics.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the evaluation in --output.")] = False,
    metrics: Annotated[
        Path | None, typer.Option("--json", help="Also write the metrics and their description to this file.")
    ] = None,
) -> None:
    """Evaluate a model, or compare two, on held-out problems with the engine and verifiers of training."""
    from winnow.commands.evaluation_progress import evaluation_progress
    from winnow.evaluation.evaluate import run_evaluation
    from winnow.evaluation.saved_evaluation import is_evaluation
    from winnow.evaluation.text import format_comparison, format_headline, format_table
    from winnow.state.output_files import check_new, write_output_json

    if resume and output is None:
        raise typer.BadParameter("--resume needs the folder of the evaluation: --output FOLDER")
    if metrics is not None:
        check_new(metrics)
    with evaluation_progress() as progress, interruptible(lambda: output is not None and is_evaluation(output)):
        result = run_evaluation(
            model,
            config,
            tasks=tasks or (),
            sets=sets or (),
            compare=compare,
            into=output,
            resume=resume,
            trust_run=trust_run,
            task_defaults=task_defaults,
            progress=progress,
            problems=problems,
            rollouts_per_prompt=samples,
            greedy=greedy,
            split=split,
            seed=seed,
            temperature=temperature,
        )
    for task in result.tasks:
        print_text(format_headline(task) + "\n" * (len(result.tasks) > 1))
    if len(result.tasks) > 1:
        print_text(format_table(result.tasks))
    for comparison in result.comparisons:
        print_text(format_comparison(comparison))
    for note in result.notes:
        print_text(f"note: {note}", err=True)
    if metrics is not None:
        write_output_json(metrics, result.metrics())
    written = [str(path) for path in (output, metrics) if path is not None]
    if written:
        print_text(f"written    {', '.join(written)}")
