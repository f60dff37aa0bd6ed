"""Every registered member meets the contract of its family, and so must a user's function."""

from __future__ import annotations

import functools
import re

import numpy as np
import pytest
import torch

from winnow.algos.chunks import credit_in_chunks, kept_in_chunks, select_in_chunks
from winnow.budget.sampling import uniform
from winnow.families import FAMILIES
from winnow.records import Problem
from winnow.registry import Entry, members, resolve
from winnow.testing import (
    RNG,
    check_advantage,
    check_allocator,
    check_correction,
    check_engine,
    check_loss,
    check_member,
    check_sampler,
    check_selector,
    check_task,
    check_term,
    check_weighting,
    group_of,
)

LAWS = ("sampler", "allocator", "round", "cut", "selector", "advantage", "weighting", "loss", "correction", "term")
ENTRIES = [entry for family in LAWS for entry in members(family).values()]
REQUIRED = {"token_budget": {"tokens": 60}}  # options without a default


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{entry.family.name}-{entry.name}")
def test_a_member_meets_the_contract_of_its_family(entry):
    check_member(entry, REQUIRED.get(entry.name))


@pytest.mark.parametrize("entry", [e for e in ENTRIES if e.family.name == "selector"], ids=lambda entry: entry.name)
def test_a_selector_meets_its_contract_in_chunks(entry):
    """In a chunk, as in a group, a sized selector keeps exactly its number of rollouts, in any order."""
    sized = "keep_per_prompt" in entry.options
    select = select_in_chunks(functools.partial(entry.function, keep_per_prompt=2) if sized else entry.function, 3)
    check_selector(select)
    if sized and entry.traits.size == "exact":
        for n in (1, 3, 8):
            assert select(group_of([0.5] * n), RNG).sum() == kept_in_chunks(2, n, 3)


@pytest.mark.parametrize("entry", [e for e in ENTRIES if e.family.name == "advantage"], ids=lambda entry: entry.name)
def test_an_advantage_meets_its_contract_in_chunks(entry):
    baseline, needs = entry.traits.baseline, entry.traits.needs
    check_advantage(
        credit_in_chunks(entry.function, 2), baseline=None if baseline == "batch" else baseline, needs=needs
    )


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_every_family_has_a_contract_and_members(family):
    assert callable(family.check())
    assert members(family.name)


def own(family):
    """Winnow's members; other tests register theirs in the same process."""
    return {name: entry for name, entry in members(family).items() if entry.origin == "winnow"}


def test_every_member_declares_the_traits_that_contracts_read():
    assert {entry.traits.baseline for entry in own("advantage").values()} == {"group", "batch", "values", "none"}
    assert all(entry.traits.total for entry in own("weighting").values())
    sizes = {name: entry.traits.size for name, entry in own("selector").items()}
    assert sizes == dict.fromkeys(sizes, "exact") | {"all": "all", "finished": "varies", "threshold": "varies"}


def test_a_task_and_an_engine_meet_their_contracts():
    """Of the engines, test_engine_contract.py checks each."""
    check_member(resolve("task", "arithmetic"), {"size": 200})
    check_member(resolve("engine", "native"))


def test_a_user_s_function_is_checked_by_the_same_contract(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n\n\n"
        "def leave_one_out(groups):\n"
        "    def credit(r):\n"
        "        n = len(r)\n"
        "        return r - (r.sum() - r) / (n - 1) if n > 1 else np.zeros(n)\n\n"
        "    return [np.where(g.keep, credit(g.rewards), 0.0) for g in groups]\n"
    )
    check_advantage(resolve("advantage", "mine.py:leave_one_out", base=tmp_path).function)


# Each of these breaks one law of its contract.
def by_position(group, rng):
    return np.arange(len(group.rollouts)) < 4


def too_few(group, rng):
    return np.zeros(len(group.rollouts), dtype=bool)


def reaches_dropped(groups):
    return [g.rewards - 0.3 for g in groups]


def reads_what_was_not_read(groups):
    return [[values - values.mean() for values in g.values] for g in groups]


def ignores_flatness(groups):
    return [np.where(g.keep, 1.0, 0.0) for g in groups]


def negative(kept):
    return -np.ones(len(kept.lengths))


def half(kept):
    return np.full(len(kept.lengths), 0.5 / kept.lengths.sum())


def wrong_sign(out, mb):
    return mb.advantages * out.logprobs, {}


def always_acts(out, mb):
    return torch.ones_like(out.logprobs), torch.ones_like(out.logprobs, dtype=torch.bool)


def passes_the_gradient_on(out, mb):
    ratio = (out.logprobs - mb.behaviour_logprobs).exp()
    return ratio, ratio > 2


def overspends(stats, budget):
    return np.full(len(stats.ids), budget)


def starves(table, state, rng, count):
    return np.arange(count), state


