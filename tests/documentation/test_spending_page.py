"""The tables of docs/spending-the-budget.md, computed again by formulas, enumeration and simulation; and its code."""

from __future__ import annotations

import functools
import math
import re
from math import comb

import numpy as np
import pytest
from doc_pages import PAGES, blocks
from test_results import CLAIMS, FOUND, results_page

from winnow.algos.selectors import max_variance
from winnow.budget import cuts, rounds, sampling
from winnow.budget.gradients import round_factor
from winnow.budget.sampling import PromptTable
from winnow.config import Config
from winnow.options import bind
from winnow.registry import members
from winnow.seeds import Rng, generator
from winnow.testing import check_cut, check_round, check_sampler, group_of
from winnow.training.factors import credits_of

NAME = "docs/spending-the-budget.md"
PAGE = PAGES[NAME]


def table(first):
    """(the numbers of the head, the rows) of the table whose head begins so."""
    head, _, *rows = PAGE[PAGE.index(first) :].partition("\n\n")[0].splitlines()
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return [[int(n) for n in re.findall(r"\d+", cell)] for cell in head.strip("|").split("|")[1:]], cells


def own(family):
    return {name: entry for name, entry in members(family).items() if entry.origin == "winnow"}


def credits(advantage):
    return credits_of(bind(members("advantage")[advantage], {}, key="advantage"))


@pytest.mark.parametrize(
    "place",
    [
        "claim_02_tuned grpo_16 pods_64_16 steps",
        "claim_02_tuned grpo_16 pods_64_16 seconds two_cpu_cores",
        "claim_02_tuned grpo_64 pods_64_16 seconds two_cpu_cores",
        "claim_02_tuned grpo_64 pods_64_16 steps",
        "claim_14_tuned pods_64_16 random seconds two_cpu_cores",
        "claim_14_tuned pods_64_16 pods_64_4 seconds two_cpu_cores",
        "claim_14_tuned pods_64_16 max_reward seconds two_cpu_cores",
        "claim_14_tuned raft_16 raft_gvm tokens_generated",
    ],
)
def test_what_is_shown_to_help_is_what_the_claims_show(place):
    assert results_page.filled(f"{{{place}}}", CLAIMS, FOUND) in PAGE.partition("\n## How many to sample")[0]


def test_no_member_of_the_budget_is_shown_to_raise_the_accuracy_and_two_cuts_lower_it():
    assert results_page.words.candidates(["budget_screen", "budget_dr_grpo", "budget_confirm"])[1] == 0
    assert results_page.words.candidates(["budget_cuts"]) == (3, 0, 2)


# n and m -------------------------------------------------------------------------------------------------------------


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


# Samplers ------------------------------------------------------------------------------------------------------------

PROMPTS, COUNT, ROLLOUTS, STEPS = 512, 32, 8, 240
# Of a third each: never solved, always solved, and all pass rates between
RATES = np.concatenate([np.zeros(170), np.ones(170), (np.arange(172) + 0.5) / 172])
BANDS = {"0": RATES == 0, "0 to 0.25": (RATES > 0) & (RATES < 0.25), "0.25 to 0.75": np.abs(RATES - 0.5) <= 0.25}
BANDS |= {"0.75 to 1": (RATES > 0.75) & (RATES < 1), "1": RATES == 1}
SAMPLERS = {name: getattr(sampling, name) for name in own("sampler") if name != "adarft"} | {
    "adarft": functools.partial(sampling.adarft, start=50.0)
}


