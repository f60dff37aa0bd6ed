"""Every registered environment meets the contract, and one that breaks it is found."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from winnow.environments.contract import check_environment
from winnow.families import ENVIRONMENT, EnvironmentTraits
from winnow.registry import Entry, members
from winnow.testing import check_member

OWN = [entry for entry in members("environment").values() if entry.package == "winnow"]


@pytest.mark.parametrize("entry", OWN, ids=lambda entry: entry.name)
def test_every_registered_environment_meets_the_contract(entry):
    if entry.name == "verifiers":
        pytest.skip("it plays a task set of another library: tests/with_verifiers checks it on one")
    check_member(entry)


def entry_of(function):
    return Entry(ENVIRONMENT, function.__name__, function, EnvironmentTraits(example=lambda gold: ["first", str(gold)]))


def good(prompt, reply, rng):
    reply = yield "again"
    return float(reply == prompt.answer)


def generous(prompt, reply, rng):
    reply = yield "again"
    return 2.0 if len(reply) > 100 else float(reply == prompt.answer)


def endless(prompt, reply, rng):
    while reply != prompt.answer:
        reply = yield "again"
    return 1.0


def unsteady(prompt, reply, rng, *, count=itertools.count()):  # noqa: B008
    yield str(next(count))
    return 1.0


def fragile(prompt, reply, rng):
    reply = yield "again"
    return float(int(reply) == int(prompt.answer))


class Boxes:
    def reset(self, stock: int) -> str:
        self.stock = stock
        return f" There are {stock} boxes."

    def take(self, count: int) -> str:
        """Take boxes."""
        self.stock -= count
        return str(self.stock)

    def get_reward(self):
        return float(self.stock == 0)


def test_a_class_whose_reset_returns_a_text_passes():
    member = ENVIRONMENT.member_of(Boxes)
    traits = dataclasses.replace(ENVIRONMENT.traits_of(member), example=lambda gold: ["<call>take 5</call>", "done"])
    check_environment(Entry(ENVIRONMENT, "boxes", member, traits), meta={"stock": 5})


def test_a_good_environment_passes():
    check_environment(entry_of(good))


@pytest.mark.parametrize("broken", [generous, endless, unsteady, fragile])
def test_an_environment_that_breaks_the_contract_is_found(broken):
    with pytest.raises(AssertionError):
        check_environment(entry_of(broken))


def test_options_leave_the_traits_as_declared():
    def half(prompt, reply, rng, *, share: float):
        return share * (reply == prompt.answer)

    traits = EnvironmentTraits(example=lambda gold: [str(gold)], correct_at=0.5, best=0.5)
    check_member(Entry(ENVIRONMENT, "half", half, traits), {"share": 0.5})
