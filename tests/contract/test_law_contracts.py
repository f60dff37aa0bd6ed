"""Registering is enrolling: every member of a family is held to its family's contract, a user's own function too."""

from __future__ import annotations

import functools
import inspect

import numpy as np
import pytest

import winnow.training.members  # noqa: F401  registers every member
from winnow.registry import Entry, members, resolve
from winnow.testing import check_advantage, check_allocator, check_loss, check_selector, check_weighting


def over(family):
    return pytest.mark.parametrize("entry", members(family).values(), ids=lambda e: e.name)


def sized(entry: Entry):
    """The selector at 4 per prompt where it can be told so, and the size it then must keep."""
    if "keep_per_prompt" in inspect.signature(entry.function).parameters:
        return functools.partial(entry.function, keep_per_prompt=4), None if entry.traits.get("size") else 4
    return entry.function, None


@over("selector")
def test_selectors(entry):
    selector, keep = sized(entry)
    check_selector(selector, keep=keep)


@over("advantage")
def test_advantages(entry):
    assert "baseline" in entry.traits, f"{entry.name} must say what its baseline is"
    check_advantage(entry.function, baseline=entry.traits["baseline"])


@over("weighting")
def test_weightings(entry):
    assert "total" in entry.traits, f"{entry.name} must say what its weights add up to"
    check_weighting(entry.function, total=entry.traits["total"])


@over("loss")
def test_losses(entry):
    check_loss(entry.function, policy_gradient=entry.traits.get("policy_gradient", False))


@over("allocator")
def test_allocators(entry):
    check_allocator(entry.function)


def test_a_users_own_function_goes_through_the_same_contract(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n\n\n"
        "def leave_one_out(groups):\n"
        "    def credit(r):\n"
        "        n = len(r)\n"
        "        return r - (r.sum() - r) / (n - 1) if n > 1 else np.zeros(n)\n\n"
        "    return [np.where(g.keep, credit(g.rewards), 0.0) for g in groups]\n"
    )
    check_advantage(resolve("advantage", "mine.py:leave_one_out", base=tmp_path).function)


# Each of these breaks one law; a contract that lets it pass is no contract.
def by_position(group, rng):
    return np.arange(len(group.rollouts)) < 4


def too_few(group, rng):
    return np.zeros(len(group.rollouts), dtype=bool)


def reaches_dropped(groups):
    return [g.rewards - 0.3 for g in groups]


def ignores_flatness(groups):
    return [np.where(g.keep, 1.0, 0.0) for g in groups]


def negative(shape):
    return -np.ones(len(shape.lengths))


def half(shape):
    return np.full(len(shape.lengths), 0.5 / shape.lengths.sum())


def wrong_sign(out, mb):
    return mb.advantages * out.logprobs, {}


def overspends(stats, budget):
    return np.full(len(stats.ids), budget)


@pytest.mark.parametrize(
    ("check", "broken"),
    [
        (check_selector, by_position),
        (functools.partial(check_selector, keep=4), too_few),
        (check_advantage, reaches_dropped),
        (functools.partial(check_advantage, baseline="group"), ignores_flatness),
        (check_weighting, negative),
        (functools.partial(check_weighting, total="one"), half),
        (functools.partial(check_loss, policy_gradient=True), wrong_sign),
        (check_allocator, overspends),
    ],
    ids=lambda x: getattr(x, "__name__", None),
)
def test_the_contracts_have_teeth(check, broken):
    with pytest.raises(AssertionError):
        check(broken)
