"""What a run learned, for how many tokens and seconds: the first thing that its page says."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from winnow.report.page.budget_ledger import total
from winnow.report.summary import PHASES, Row, training_rows
from winnow.report.text import accuracies, compact, duration, percent
from winnow.state.logbook import totals

Line = dict[str, str]


def headline(rows: Sequence[Row]) -> list[Line]:
    """Lines of label, value and detail."""
    return [*_accuracy(rows), *_tokens(rows), *_time(rows)] if training_rows(rows) else list(_accuracy(rows))


def _accuracy(rows: Sequence[Row]) -> Iterator[Line]:
    found = False
    for name in ("eval/accuracy_sampled", "eval/accuracy_greedy"):
        if seen := [row for row in rows if name in row]:
            kind = name.rpartition("_")[2]
            first, last = (
                accuracies({k: row[k] for k in row if k.startswith(name)}).removeprefix(f"{kind} ")
                for row in (seen[0], seen[-1])
            )
            best = max(seen, key=lambda row: row[name])
            yield {
                "label": "held-out accuracy" if kind == "sampled" else "held-out accuracy, greedy",
                "value": first if len(seen) == 1 else f"{first} → {last}",
                "detail": f"{kind}{' (± 1 s.e.)' * (kind == 'sampled')}, after {_after(seen)} steps; best "
                f"{percent(best[name])} after {best['step']:.0f}",
            }
            found = True
    if not found and (steps := training_rows(rows)):
        width = max(1, len(steps) // 10)
        first, last = (percent(_mean(some, "reward/accuracy")) for some in (steps[:width], steps[-width:]))
        detail = f"no evaluation yet; first and last {width} steps" if width > 1 else "no evaluation yet"
        yield {"label": "training accuracy", "value": f"{first} → {last}", "detail": detail}


def _tokens(rows: Sequence[Row]) -> Iterator[Line]:
    generated, trained = (total(rows, f"budget/tokens_{name}") or 0 for name in ("generated", "trained"))
    probe = total(rows, "budget/probe_tokens")
    steps, rollouts = len(training_rows(rows)), total(rows, "budget/rollouts") or 0
    on_top = f", and {compact(probe)} of probes on top" if probe else ""
    yield {
        "label": "tokens generated",
        "value": compact(generated),
        "detail": f"{generated:,} in {rollouts:,} rollouts of {steps:,} steps{on_top}",
    }
    share = f"{percent(trained / generated)} of those generated" if generated else "nothing was generated"
    yield {"label": "tokens trained", "value": compact(trained), "detail": f"{trained:,}, {share}"}
    wasted = total(rows, "budget/tokens_wasted")
    if generated and wasted is not None:
        detail = f"{wasted:,} tokens were generated and not trained on"
        yield {"label": "wasted", "value": percent(wasted / generated), "detail": detail}


def _time(rows: Sequence[Row]) -> Iterator[Line]:
    cost = totals(rows)
    seconds, probe = cost.get("seconds/step", 0.0), cost.get("seconds/probe", 0.0)
    shares = [
        f"{phase} {spent / seconds:.0%}"
        for phase in PHASES
        if seconds and (spent := cost.get(f"seconds/{phase}", 0.0)) / seconds >= 0.01
    ]
    besides = [f"{duration(probe)} of probes on top"] * bool(probe)
    if evaluating := cost.get("eval/seconds", 0.0):
        besides.append(f"{duration(evaluating)} of evaluations on top")
    detail = "; ".join([text for text in (", ".join(shares), *besides) if text])
    yield {"label": "training time", "value": duration(seconds), "detail": detail}


def _after(seen: Sequence[Row]) -> str:
    first, last = seen[0]["step"], seen[-1]["step"]
    return f"{last:.0f}" if len(seen) == 1 else f"{first:.0f} and {last:.0f}"


def _mean(rows: Sequence[Row], name: str) -> float:
    values = [row[name] for row in rows if not math.isnan(row.get(name, math.nan))]
    return sum(values) / len(values) if values else math.nan
