"""The table of docs/samplers.md about the prompts that a sampler takes, simulated again."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np

from winnow.budget import sampling
from winnow.budget.sampling import PromptTable
from winnow.registry import members
from winnow.seeds import generator

PAGE = Path(__file__).parents[2] / "docs" / "samplers.md"
PROMPTS, COUNT, ROLLOUTS, STEPS = 512, 32, 8, 240
# Of a third each: never solved, always solved, and all pass rates between
RATES = np.concatenate([np.zeros(170), np.ones(170), (np.arange(172) + 0.5) / 172])
BANDS = {"0": RATES == 0, "0 to 0.25": (RATES > 0) & (RATES < 0.25), "0.25 to 0.75": np.abs(RATES - 0.5) <= 0.25}
BANDS |= {"0.75 to 1": (RATES > 0.75) & (RATES < 1), "1": RATES == 1}
RULES = {
    name: getattr(sampling, name)
    for name, entry in members("sampler").items()
    if entry.origin == "winnow" and name != "adarft"
} | {"adarft": functools.partial(sampling.adarft, start=50.0)}


@functools.cache
def shares(name):
    """[bands] shares of the draws of the second half of a run of 240 steps, from a static pool."""
    table, state = PromptTable.empty(PROMPTS, difficulty=100 * (1 - RATES)), {}
    drawn = []
    for step in range(STEPS):
        found = RULES[name](table, state, lambda stream, number: generator("samplers page", stream, number), COUNT)
        right = generator("samplers verdicts", name, step).random((COUNT, ROLLOUTS)) < RATES[found.rows, None]
        table = table.drawn(found.rows).observed(found.rows, np.full(COUNT, ROLLOUTS), right.sum(axis=1), decay=0.9)
        state = found.state
        drawn.append(found.rows)
    rows = np.concatenate(drawn[STEPS // 2 :])
    return [float(np.mean(band[rows])) for band in BANDS.values()]


def lines():
    yield "| pool | " + " | ".join(f"{np.mean(band):.0%}" for band in BANDS.values()) + " |"
    for name in ("uniform", "greso", "mopps", "adarft", "cures", "replay", "retire"):
        yield f"| `{name}` | " + " | ".join(f"{share:.0%}" for share in shares(name)) + " |"


def test_the_table_is_that_of_the_samplers():
    assert set(RULES) == {name for name, entry in members("sampler").items() if entry.origin == "winnow"}
    assert "\n".join(lines()) in PAGE.read_text(encoding="utf-8")


def test_the_probabilities_of_draws_are_as_declared():
    page = PAGE.read_text(encoding="utf-8")
    for sampler, entry in members("sampler").items():
        if entry.origin == "winnow":
            assert f"| `{sampler}` | {entry.traits.probability} |" in page
