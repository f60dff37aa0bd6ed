"""The table of docs/budget.md is that of the newest result."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "budget.md"
RESULT = "2026-11-26_budget_signal.json"


def rows():
    found = json.loads((ROOT / "benchmarks" / "results" / RESULT).read_text())["candidates"]
    for label, of in found.items():
        mean = {name: None if value is None else value["mean"] for name, value in of.items()}
        signal = of["signal per 1000 tokens"]
        interval = f"{signal['mean']:.1f} ({max(0.0, signal['low']):.1f} to {signal['high']:.1f})"
        brier = "-" if mean["brier"] is None else f"{mean['brier']:.3f}"
        yield (
            f"| `{label}` | {mean['tokens'] + mean['probe']:.0f} | {100 * mean['probe share']:.0f}% "
            f"| {100 * mean['flat share']:.0f}% | {100 * mean['flat token share']:.0f}% | {interval} "
            f"| {mean['information per 1000 tokens']:.2f} | {brier} |"
        )


def test_the_table_is_that_of_the_result():
    assert RESULT in PAGE.read_text(encoding="utf-8")
    assert "\n".join(rows()) in PAGE.read_text(encoding="utf-8")
