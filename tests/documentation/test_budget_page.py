"""The table of samplers, allocators, rounds and cuts in docs/results.md is that of the results."""

from __future__ import annotations

import json

import pytest
from doc_pages import PAGES, REPOSITORY

PAGE = PAGES["docs/results.md"].partition("\n## Samplers, allocators, rounds and cuts\n")[2]
SWEEPS = [f"2026-11-26_budget_{name}" for name in ("screen", "dr_grpo", "cuts")]


def result(name):
    return json.loads((REPOSITORY / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))


def points(of):
    return f"{100 * of['mean']:+.1f} ({100 * of['low']:+.1f} to {100 * of['high']:+.1f})"


def rows(sweep):
    """{candidate: its row}: what it spent, and the mean difference of accuracy from its baseline."""
    found, signals = result(sweep), result("2026-11-26_budget_signal")["candidates"]
    for label, cell in found["cells"].items():
        contrast = found["contrasts"].get(label)
        difference = "-" if contrast is None else points(contrast["tokens_generated"]["mean difference"])
        signal = f"{signals[label]['signal per 1000 tokens']['mean']:.1f}" if label in signals else "-"
        yield (
            f"| `{label}` | {signal} | {100 * cell['share of tokens wasted']:.0f}% | {cell['tokens'] / 1000:.0f}k "
            f"| {100 * cell['accuracy at the end']['mean']:.1f}% | {difference} |"
        )


@pytest.mark.parametrize("sweep", SWEEPS)
def test_the_rows_are_those_of_the_sweep(sweep):
    assert f"{sweep}.json" in PAGE
    assert [row for row in rows(sweep) if row not in PAGE] == []


def test_every_candidate_is_there_once():
    labels = [line.split("`")[1] for line in PAGE.splitlines() if line.startswith("| `")]
    assert sorted(labels) == sorted({label for sweep in SWEEPS for label in result(sweep)["cells"]})


def test_seconds_of_cost_curves_that_fail_their_check_are_not_in_the_table():
    assert "at equal seconds |" not in PAGE


def test_members_that_ran_again_show_what_the_page_states():
    """`replay` and `mopps` on fresh seeds, by tokens and steps; and both on the task of the claims."""
    sooner = result("2026-11-26_budget_confirm")["sooner at 95% of the plateau"]
    for label, axis in (("replay", "tokens_generated"), ("mopps", "tokens_generated"), ("mopps", "steps")):
        of = sooner[label][axis]
        assert f"{of['ratio']:.2f} ({of['low']:.2f} to {of['high']:.2f})" in " ".join(PAGE.split())
    assert sooner["mopps"]["steps"]["low"] > 1 > sooner["mopps"]["tokens_generated"]["low"]
    again = result("2026-11-26_budget_unmixed")["contrasts"].values()
    assert all(of["tokens_generated"]["mean difference"]["low"] < 0 for of in again)
    assert all(of["tokens_generated"]["mean difference"]["high"] > 0 for of in again)
