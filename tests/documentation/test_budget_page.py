"""The tables of docs/budget.md are those of the results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "budget.md"
RESULT = "2026-11-26_budget_signal.json"
SWEEPS = [f"2026-11-26_budget_{name}.json" for name in ("screen", "dr_grpo", "confirm", "cuts", "unmixed")]


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


def accuracy_rows(result):
    """A row for each candidate of a sweep: what it spent, and the mean difference of accuracy from its baseline."""
    found = json.loads((ROOT / "benchmarks" / "results" / result).read_text())
    for label, cell in found["cells"].items():
        contrast = found["contrasts"].get(label)
        axes = ("tokens_generated", "tokens_trained")
        differences = ["-"] * 2 if contrast is None else [points(contrast[axis]["mean difference"]) for axis in axes]
        brier = "-" if cell["brier score"] is None else f"{cell['brier score']:.3f}"
        yield (
            f"| `{label}` | {100 * cell['accuracy at the end']['mean']:.1f}% | {cell['tokens'] / 1000:.0f}k "
            f"| {cell['tokens trained'] / 1000:.0f}k | {100 * cell['share of tokens wasted']:.0f}% "
            f"| {100 * cell['share of tokens in probes']:.0f}% | {brier} | {' | '.join(differences)} |"
        )


def test_seconds_of_cost_curves_that_fail_their_check_are_not_on_the_page():
    assert "at equal seconds |" not in PAGE.read_text(encoding="utf-8")


def points(of):
    return f"{100 * of['mean']:+.1f} ({100 * of['low']:+.1f} to {100 * of['high']:+.1f})"


@pytest.mark.parametrize("result", SWEEPS)
def test_the_table_of_a_sweep_is_that_of_its_result(result):
    page = PAGE.read_text(encoding="utf-8")
    assert result in page
    assert "\n".join(accuracy_rows(result)) in page
