"""The tables of docs/choosing-n-and-m.md, computed again: by the formula, and by winnow's own selector."""

from __future__ import annotations

import re
from math import comb

import numpy as np
import pytest
from doc_pages import PAGES

from winnow.algos.selectors import max_variance
from winnow.seeds import Rng
from winnow.testing import group_of

PAGE = PAGES["docs/choosing-n-and-m.md"]


def table(first):
    """(the numbers of the head, the rows) of the table whose head begins so."""
    head, _, *rows = PAGE[PAGE.index(first) :].partition("\n\n")[0].splitlines()
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return [[int(n) for n in re.findall(r"\d+", cell)] for cell in head.strip("|").split("|")[1:]], cells


def chance(successes, n, p):
    return comb(n, successes) * p**successes * (1 - p) ** (n - successes)


def test_the_chance_that_a_group_is_flat():
    counts, rows = table("| p | n = 4 |")
    for said, *percents in rows:
        p = float(said.split()[0])
        flat = [f"{100 * (p**n + (1 - p) ** n):.1f}" for (n,) in counts]
        assert percents == flat


def kept_variance(successes, n, m):
    """Of the rewards that the selector keeps of so many right rollouts among n."""
    group = group_of([1.0] * successes + [0.0] * (n - successes))
    kept = np.array([outcome.reward for outcome in group.outcomes])[
        max_variance(group, Rng(("page",)), keep_per_prompt=m)
    ]
    return float(kept.var())


@pytest.mark.parametrize("row", range(4))
def test_the_variance_that_is_kept(row):
    heads, rows = table("| p | n = m = 4 |")
    p, *said = rows[row]
    for (n, *more), number in zip(heads, said, strict=True):
        m = more[0] if more else n
        mean = sum(chance(k, n, float(p)) * kept_variance(k, n, m) for k in range(n + 1))
        assert number == f"{mean:.3f}"
