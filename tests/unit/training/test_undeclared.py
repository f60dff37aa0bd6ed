"""An input that a user's loss, term or advantage reads without declaring it is refused before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import winnow
from refusals import refused
from winnow.algos.advantage import per_group
from winnow.algos.loss import probability_ratio
from winnow.config_file import validate
from winnow.errors import ConfigError
from winnow.training.resolve import resolve_members


def resolved(**config):
    return resolve_members(validate(config), Path())


def ratio(out, mb):
    return -torch.exp(out.logprobs - mb.old_logprobs) * mb.advantages, {}


def with_helper(out, mb):
    return -probability_ratio(out, mb) * mb.advantages, {}


def aware(out, mb):
    return ratio(out, mb) if mb.old_logprobs is not None else (-mb.advantages * out.logprobs, {})


def both(out, mb):
    return ratio(out, mb)[0] + (mb.ref_logprobs - out.logprobs), {"entropy": out.entropy.detach()}


def distance(out, mb):
    return (mb.ref_logprobs - out.logprobs).square()


def surprised(out, mb):
    return -out.entropy


def of_a_run(out, mb):
    return out.logprobs * mb.sequences[0].prompt.meta["weight"] * mb.old_logprobs, {}


def above_values(groups):
    return [group.rewards - [values.mean() for values in group.values] for group in groups]


def scaled(groups, *, lam: float = 0.5, alpha: float = 0.1):
    return [lam * alpha * group.rewards for group in groups]


def test_an_advantage_of_one_s_own_has_none_of_the_options_of_gae():
    members = resolved(advantage={"use": scaled, "alpha": 0.2})
    assert members.advantage.options == {"lam": 0.5, "alpha": 0.2}


@pytest.mark.parametrize(
    ("config", "needs"),
    [
        ({"loss": ratio}, {"old_logprobs"}),
        ({"loss": both}, {"old_logprobs", "ref_logprobs", "entropy"}),
        ({"terms": [{"use": distance, "coefficient": 0.1}]}, {"ref_logprobs"}),
        ({"terms": [{"use": surprised, "coefficient": 0.1}]}, {"entropy"}),
        ({"advantage": above_values}, {"values"}),
    ],
)
def test_an_input_that_is_not_declared_is_refused_by_name(config, needs):
    with refused(ConfigError, key=next(iter(config)), code="config.member_result") as raised:
        resolved(**config)
    remedy = raised.value.remedy
    assert {need for need in ("old_logprobs", "ref_logprobs", "entropy", "values") if f'"{need}"' in remedy} == needs


@pytest.mark.parametrize(
    "config",
    [
        {"loss": ratio, "update": {"epochs": 2}},  # old log-probs are computed for the second update
        {"loss": ratio, "correction": {"old": "engine"}},
        {"loss": with_helper},
        {"loss": aware},
        {"loss": of_a_run},  # it raises in a trial call whatever is filled
        {"advantage": lambda groups: per_group(lambda r, over: r - over.mean(), groups, "kept")},
    ],
)
def test_inputs_that_a_run_fills_or_cannot_try_are_accepted(config):
    assert resolved(**config).loss.name


def test_declared_needs_are_computed_and_only_others_are_refused(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text(
        "import winnow, torch\n"
        '@winnow.register("loss", "whole", needs=("old_logprobs",))\n'
        "def whole(out, mb):\n"
        "    'Declares what it reads.'\n"
        "    return -torch.exp(out.logprobs - mb.old_logprobs) * mb.advantages, {}\n"
        '@winnow.register("loss", "half", needs=("old_logprobs",))\n'
        "def half(out, mb):\n"
        "    'Reads the entropy, too.'\n"
        "    return whole(out, mb)[0] * out.entropy, {}\n"
    )
    assert "old_logprobs" in resolved(loss=f"{mine}:whole").needs
    with refused(ConfigError, '"entropy"', key="loss", code="config.member_result") as raised:
        resolved(loss=f"{mine}:half")
    assert "old_logprobs" not in str(raised.value)


def test_a_loss_with_a_ratio_is_refused_before_a_model_is_looked_for(tmp_path):
    with refused(ConfigError, "old_logprobs", key="loss", code="config.member_result"):
        winnow.train(loss=ratio, model=str(tmp_path / "nowhere"), output=str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("use", ["token_truncate", "sequence_truncate", "sequence_mask", "geometric_mask", "icepop"])
def test_the_engine_as_old_policy_leaves_nothing_to_correct(use):
    with refused(ConfigError, use, key="correction.old", code="config.combination"):
        resolved(correction={"use": use, "old": "engine"})


@pytest.mark.parametrize("loss", ["reinforce", lambda out, mb: (-mb.advantages * out.logprobs, {})])
def test_the_engine_as_old_policy_needs_a_loss_with_a_ratio(loss):
    with refused(ConfigError, key="correction.old", code="config.no_effect"):
        resolved(correction={"old": "engine"}, loss=loss)


@pytest.mark.parametrize("loss", ["clip", "cispo", "gspo", "raft_plus_plus", ratio])
@pytest.mark.parametrize("use", ["none", "dppo"])
def test_the_engine_as_old_policy_saves_the_pass(loss, use):
    members = resolved(correction={"use": use, "old": "engine"}, loss=loss, update={"epochs": 2})
    assert "old_logprobs" not in members.needs
    assert members.objective.old == "engine"


def test_a_correction_needs_no_pass_in_a_step_of_one_update():
    assert "old_logprobs" not in resolved(correction="icepop").needs
    assert "old_logprobs" in resolved(correction="icepop", update={"updates_per_step": 2}).needs


@pytest.mark.parametrize(
    "correction",
    [
        {"use": "token_truncate", "most": 0.9},
        {"use": "geometric_mask", "least": 1.1},
        {"use": "icepop", "least": -0.1},
        {"use": "dppo", "most": 1.0},
    ],
)
def test_a_bound_that_would_act_where_policy_and_engine_agree_is_refused(correction):
    with refused(ConfigError, code="config.value"):
        resolved(correction=correction)


def own_ratio(out, mb):
    ratio = torch.exp(mb.old_logprobs - mb.behaviour_logprobs)
    return ratio, ratio > 2


def test_a_correction_that_reads_old_log_probs_is_refused_where_there_are_none():
    with refused(ConfigError, "log_ratio", key="correction", code="config.member_result"):
        resolved(correction=own_ratio)
    resolved(correction=own_ratio, update={"epochs": 2})


def test_a_kl_reward_is_no_source_of_values():
    def above(groups):
        return [group.rewards - [values.mean() for values in group.values] for group in groups]

    winnow.register("advantage", "undeclared_values", needs=("token_rewards",))(above)
    with refused(ConfigError, '"values"', key="advantage", code="config.member_result"):
        resolved(advantage={"use": "undeclared_values", "kl_reward": 0.1})
