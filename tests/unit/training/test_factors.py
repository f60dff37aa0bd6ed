"""What `winnow check` warns of where a rule of rounds or a cut, with an advantage, weighs the gradient anew."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from winnow.config_file import validate
from winnow.training.advice import advice
from winnow.training.budget import budget
from winnow.training.factors import PASS_RATES, cut_factors, round_factors
from winnow.training.resolve import resolve_members

ALL = {"select": "all", "weighting": "prompt"}


def members(base=Path(), **keys):
    return resolve_members(validate({**ALL, **keys}), base)


def warned(m):
    """The rule or cut, and the advantage, of each warning about factors."""
    lines = [line for line in advice(m, budget(m)) if "expected gradient" in line]
    return [re.findall(r"(rounds|cut) = '(\w+)' with advantage = '(\w+)'", line)[0] for line in lines]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, []),  # one round, whatever the advantage
        ({"advantage": "rloo"}, []),
        ({"rounds": {"use": "balanced", "per_round": 4}}, [("rounds", "balanced", "grpo")]),
        ({"rounds": {"use": "balanced", "per_round": 4}, "advantage": "rloo"}, [("rounds", "balanced", "rloo")]),
        ({"rounds": "screening", "advantage": "raw"}, [("rounds", "screening", "raw")]),
        ({"rounds": "positive", "advantage": "batch"}, [("rounds", "positive", "batch")]),
        ({"rounds": {"use": "positive", "per_round": 16}, "advantage": "rloo"}, []),  # the whole plan is one round
        ({"rounds": {"use": "pilot_commit", "low": 0.0, "high": 1.0}, "advantage": "rloo"}, []),  # always continued
        ({"cut": "stragglers"}, [("cut", "stragglers", "grpo")]),
        ({"cut": {"use": "token_budget", "tokens": 10**6}, "advantage": "rloo"}, []),  # more than all tokens
        ({"cut": {"use": "token_budget", "tokens": 16_000}, "advantage": "rloo"}, [("cut", "token_budget", "rloo")]),
        ({"cut": {"use": "unlikely", "least": -3.0}, "advantage": "rloo"}, []),
        ({"cut": {"use": "stragglers", "share": 1.0}, "advantage": "rloo"}, []),
    ],
)
def test_a_combination_is_named_if_a_factor_is_more_than_5_percent_from_1(keys, expected):
    assert warned(members(**keys)) == expected


@pytest.mark.parametrize(
    ("keys", "warns"),
    [
        ({}, False),
        ({"rounds": {"use": "balanced", "per_round": 8}}, False),
        ({"rounds": {"use": "balanced", "per_round": 16}}, True),  # the whole plan is one round
        ({"rounds": {"use": "balanced", "per_round": 16}, "allocate": "gvm_online"}, False),  # a prompt may have more
        ({"rounds": {"use": "positive", "right": 17, "per_round": 4}, "advantage": "rloo"}, True),  # never enough
        ({"rounds": {"use": "screening", "pilot": 16}}, True),
        ({"rounds": {"use": "pilot_commit", "low": 0.0, "high": 1.0}}, True),  # always continued
    ],
)
def test_a_rule_that_never_ends_a_prompt_early_is_named(keys, warns):
    m = members(rollout={"rollouts_per_prompt": 16}, **keys)
    of_rounds = [line for line in advice(m, budget(m)) if line.startswith("rounds =")]
    assert sum("expected gradient" not in line for line in of_rounds) == warns


def test_a_rule_that_returns_a_list_or_nonsense_is_refused_by_the_run_and_not_here(tmp_path):
    (tmp_path / "mine.py").write_text(
        "def whole(seen):\n    return [int(n) for n in seen.planned - seen.sampled]\n\n\n"
        "def nonsense(seen):\n    return 'all'\n"
    )
    assert round_factors(members(tmp_path, rounds="mine.py:nonsense")) is None
    assert all(factor == once for factor, once in round_factors(members(tmp_path, rounds="mine.py:whole")))


def test_the_warning_has_the_factors():
    m = members(rounds={"use": "balanced", "per_round": 4})
    (line,) = [line for line in advice(m, budget(m)) if "expected gradient" in line]
    for factor, rate in zip(("0.71", "0.91", "0.87", "0.91", "0.71"), PASS_RATES, strict=True):
        assert f"{factor} at {rate:g}" in line


def test_a_rule_and_an_advantage_of_ones_own_are_enumerated_too(tmp_path):
    """Three rollouts, and the rest unless all are wrong. The advantage is the reward."""
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n\n\n"
        "def three_first(seen):\n"
        "    rest = np.where(seen.correct > 0, seen.planned - seen.sampled, 0)\n"
        "    return np.where(seen.sampled == 0, np.minimum(3, seen.planned), rest)\n\n\n"
        "def plain(groups):\n"
        "    return [np.where(g.keep, g.rewards, 0.0) for g in groups]\n\n\n"
        "def broken(groups):\n"
        "    return [np.array([g.prompt.meta['level']] * len(g.rollouts)) for g in groups]\n\n\n"
        "def by_part(groups):\n"
        "    return [np.array([o.parts.get('answer', 0.0) for o in g.outcomes]) for g in groups]\n"
    )
    own = {"rounds": "mine.py:three_first", "rollout": {"rollouts_per_prompt": 4}}
    found = round_factors(members(tmp_path, **own, advantage="mine.py:plain"))
    for p, (factor, once) in zip(PASS_RATES, found, strict=True):
        all_wrong = (1 - p) ** 3
        assert once == pytest.approx(1.0)
        # E[share]: with all three wrong it is 0; else (c + one more) / 4
        assert factor * p == pytest.approx((3 * p + (1 - all_wrong) * p) / 4)
    assert round_factors(members(tmp_path, **own, advantage="mine.py:broken")) is None
    assert round_factors(members(tmp_path, **own, advantage="mine.py:by_part")) is None  # groups here have no parts


def test_nothing_is_said_of_an_advantage_that_is_no_function_of_counts():
    for keys in ({"advantage": {"use": "grpo", "chunk": 4}}, {"advantage": "gae", "critic": {"form": "shared"}}):
        m = members(**keys, rounds="balanced", **({"model": {"lora": {"rank": 2}}} if "critic" in keys else {}))
        assert round_factors(m) is None
        assert cut_factors(m) is None


def test_a_budget_of_tokens_is_that_of_the_whole_step():
    """32 prompts of 4 rollouts: 8 x 48 tokens each would be 12,288; a budget of half of it leaves the short ones."""
    keys = {"rollout": {"rollouts_per_prompt": 4, "max_new_tokens": 48}, "advantage": "rloo"}
    enough = cut_factors(members(**keys, cut={"use": "token_budget", "tokens": 32 * 4 * 48}))
    assert enough == pytest.approx([1.0] * 4, rel=1e-5)
    short_only = cut_factors(members(**keys, cut={"use": "token_budget", "tokens": 32 * 4 * 24}))
    right_short, right_long, wrong_short, wrong_long = short_only
    assert right_short == pytest.approx(wrong_short)
    assert right_short > 1
    assert np.abs([right_long, wrong_long]).max() < 0.3
