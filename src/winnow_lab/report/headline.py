"""The headline of a run's page: its accuracy, its tokens and its time; and the ledger of its tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from winnow.metrics import per_prompt_metric
from winnow.run_view.configuration import EVALUATIONS, Evaluations
from winnow.run_view.forecast import forecast_of
from winnow.run_view.summary import Row, costs, mean, phase_shares, training_rows
from winnow.view.text import LARGEST, format_accuracies, format_count, format_decimal, format_duration, format_percent

# label, metric of its tokens, metric of its rollouts, note
LINES = (
    ("verified", "budget/tokens_verified", None, "of rollouts that got a verdict"),
    ("kept", "budget/tokens_kept", "select/kept", "of rollouts that the selectors kept"),
    ("trained", "budget/tokens_trained", "select/trained", "distinct tokens that reached the policy's update"),
    ("wasted", "budget/tokens_wasted", None, "generated and not trained on"),
    ("cut", "budget/tokens_cut", "budget/rollouts_cut", "of the wasted: after update.max_trained_tokens"),
    ("cut while sampled", "cut/tokens", "outcome/cut", "of the generated: up to the cut, without a verdict"),
    ("beyond cuts", "cut/tokens_beyond", None, "dropped by the engine's cuts, in addition to the generated tokens"),
    ("valued", "budget/tokens_valued", None, "distinct tokens that a value model read"),
    ("environment", "budget/environment_tokens", None, "texts of an environment, in addition to the generated tokens"),
    ("probe", "budget/probe_tokens", "budget/probe_rollouts", "sampled to plan, in addition to the generated tokens"),
    ("mismatch", "budget/mismatch_tokens", None, "sampled to compare engine and policy, in addition to the generated"),
    ("evaluation", "budget/evaluation_tokens", None, "sampled and greedy, in addition to the generated tokens"),
    ("prompts", "budget/prompt_tokens", None, "read before sampling, each prompt once per round"),
    ("probe prompts", "budget/probe_prompt_tokens", None, "prompt tokens of probes"),
    ("mismatch prompts", "budget/mismatch_prompt_tokens", None, "prompt tokens of these"),
    ("evaluation prompts", "budget/evaluation_prompt_tokens", None, "prompt tokens of evaluations"),
)
ALWAYS = ("verified", "kept", "trained", "wasted")  # other lines are omitted if they are 0


def ledger(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """A line for each use of tokens. `share` is relative to the generated tokens. A number that no row has is None."""
    generated, sampled = total(rows, "budget/tokens_generated"), total(rows, "budget/rollouts")
    counted = {
        "verified": _less(_less(sampled, total(rows, "outcome/failed")), total(rows, "outcome/cut")),
        "wasted": _less(sampled, total(rows, "select/trained")),
    }
    lines = [_line("generated", generated, sampled, generated, "without probes")]
    for label, tokens, rollouts, note in LINES:
        spent = total(rows, tokens) if tokens else None
        if spent or label in ALWAYS:
            of = total(rows, rollouts) if rollouts else counted.get(label)
            lines.append(_line(label, spent, of, generated, note))
        if label == "valued" and (values := value_model_tokens(rows)):
            lines.append(_line("values only", values, None, generated, "of the wasted: trained the value model alone"))
    return lines


def total(rows: Sequence[Row], name: str) -> int | None:
    """The sum of a counting metric; None if no row has it. Numbers of `LARGEST` or more are ignored."""
    values = [int(row[name]) for row in rows if abs(row.get(name, math.nan)) < LARGEST]
    return sum(values) if values else None


def value_model_tokens(rows: Sequence[Row]) -> int:
    """Tokens that the value model was trained on and the policy was not: of steps that train the value model alone, and
    of rollouts that were not selected.
    """
    updated = (row for row in rows if row.get("critic/updates", 0.0) > 0)
    pairs = ((total([row], "budget/tokens_valued"), total([row], "budget/tokens_trained")) for row in updated)
    return sum(max(0, (valued or 0) - (trained or 0)) for valued, trained in pairs)


def _line(label: str, tokens: int | None, rollouts: int | None, generated: int | None, note: str) -> dict[str, Any]:
    share = tokens / generated if tokens is not None and generated else None
    return {"label": label, "tokens": tokens, "rollouts": rollouts, "share": share, "note": note}


def _less(whole: int | None, part: int | None) -> int | None:
    return None if whole is None else whole - (part or 0)


Line = dict[str, str]
NONE = "–"  # for a number that was not measured


def headline(rows: Sequence[Row], evaluated: Evaluations = EVALUATIONS) -> list[Line]:
    """Lines of label, value and detail; the accuracy is of the comparable evaluations."""
    accuracy = [*_evaluated(evaluated.rows(rows), evaluated)] or [*_in_training(rows, evaluated)]
    return [*accuracy, *_forecast(rows, evaluated), *_tokens(rows), *_time(rows)] if training_rows(rows) else accuracy


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


def _forecast(rows: Sequence[Row], evaluated: Evaluations) -> Iterator[Line]:
    found = forecast_of(rows, evaluated)
    if found is not None and found.rises:
        plateau = found.found.expected_plateau
        value = f"{format_percent(plateau.middle)} ({format_percent(plateau.low)} to {format_percent(plateau.high)})"
        yield {"label": "expected plateau", "value": value, "detail": ". ".join(found.lines())}


def _measured(row: Row, name: str) -> str:
    """ "41.2% ± 2.0%"."""
    return format_accuracies({k: row[k] for k in row if k.startswith(name)}).removeprefix(f"{name.rpartition('_')[2]} ")


def _in_training(rows: Sequence[Row], evaluated: Evaluations) -> Iterator[Line]:
    if not (steps := training_rows(rows)):
        return
    width = max(1, len(steps) // 10)
    what, name = "accuracy", per_prompt_metric("reward/accuracy", steps)
    if not any(name in row for row in steps) and any("reward/mean" in row for row in steps):  # no verdicts, but rewards
        what, name = "reward", per_prompt_metric("reward/mean", steps)
    ends = [mean(some, name) for some in (steps[:width], steps[-width:])]
    unknown, show = all(map(math.isnan, ends)), format_percent if what == "accuracy" else format_decimal
    value = NONE if unknown else " → ".join(NONE if math.isnan(end) else show(end) for end in ends)
    changed = f" since evaluations were changed at step {evaluated.since}" if evaluated.since else " yet"
    detail = f"no evaluation{changed}{f'; first and last {width} steps' * (width > 1)}"
    detail += "; no verdict, every verifier failed" * unknown
    yield {"label": f"training {what}", "value": value, "detail": detail}


def _tokens(rows: Sequence[Row]) -> Iterator[Line]:
    """Lines about tokens; none for a log without them. Shares are relative to all sampled tokens, including probes,
    which are never trained on.
    """
    generated, trained = (total(rows, f"budget/tokens_{name}") for name in ("generated", "trained"))
    if generated is None or trained is None:
        return
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
    if "seconds/step" not in cost:
        return
    seconds, probe = cost["seconds/step"], cost.get("seconds/probe", 0.0)
    besides = [f"{format_duration(probe)} of probes on top"] * bool(probe)
    if evaluating := cost.get("eval/seconds", 0.0):
        besides.append(f"{format_duration(evaluating)} of evaluations on top")
    detail = "; ".join([text for text in (phase_shares(cost), *besides) if text])
    yield {"label": "training time", "value": format_duration(seconds), "detail": detail}


def _after(seen: Sequence[Row]) -> str:
    first, last = seen[0]["step"], seen[-1]["step"]
    return f"{last:.0f}" if len(seen) == 1 else f"{first:.0f} and {last:.0f}"
