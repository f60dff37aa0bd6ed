"""The table of docs/cuts.md, enumerated again."""

from __future__ import annotations

import functools
import math
from pathlib import Path

from winnow.budget.cuts import RolloutKind, expected, none, stragglers, token_budget, unlikely
from winnow.config import Config
from winnow.options import bind
from winnow.registry import members
from winnow.testing import check_cut
from winnow.training.factors import credits_of

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


OTHERS = ("dr_grpo", "rloo", "maxrl", "batch", "raw")


def factors(rule, share, advantage):
    """The factors of the four kinds, and what else is expected. A baseline of the step is the mean of what is left."""
    credits = credits_of(bind(members("advantage")[advantage], {}, key="advantage"))
    plain = expected(rule, tuple(kinds(share)), 8)
    found = expected(rule, tuple(kinds(share)), 8, credits(plain.correct / plain.kept))
    return found, ["-" if math.isnan(factor) else f"{abs(factor) + 1e-9:.2f}" for factor in found.gradient.tolist()]


def rows():
    for name, rule in RULES.items():
        for longer, share in LONGER.items():
            found, each = factors(rule, share, "grpo")
            bias = f"{found.pass_rate - 0.5:.3f}".replace("-0.000", "0.000")
            yield f"| `{name}` | {longer} | {found.tokens:.1f} | {found.kept:.2f} | {bias} | {' | '.join(each)} |"


def rows_of_others():
    for name, rule in RULES.items():
        for longer, share in LONGER.items():
            cells = " | ".join(", ".join(factors(rule, share, advantage)[1]) for advantage in OTHERS)
            yield f"| `{name}` | {longer} | {cells} |"


def test_the_rule_of_the_page_meets_its_contract():
    (code,) = [block for block in PAGE.read_text(encoding="utf-8").split("```python\n")[1:]]
    names: dict[str, object] = {}
    exec(code.partition("```")[0], names)
    check_cut(names["at_twice_the_median"])


def test_the_tables_are_those_of_the_rules():
    page = PAGE.read_text(encoding="utf-8")
    assert "\n".join(rows()) in page
    assert "\n".join(rows_of_others()) in page


def test_the_columns_are_the_default_and_each_kind_of_baseline():
    assert Config().advantage.use == "grpo"
    own = {name: entry.traits.baseline for name, entry in members("advantage").items() if entry.origin == "winnow"}
    assert {"grpo", *OTHERS} == {name for name, baseline in own.items() if baseline != "values"} - {"raft"}
