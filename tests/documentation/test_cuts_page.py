"""The table of docs/cuts.md, enumerated again."""

from __future__ import annotations

import functools
from pathlib import Path

from winnow.budget.cuts import RolloutKind, expected, none, stragglers, token_budget, unlikely
from winnow.testing import check_cut

PAGE = Path(__file__).parents[2] / "docs" / "cuts.md"
RULES = {
    "none": none,
    "token_budget": functools.partial(token_budget, tokens=40),
    "stragglers": functools.partial(stragglers, share=0.5),
    "unlikely": functools.partial(unlikely, after=2, least=-1.0),
}
LONGER = {"neither": 0.5, "wrong ones": 0.2, "correct ones": 0.8}  # share of long ones among the correct


def kinds(long_and_correct):
    """Half are correct. Short ones have 4 likely tokens, long ones 8 unlikely ones, and half of all are long."""
    for correct in (True, False):
        share = long_and_correct if correct else 1 - long_and_correct
        yield RolloutKind(length=4, correct=correct, probability=0.5 * (1 - share), logprob=-0.5)
        yield RolloutKind(length=8, correct=correct, probability=0.5 * share, logprob=-2.0)


def rows():
    for name, rule in RULES.items():
        for longer, share in LONGER.items():
            found = expected(rule, tuple(kinds(share)), 8)
            gradient = " | ".join(f"{factor + 1e-9:.2f}" for factor in found.gradient)
            bias = f"{found.pass_rate - 0.5:.3f}".replace("-0.000", "0.000")
            yield f"| `{name}` | {longer} | {found.tokens:.1f} | {found.kept:.1f} | {bias} | {gradient} |"


def test_the_rule_of_the_page_meets_its_contract():
    (code,) = [block for block in PAGE.read_text(encoding="utf-8").split("```python\n")[1:]]
    names: dict[str, object] = {}
    exec(code.partition("```")[0], names)
    check_cut(names["at_twice_the_median"])


def test_the_table_is_that_of_the_rules():
    assert "\n".join(rows()) in PAGE.read_text(encoding="utf-8")
