"""An allocator is refused beside members for which its value was not derived, and measures no norms that it ignores."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

import winnow
from refusals import refused
from winnow.algos.advantage import per_group
from winnow.config_file import validate
from winnow.core.plan import prompt_gradient_norms
from winnow.errors import ConfigError
from winnow.training.resolve import resolve_members

VIP = {"allocate": "vip_rloo", "advantage": "rloo", "select": "all", "weighting": "prompt"}


def resolved(**config):
    return resolve_members(validate(config), Path())


def own(groups):
    """An advantage of the user's, of which the allocator's assumption is unknown."""
    return per_group(lambda r, over: r - over.mean(), groups, "kept")


@pytest.mark.parametrize(
    "change",
    [
        {"advantage": "maxrl"},
        {"advantage": "grpo"},
        {"select": {"use": "max_variance", "keep_per_prompt": 4}},
        {"select": ["finished", "all"]},
        {"weighting": "token"},
        {"allocate": "vip_dr_grpo"},
        {"allocate": "knapsack", "advantage": "maxrl"},
        {"allocate": "cures", "advantage": "raft"},
    ],
)
def test_a_member_that_the_value_does_not_fit_is_refused(change):
    key = next((key for key in ("advantage", "select", "weighting") if key in change), "advantage")
    with refused(ConfigError, key, key="allocate", code="config.combination"):
        resolved(**VIP | change)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"advantage": own},
        {"allocate": "vip_dr_grpo", "advantage": "dr_grpo"},
        {"allocate": "knapsack", "select": {"use": "max_variance", "keep_per_prompt": 4}, "weighting": "token"},
        {"allocate": "cures"},
        {"allocate": "gvm_online", "advantage": "maxrl"},  # it declares nothing
    ],
)
def test_a_member_that_fits_or_is_unknown_is_accepted(change):
    resolved(**VIP | change)


def test_a_minimum_is_raised_for_a_group_baseline_and_never_lowered():
    def minimum(**change):
        return resolved(**VIP | change).allocate.options["minimum"]

    assert minimum(allocate="vip_dr_grpo", advantage="dr_grpo") == 3
    assert (minimum(), minimum(allocate="cures"), minimum(allocate="gvm")) == (2, 2, 2)
    assert minimum(allocate={"use": "vip_rloo", "minimum": 5}) == 5
    assert minimum(allocate="gvm", advantage="raft") == 0
    with refused(ConfigError, key="allocate.minimum", code="config.value"):
        minimum(allocate={"use": "vip_dr_grpo", "minimum": 2}, advantage="dr_grpo")


def test_norms_are_measured_for_an_allocator_that_reads_them():
    assert resolved(**VIP).gradient_norm == "none"
    assert resolved(**VIP | {"allocate": "cures"}).gradient_norm == "embedding"
    norms = {"probe": {"gradient_norm": "output_head"}}
    assert resolved(**VIP | {"allocate": "gvm_online"} | norms).gradient_norm == "output_head"
    with refused(ConfigError, "gradient_norm", key="probe.gradient_norm", code="config.no_effect"):
        resolved(**VIP | norms)
    members = resolved(**VIP)
    run = SimpleNamespace(members=members, config=members.config, learner=None)  # a measurement would need a learner
    assert prompt_gradient_norms(run, []) is None


def test_an_assumption_about_a_key_that_does_not_exist_is_refused():
    with refused(ConfigError, code="config.registration"):
        winnow.register("allocator", "mine", assumes={"loss": ("clip",)})(lambda stats, budget: None)


@pytest.mark.parametrize("name", ["knapsack", "vip_rloo", "cures"])
def test_a_budget_below_the_least_counts_is_refused(name):
    """Every prompt gets `minimum`, here 4, so nothing is left to decide with 3 rollouts per prompt or fewer."""
    laws = {**VIP, "allocate": {"use": name, "minimum": 4}}
    assert resolved(**laws, rollout={"rollouts_per_prompt": 4}).allocate.options["minimum"] == 4
    with refused(ConfigError, code="config.combination", key="allocate.minimum"):
        resolved(**laws, rollout={"rollouts_per_prompt": 3})


def test_an_allocator_that_skips_prompts_has_no_least_count():
    laws = {"allocate": {"use": "gvm", "minimum": 4}, "select": "all"}
    assert resolved(**laws, rollout={"rollouts_per_prompt": 3}).allocate.options["minimum"] == 4


@pytest.mark.parametrize("default", [None, 0.1, 0])
def test_the_minimum_of_a_user_s_allocator_is_its_own(default):
    def mine(stats, budget, *, minimum=default):
        return None

    assert resolved(allocate=mine).allocate.options["minimum"] == default
