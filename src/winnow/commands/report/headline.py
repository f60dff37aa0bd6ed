"""The headline of a run's page: its accuracy, its tokens and its time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from winnow.commands.report.budget_ledger import total, value_model_tokens
from winnow.metrics import per_prompt_metric
from winnow.run_view.configuration import EVALUATIONS, Evaluations
from winnow.run_view.summary import Row, costs, mean, phase_shares, training_rows
from winnow.view.text import format_accuracies, format_count, format_duration, format_percent

Line = dict[str, str]
NONE = "–"  # for a number that was not measured


def headline(rows: Sequence[Row], evaluated: Evaluations = EVALUATIONS) -> list[Line]:
    """Lines of label, value and detail; the accuracy is of the comparable evaluations."""
    accuracy = [*_evaluated(evaluated.rows(rows), evaluated)] or [*_in_training(rows, evaluated)]
    return [*accuracy, *_tokens(rows), *_time(rows)] if training_rows(rows) else accuracy


def _evaluated(rows: Sequence[Row], evaluated: Evaluations) -> Iterator[Line]:
    label = "held-out accuracy" if evaluated.held_out else f"accuracy, {evaluated.of}"
    for name in ("eval/accuracy_sampled", "eval/accuracy_greedy"):
        if not (seen := [row for row in rows if name in row]):
            continue
        kind = name.rpartition("_")[2]
        line = {"label": f"{label}{', greedy' * (kind == 'greedy')}", "value": NONE}
        if reached := [row for row in seen if not math.isnan(row[name])]:
            values = [_measured(row, name) for row in (reached[0], reached[-1])]
            best = max(reached, key=lambda row: row[name])
            line["value"] = values[0] if len(reached) == 1 else " → ".join(values)
            detail = f"{kind}{' (± 1 s.e.)' * (kind == 'sampled')}, after {_after(reached)} steps; best "
            detail += f"{format_percent(best[name])} after {best['step']:.0f}"
        else:
            detail = f"{kind}, after {_after(seen)} steps: no verdict, every verifier failed"
        yield {**line, "detail": detail + evaluated.since_when}


def _measured(row: Row, name: str) -> str:
    """ "41.2% ± 2.0%"."""
    return format_accuracies({k: row[k] for k in row if k.startswith(name)}).removeprefix(f"{name.rpartition('_')[2]} ")


def _in_training(rows: Sequence[Row], evaluated: Evaluations) -> Iterator[Line]:
    if not (steps := training_rows(rows)):
        return
    width = max(1, len(steps) // 10)
    name = per_prompt_metric("reward/accuracy", steps)
    first, last = (mean(some, name) for some in (steps[:width], steps[-width:]))
    value = NONE if math.isnan(first) and math.isnan(last) else f"{_known(first)} → {_known(last)}"
    changed = f" since evaluations were changed at step {evaluated.since}" if evaluated.since else " yet"
    detail = f"no evaluation{changed}{f'; first and last {width} steps' * (width > 1)}"
    if value == NONE:
        detail += "; no verdict, every verifier failed"
    yield {"label": "training accuracy", "value": value, "detail": detail}


def _known(share: float) -> str:
    return NONE if math.isnan(share) else format_percent(share)


def _tokens(rows: Sequence[Row]) -> Iterator[Line]:
    """Lines about tokens. Shares are relative to all sampled tokens, including probes, which are never trained on."""
    generated, trained = (total(rows, f"budget/tokens_{name}") or 0 for name in ("generated", "trained"))
    probe, wasted = (total(rows, f"budget/{name}") for name in ("probe_tokens", "tokens_wasted"))
    sampled, steps, rollouts = generated + (probe or 0), len(training_rows(rows)), total(rows, "budget/rollouts") or 0
    besides = f", and {probe:,} of probes" if probe else ""
    yield {
        "label": "tokens sampled, probes included" if probe else "tokens generated",
        "value": format_count(sampled),
        "detail": f"{generated:,} in {rollouts:,} rollouts of {steps:,} steps{besides}",
    }
    share = (
        f"{format_percent(trained / sampled)} of those {'sampled' if probe else 'generated'}" if sampled else "of none"
    )
    yield {"label": "tokens trained", "value": format_count(trained), "detail": f"{trained:,}, {share}"}
    if sampled and wasted is not None:
        parts = [f"{wasted:,} were generated and not trained on"]
        if values := value_model_tokens(rows):
            parts.append(f"{values:,} of them trained the value model alone")
        if probe:
            parts.append(f"{probe:,} ({format_percent(probe / sampled)}) were probes, sampled to plan")
        value = format_percent((wasted + (probe or 0)) / sampled)
        yield {"label": "not trained on", "value": value, "detail": "; ".join(parts)}


def _time(rows: Sequence[Row]) -> Iterator[Line]:
    cost = costs(rows)
    seconds, probe = cost.get("seconds/step", 0.0), cost.get("seconds/probe", 0.0)
    besides = [f"{format_duration(probe)} of probes on top"] * bool(probe)
    if evaluating := cost.get("eval/seconds", 0.0):
        besides.append(f"{format_duration(evaluating)} of evaluations on top")
    detail = "; ".join([text for text in (phase_shares(cost), *besides) if text])
    yield {"label": "training time", "value": format_duration(seconds), "detail": detail}


def _after(seen: Sequence[Row]) -> str:
    first, last = seen[0]["step"], seen[-1]["step"]
    return f"{last:.0f}" if len(seen) == 1 else f"{first:.0f} and {last:.0f}"
