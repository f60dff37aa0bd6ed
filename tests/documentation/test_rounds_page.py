"""The table of docs/rounds.md, enumerated again."""

from __future__ import annotations

import functools
from pathlib import Path

from winnow.budget.gradients import round_factor
from winnow.budget.rounds import balanced, distribution, pilot_commit, positive, screening, single
from winnow.config import Config
from winnow.options import bind
from winnow.registry import members
from winnow.testing import check_round
from winnow.training.factors import credits_of

PAGE = Path(__file__).parents[2] / "docs" / "rounds.md"
RULES = {
    "single": single,
    "balanced": functools.partial(balanced, per_round=4),
    "positive": functools.partial(positive, per_round=4),
    "pilot_commit": functools.partial(pilot_commit, pilot=4),
    "screening": functools.partial(screening, pilot=4),
}
ADVANTAGES = ("grpo", "dr_grpo", "rloo", "maxrl", "batch", "raw")


def rows():
    credits = {name: credits_of(bind(members("advantage")[name], {}, key="advantage")) for name in ADVANTAGES}
    for name, rule in RULES.items():
        for pass_rate in (0.05, 0.25, 0.5, 0.75, 0.95):
            ends = distribution(rule, pass_rate, 16).items()
            rollouts = sum(p * n for (n, _), p in ends)
            bias = sum(p * c / n for (n, c), p in ends) - pass_rate
            factors = [round_factor(rule, pass_rate, 16, of(pass_rate)) for of in credits.values()]
            numbers = " | ".join(f"{factor:.2f}" for factor in factors)
            yield f"| `{name}` | {pass_rate} | {rollouts:.1f} | {bias + 0.0:.3f} | {numbers} |".replace(
                "-0.000", "0.000"
            )


def test_the_columns_are_the_default_and_each_kind_of_baseline():
    """An advantage of a value model is no function of the verdicts; `raft` is `raw` on these rewards."""
    assert ADVANTAGES[0] == Config().advantage.use
    own = {name: entry.traits.baseline for name, entry in members("advantage").items() if entry.origin == "winnow"}
    assert set(ADVANTAGES) == {name for name, baseline in own.items() if baseline != "values"} - {"raft"}


def test_the_rule_of_the_page_meets_its_contract():
    (code,) = [block for block in PAGE.read_text(encoding="utf-8").split("```python\n")[1:]]
    names: dict[str, object] = {}
    exec(code.partition("```")[0], names)
    check_round(names["until_three_wrong"])


def test_the_table_is_that_of_the_rules():
    page = PAGE.read_text(encoding="utf-8")
    assert "\n".join(rows()) in page