def shares(name):
    """[bands] shares of the draws of the second half of a run of 240 steps, from a static pool."""
    found, state = PromptTable.empty(PROMPTS, difficulty=100 * (1 - RATES)), {}
    every = []
    for step in range(STEPS):
        draw = SAMPLERS[name](found, state, lambda stream, number: generator("samplers page", stream, number), COUNT)
        right = generator("samplers verdicts", name, step).random((COUNT, ROLLOUTS)) < RATES[draw.rows, None]
        found = found.drawn(draw.rows).observed(draw.rows, np.full(COUNT, ROLLOUTS), right.sum(axis=1), decay=0.9)
        state = draw.state
        every.append(draw.rows)
    rows = np.concatenate(every[STEPS // 2 :])
    return [float(np.mean(band[rows])) for band in BANDS.values()]


def share_lines():
    yield "| pool | " + " | ".join(f"{np.mean(band):.0%}" for band in BANDS.values()) + " |"
    for name in ("uniform", "greso", "mopps", "adarft", "cures", "replay", "retire"):
        yield f"| `{name}` | " + " | ".join(f"{share:.0%}" for share in shares(name)) + " |"


def test_the_share_of_draws_is_that_of_the_samplers():
    assert "\n".join(share_lines()) in PAGE


def test_the_probabilities_of_draws_are_as_declared():
    for sampler, entry in own("sampler").items():
        assert f"| `{sampler}` | {entry.traits.probability} |" in PAGE


# Rounds --------------------------------------------------------------------------------------------------------------

ROUNDS = {
    "single": rounds.single,
    "balanced": functools.partial(rounds.balanced, per_round=4),
    "positive": functools.partial(rounds.positive, per_round=4),
    "pilot_commit": functools.partial(rounds.pilot_commit, pilot=4),
}


def factor_of(rule, pass_rate, advantage):
    return round_factor(rule, pass_rate, 16, credits(advantage)(pass_rate))


def round_lines():
    for name, rule in ROUNDS.items():
        for pass_rate in (0.05, 0.5, 0.95):
            ends = rounds.distribution(rule, pass_rate, 16).items()
            rollouts = sum(p * n for (n, _), p in ends)
            bias = sum(p * c / n for (n, c), p in ends) - pass_rate
            numbers = " | ".join(f"{factor_of(rule, pass_rate, advantage):.2f}" for advantage in ("grpo", "rloo"))
            line = f"| `{name}` | {pass_rate} | {rollouts:.1f} | {bias + 0.0:.3f} | {numbers} |"
            yield line.replace("-0.000", "0.000")


def test_the_table_of_rounds_is_enumerated():
    assert Config().advantage.use == "grpo"
    assert "\n".join(round_lines()) in PAGE
    screening = functools.partial(rounds.screening, pilot=4)
    for rate in (0.05, 0.5, 0.95):
        known = rounds.distribution(ROUNDS["pilot_commit"], rate, 16)
        assert rounds.distribution(screening, rate, 16) == pytest.approx(known)


def test_the_advantages_that_a_single_round_does_not_change_are_named():
    """An advantage of a value model is no function of the verdicts; `raft` is `raw` on these rewards."""
    names = {name for name, entry in own("advantage").items() if entry.traits.baseline != "values"} - {"raft"}
    one = {name for name in names if all(abs(factor_of(rounds.single, p, name) - 1) < 0.005 for p in (0.05, 0.5, 0.95))}
    assert one == {"rloo", "batch", "raw"}


# Cuts ----------------------------------------------------------------------------------------------------------------

CUTS = {
    "none": cuts.none,
    "token_budget": functools.partial(cuts.token_budget, tokens=40),
    "stragglers": functools.partial(cuts.stragglers, share=0.5),
    "unlikely": functools.partial(cuts.unlikely, after=2, least=-1.0),
}
LONGER = {"neither": 0.5, "correct ones": 0.8}  # share of long ones among the correct


def kinds(long_and_correct):
    """Half are correct. Short ones have 4 likely tokens, long ones 8 unlikely ones, and half of all are long."""
    for correct in (True, False):
        share = long_and_correct if correct else 1 - long_and_correct
        yield cuts.RolloutKind(length=4, correct=correct, probability=0.5 * (1 - share), logprob=-0.5)
        yield cuts.RolloutKind(length=8, correct=correct, probability=0.5 * share, logprob=-2.0)


@functools.cache
def plain_cut(rule, share):
    """What is left under a rule, whatever the advantage."""
    return cuts.expected(rule, tuple(kinds(share)), 8)


def cut_factors(rule, share, advantage):
    """The factors of the four kinds, and what else is expected. A baseline of the step is the mean of what is left."""
    plain = plain_cut(rule, share)
    found = cuts.expected(rule, tuple(kinds(share)), 8, credits(advantage)(plain.correct / plain.kept))
    return found, [abs(factor) for factor in found.gradient.tolist()]


def test_the_table_of_cuts_is_enumerated():
    for name, rule in CUTS.items():
        for longer, share in LONGER.items():
            found, each = cut_factors(rule, share, "grpo")
            bias = f"{found.pass_rate - 0.5:.3f}".replace("-0.000", "0.000")
            factors = " | ".join(f"{factor + 1e-9:.2f}" for factor in each)
            line = f"| `{name}` | {longer} | {found.tokens:.1f} | {found.kept:.2f} | {bias} | {factors} |"
            assert (line in PAGE) is (name != "none" or longer == "neither"), line


@pytest.mark.parametrize("advantage", ["grpo", "dr_grpo", "rloo", "maxrl", "batch", "raw"])
def test_short_rollouts_weigh_more_under_every_advantage(advantage):
    for rule in list(CUTS.values())[1:]:
        for share in LONGER.values():
            short, long, *wrong = cut_factors(rule, share, advantage)[1]
            assert short > long
            assert math.isnan(wrong[0]) or wrong[0] > wrong[1]


# Its code ------------------------------------------------------------------------------------------------------------


def run(number):
    names: dict = {}
    exec([block.text for block in blocks(NAME) if block.language == "python"][number], names)
    return names


def test_the_rules_of_the_page_meet_their_contracts_or_fail_as_stated():
    names = run(0)
    found = PromptTable.empty(4).observed(np.array([0, 1, 3]), np.array([4, 4, 4]), np.array([4, 1, 2]))
    rows, state = names["hardest_first"](found, {}, lambda name, number: np.random.default_rng(number), 3)
    assert (rows.tolist(), state) == ([2, 1, 3], {})
    with pytest.raises(AssertionError):
        check_sampler(names["hardest_first"])
    check_round(names["until_three_wrong"])
    check_cut(names["at_twice_the_median"])


def test_the_functions_of_arrays_return_what_the_page_has():
    names = run(1)
    assert f"`{names['counts'].tolist()}`" in PAGE
    assert names["keep"].sum() == 4
    assert np.all(names["keep"][names["rewards"] == 1])
    assert run(2)["prompts"].tolist() == [True, False, True]
    assert "This keeps the first and the last prompt." in PAGE
