"""Where a run's tokens went: exact sums of its rows of metrics, in the words of the metrics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from winnow.report.summary import LARGEST, Row

# label, metric of its tokens, metric of its rollouts, note
LINES = (
    ("verified", "budget/tokens_verified", None, "of rollouts that got a verdict"),
    ("kept", "budget/tokens_kept", "select/kept", "of rollouts that the selectors kept"),
    ("trained", "budget/tokens_trained", "select/trained", "distinct tokens that reached the policy's update"),
    ("wasted", "budget/tokens_wasted", None, "generated and not trained on"),
    ("cut", "budget/tokens_cut", "budget/rollouts_cut", "of the wasted: behind update.max_trained_tokens"),
    ("valued", "budget/tokens_valued", None, "distinct tokens that a value model read"),
    ("probe", "budget/probe_tokens", "budget/probe_rollouts", "sampled to plan, on top of what was generated"),
    ("evaluation", "budget/evaluation_tokens", None, "sampled and greedy, on top of what was generated"),
    ("prompts", "budget/prompt_tokens", None, "read before sampling, each prompt once per group"),
    ("probe prompts", "budget/probe_prompt_tokens", None, "the same of the probe"),
    ("evaluation prompts", "budget/evaluation_prompt_tokens", None, "the same of evaluations"),
)
ALWAYS = ("verified", "kept", "trained", "wasted")  # others are left out where there were none


def ledger(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """A line for each use of tokens. `share` is of the tokens generated; None is what was not counted."""
    generated, sampled = total(rows, "budget/tokens_generated"), total(rows, "budget/rollouts")
    counted = {
        "verified": _less(sampled, total(rows, "outcome/failed")),
        "wasted": _less(sampled, total(rows, "select/trained")),
    }
    lines = [_line("generated", generated, sampled, generated, "without probes")]
    for label, tokens, rollouts, note in LINES:
        spent = total(rows, tokens) if tokens else None
        if spent or label in ALWAYS:
            of = total(rows, rollouts) if rollouts else counted.get(label)
            lines.append(_line(label, spent, of, generated, note))
        if label == "valued" and (values := taught_values_alone(rows)):
            lines.append(_line("values only", values, None, generated, "of the wasted: taught the value model alone"))
    return lines


def total(rows: Sequence[Row], name: str) -> int | None:
    """The sum of a metric that counts; None where no row has it. What no run counts up to is left out."""
    values = [int(row[name]) for row in rows if abs(row.get(name, math.nan)) < LARGEST]
    return sum(values) if values else None


def taught_values_alone(rows: Sequence[Row]) -> int:
    """Tokens that a value model learned from and the policy did not: of steps in which the policy is held, and of
    rollouts that were not trained.
    """
    taught = (row for row in rows if row.get("critic/updates", 0.0) > 0)
    pairs = ((total([row], "budget/tokens_valued"), total([row], "budget/tokens_trained")) for row in taught)
    return sum(max(0, (valued or 0) - (trained or 0)) for valued, trained in pairs)


def _line(label: str, tokens: int | None, rollouts: int | None, generated: int | None, note: str) -> dict[str, Any]:
    share = tokens / generated if tokens is not None and generated else None
    return {"label": label, "tokens": tokens, "rollouts": rollouts, "share": share, "note": note}


def _less(whole: int | None, part: int | None) -> int | None:
    return None if whole is None else whole - (part or 0)