def draws_anew(table, state, rng, count):
    return np.random.default_rng().permutation(len(table))[:count], state


def repeats(table, state, rng, count):
    return rng("draw", table.draws).integers(len(table), size=count), state


def keeps_a_mask(table, state, rng, count):
    rows, after, *_ = uniform(table, state, rng, count)
    return rows, {**after, "mask": np.zeros(len(table), dtype=bool)}


def overflows(out, mb):
    old = out.logprobs.detach() if mb.old_logprobs is None else mb.old_logprobs
    return -torch.exp(out.logprobs - old) * mb.advantages, {}


def overflowing_term(out, mb):
    return torch.exp(mb.ref_logprobs - out.logprobs)


def one_number(out, mb):
    return out.logprobs.sum()


def same_problems(split):
    return [Problem(id="p", question="1 + 1", answer="2", task="mine")]


def forgets_the_version(context):
    engine = resolve("engine", "native").function(context)
    engine.load = lambda weights, version: None
    return engine


@pytest.mark.parametrize(
    ("check", "broken"),
    [
        (check_selector, by_position),
        (functools.partial(check_selector, keep=4), too_few),
        (check_advantage, reaches_dropped),
        (functools.partial(check_advantage, baseline="group"), ignores_flatness),
        (functools.partial(check_advantage, needs=("values",)), reads_what_was_not_read),
        (check_weighting, negative),
        (functools.partial(check_weighting, total="one"), half),
        (functools.partial(check_loss, policy_gradient=True), wrong_sign),
        (check_correction, always_acts),
        (check_correction, passes_the_gradient_on),
        (check_allocator, overspends),
        (check_sampler, starves),
        (check_sampler, draws_anew),
        (check_sampler, repeats),
        (check_sampler, keeps_a_mask),
        (functools.partial(check_sampler, probability="known"), uniform),
        (check_loss, overflows),
        (check_term, overflowing_term),
        (check_term, one_number),
        (check_task, same_problems),
        (check_engine, forgets_the_version),
    ],
    ids=lambda x: getattr(x, "__name__", None),
)
def test_each_contract_fails_for_a_function_that_breaks_it(check, broken):
    with pytest.raises(AssertionError):
        check(broken)


def with_traits(family, function, **traits):
    return Entry(FAMILIES[family], "mine", function, FAMILIES[family].declare(traits))


def fewer(group, rng, *, keep_per_prompt: int):
    return (rng.uniforms(group.ids) < 0.5) & (np.arange(len(group.rollouts)) < 0)


def of_the_batch(groups):
    everything = np.concatenate([g.rewards[g.keep] for g in groups])
    return [np.where(g.keep, g.rewards - everything.mean(), 0.0) for g in groups]


def of_values(groups):
    return [[np.nan_to_num(values) * 0.0 for values in g.values] for g in groups]


def of_entropy(out, mb):
    return -mb.advantages * out.logprobs + 0 * out.entropy + 0 * mb.ref_logprobs, {}


def positive_only(out, mb):
    return -mb.advantages.clamp(min=0) * out.logprobs, {}


def limited(group, rng, *, tokens: int):
    return group.lengths <= tokens


@pytest.mark.parametrize(
    ("family", "function", "traits", "named", "cured"),
    [
        ("selector", fewer, {}, "size='varies'", {"size": "varies", "keep_per_prompt": 4}),
        ("advantage", of_the_batch, {}, "baseline=", {"baseline": "batch"}),
        ("advantage", of_values, {"baseline": "values"}, "needs", {"baseline": "values", "needs": ("values",)}),
        ("weighting", half, {"total": "one"}, "total='one'", {}),
        ("loss", positive_only, {"policy_gradient": True}, "'positive'", {"policy_gradient": "positive"}),
        ("sampler", uniform, {"probability": "known"}, "probability='known'", {"probability": "equal"}),
        ("selector", limited, {"size": "varies"}, "{'tokens': ...}", {"size": "varies", "tokens": 60}),
    ],
)
def test_a_failure_names_the_trait_or_option_to_set(family, function, traits, named, cured):
    with pytest.raises(AssertionError, match=re.escape(named)):
        check_member(with_traits(family, function, **traits))
    options = {name: value for name, value in cured.items() if name in ("keep_per_prompt", "tokens")}
    check_member(with_traits(family, function, **{k: v for k, v in cured.items() if k not in options}), options)


def test_a_loss_that_declares_its_inputs_gets_them():
    check_member(with_traits("loss", of_entropy, policy_gradient=True, needs=("entropy", "ref_logprobs")))


def test_a_member_that_raises_fails_its_contract_by_name():
    def broken(kept):
        raise KeyError("lengths")

    with pytest.raises(AssertionError, match="'mine' raised KeyError"):
        check_member(with_traits("weighting", broken))
