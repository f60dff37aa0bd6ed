"""The use of a run's tokens: exact sums over its rows of metrics, labelled like the metrics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from winnow.run_view.summary import LARGEST, Row

# label, metric of its tokens, metric of its rollouts, note
LINES = (
    ("verified", "budget/tokens_verified", None, "of rollouts that got a verdict"),
    ("kept", "budget/tokens_kept", "select/kept", "of rollouts that the selectors kept"),
    ("trained", "budget/tokens_trained", "select/trained", "distinct tokens that reached the policy's update"),
    ("wasted", "budget/tokens_wasted", None, "generated and not trained on"),
    ("cut", "budget/tokens_cut", "budget/rollouts_cut", "of the wasted: after update.max_trained_tokens"),
    ("valued", "budget/tokens_valued", None, "distinct tokens that a value model read"),
    ("probe", "budget/probe_tokens", "budget/probe_rollouts", "sampled to plan, in addition to the generated tokens"),
    ("evaluation", "budget/evaluation_tokens", None, "sampled and greedy, in addition to the generated tokens"),
    ("prompts", "budget/prompt_tokens", None, "read before sampling, each prompt once per group"),
    ("probe prompts", "budget/probe_prompt_tokens", None, "prompt tokens of probes"),
    ("evaluation prompts", "budget/evaluation_prompt_tokens", None, "prompt tokens of evaluations"),
)
ALWAYS = ("verified", "kept", "trained", "wasted")  # other lines are omitted if they are 0


def ledger(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """A line for each use of tokens. `share` is relative to the generated tokens. A number that no row has is None."""
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
