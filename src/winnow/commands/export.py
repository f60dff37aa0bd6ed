"""`winnow export`: a run's metrics in training_history.json, with the names that older GRPO scripts expect."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from winnow.commands.command_line import BAD_INPUT, RunPath, note_cut_row, print_text
from winnow.metrics import is_step
from winnow.view.text import wrap

Row = Mapping[str, float]

_FIELDS = {
    "reward_mean": ("reward/mean",),
    "reward_std": ("reward/std",),
    "reward_max": ("reward/max",),
    "reward_min": ("reward/min",),
    "answer_reward_mean": ("reward/part/answer", "reward/accuracy"),
    "format_reward_mean": ("reward/part/format",),
    "advantage_mean": ("advantage/mean",),
    "advantage_std": ("advantage/std",),
    "loss": ("policy/loss",),
    "grad_norm": ("policy/grad_norm",),
}


def export(
    run: RunPath,
    history: Annotated[bool, typer.Option("--history", help="training_history.json: one entry per step.")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A new file; default: standard output.")] = None,
) -> None:
    """Rewrite a run's metrics for other programs; without an option, describe what can be written."""
    from winnow.state.disk import check_new, write_output_json
    from winnow.state.logbook import read_metrics

    if output is not None:
        check_new(output)
    entries = training_history(read_metrics(run))
    note_cut_row(run)
    if not history:
        print_text(describe_export(entries), err=True)
        raise typer.Exit(BAD_INPUT)
    if output is None:
        print_text(json.dumps(entries, indent=1, allow_nan=False))
    else:
        write_output_json(output, entries)


def training_history(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One entry per finished step; a missing number is None, never NaN.

    `grpo_step` counts from 1. `val_reward` is the sampled accuracy of the weights after that step. It and
    `clip_fraction` are present only where they were measured.
    """
    evaluated = {int(row["step"]): row["eval/accuracy_sampled"] for row in rows if "eval/accuracy_sampled" in row}
    return [_entry(row, evaluated) for row in rows if is_step(row)]


def describe_export(entries: Sequence[Mapping[str, Any]]) -> str:
    """The text of `winnow export` without options: the possible output, and the option that writes it."""
    names = list(dict.fromkeys(name for entry in entries for name in entry))
    lines = [f"--history  training_history.json: a JSON list of {len(entries)} entries, one per finished step"]
    if names:
        lines.append(wrap(f"each entry has {', '.join(names)}"))
    return "\n".join(["nothing is written; choose what to export:", *lines])


def _entry(row: Row, evaluated: Mapping[int, float]) -> dict[str, Any]:
    done = int(row["step"]) + 1
    entry: dict[str, Any] = {"grpo_step": done}
    entry |= {name: _first(row, metrics) for name, metrics in _FIELDS.items()}
    if "policy/clip_fraction" in row:
        entry["clip_fraction"] = _first(row, ("policy/clip_fraction",))
    if done in evaluated:
        entry["val_reward"] = _first({"val": evaluated[done]}, ("val",))
    return entry


def _first(row: Row, metrics: Sequence[str]) -> float | None:
    """The first of the metrics that has a number in the row; None if none has."""
    return next((row[name] for name in metrics if math.isfinite(row.get(name, math.nan))), None)
