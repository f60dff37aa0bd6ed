"""winnow's members repeat the options of the functions in winnow.budget, with checks; the defaults must be the same."""

from __future__ import annotations

import inspect

import pytest

from winnow.budget import cuts, rounds, sampling
from winnow.registry import members

OF_MEMBER = {"adarft": {"field"}}  # options that the function of arrays does not need
REQUIRED = inspect.Parameter.empty


def options(function):
    parameters = inspect.signature(function).parameters.values()
    return {of.name: of.default for of in parameters if of.kind is inspect.Parameter.KEYWORD_ONLY}


@pytest.mark.parametrize(
    ("member", "function"),
    [
        pytest.param(entry, getattr(library, entry.name), id=f"{family}-{entry.name}")
        for family, library in (("sampler", sampling), ("round", rounds), ("cut", cuts))
        for entry in members(family).values()
    ],
)
def test_a_member_has_the_defaults_of_its_function(member, function):
    own = OF_MEMBER.get(member.name, set())
    mine = {name: default for name, default in options(member.function).items() if name not in own}
    assert mine == options(function)


def test_the_comparison_sees_an_option_without_a_default():
    assert options(cuts.token_budget) == {"tokens": REQUIRED}
