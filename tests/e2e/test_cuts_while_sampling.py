"""A run that cuts rollouts while it samples: what is left of them, what is counted, and on what a cut depends."""

from __future__ import annotations

import math

import numpy as np
import pytest

import winnow
from chat_templates import render_here
from logged_groups import read_rollouts
from refusals import refused
from winnow.engines.scripted import scripted
from winnow.errors import ConfigError
from winnow.state.logbook import read_metrics

SCRIPT = ["a", "bb", "c d e f", "g h i j k"]  # in turn, so that each prompt has four lengths


def of_script(context):
    return scripted(context, script=SCRIPT)


def config_of(smallest, cut, **more):
    rollout = {"engine": of_script, "max_new_tokens": 8, **more.pop("rollout", {})}
    return smallest(**{"cut": cut, "rollout": rollout, "select": "all", "weighting": "prompt", "steps": 1, **more})


def groups_of(result):
    return [entry.group for entry in read_rollouts(result.folder) if entry.step == 0]


def lengths_of(smallest, tmp_path, **more):
    """The lengths of all rollouts without a cut, by group."""
    result = winnow.train(**config_of(smallest, "none", output=str(tmp_path / "whole"), **more))
    return [group.lengths.tolist() for group in groups_of(result)]


def test_a_cut_rollout_has_no_verdict_and_is_counted_apart(smallest, tmp_path):
    whole = lengths_of(smallest, tmp_path)
    judged = []

    def reward(prompt, rollout):
        judged.append(rollout)
        return float(len(rollout.text) % 2)

    evaluate = {"problems": 1, "rollouts_per_prompt": 1}
    config = config_of(smallest, {"use": "stragglers", "share": 0.5}, reward=reward, evaluate=evaluate)
    result = winnow.train(**config)
    row, groups = read_metrics(result.folder)[0], groups_of(result)
    assert len(groups) == 4
    cut, beyond = 0, 0
    for group, lengths in zip(groups, whole, strict=True):
        limit = sorted(lengths)[1]  # two of four are finished
        assert group.lengths.tolist() == [min(length, limit) for length in lengths]
        ended = np.array(lengths) > limit
        assert [outcome.kind == "cut" for outcome in group.outcomes] == ended.tolist()
        assert [rollout.finish == "cut" for rollout in group.rollouts] == ended.tolist()
        assert group.valid.tolist() == (~ended).tolist()
        assert not group.keep[ended].any()
        assert np.all(group.advantages[ended] == 0)
        assert np.isnan(group.rewards[ended]).all()
        cut += int(ended.sum())
        beyond += int(sum(lengths) - group.lengths.sum())
    assert cut > 0
    assert (row["outcome/cut"], row["cut/tokens_beyond"]) == (cut, beyond)
    assert row["cut/tokens"] == sum(int(g.lengths[~g.valid].sum()) for g in groups)
    assert row["budget/tokens_generated"] + beyond == sum(map(sum, whole))
    assert row["budget/tokens_verified"] == row["budget/tokens_generated"] - row["cut/tokens"]
    assert row["outcome/failed"] == 0
    in_steps = [rollout for rollout in judged if rollout.version == 0]
    assert len(in_steps) == 16 - cut + 1  # and the one of the evaluation before the first step


def test_the_budget_of_a_step_spans_its_rounds(smallest):
    """Four rounds of four rollouts of 2 tokens. The first three have 24, and the last one may have 5 more: a tick of
    four.
    """
    rounds = {"use": "positive", "right": 99, "per_round": 1}
    config = config_of(smallest, {"use": "token_budget", "tokens": 29}, rounds=rounds)
    result = winnow.train(**config)
    row, groups = read_metrics(result.folder)[0], groups_of(result)
    assert [len(group.rollouts) for group in groups] == [4] * 4  # a cut rollout counts as sampled
    assert [group.lengths.tolist() for group in groups] == [[2, 2, 2, 1]] * 4
    assert row["rounds/pilot_tokens"] + row["rounds/further_tokens"] == row["budget/tokens_generated"]
    assert row["rounds/pilot_tokens"] == 8
    assert [[outcome.kind == "cut" for outcome in group.outcomes] for group in groups] == [[False] * 3 + [True]] * 4


def test_the_budget_of_a_step_spans_dynamic_sampling(smallest):
    """No group has a signal, so that two further rounds of prompts are sampled."""
    config = config_of(
        smallest,
        {"use": "token_budget", "tokens": 90},
        reward=lambda prompt, rollout: 1.0,
        rollout={"dynamic_sampling_rounds": 2},
    )
    row = read_metrics(winnow.train(**config).folder)[0]
    assert row["dynamic_sampling/groups"] == 8
    assert 90 - 16 < row["budget/tokens_generated"] <= 90


def test_a_cut_does_not_depend_on_the_batch_limit(smallest, monkeypatch):
    """The engine finishes rollouts in another order, and samples the same ones; the policy is a model."""
    render_here(monkeypatch)
    found = []
    for limit in (3, 16):
        config = smallest(
            output=f"{smallest()['output']}-{limit}",
            steps=1,
            model={"path": "bundled"},
            prompt={"template": "chat"},
            rollout={"max_new_tokens": 48, "max_rollouts_at_once": limit, "engine": "native"},
            cut={"use": "token_budget", "tokens": 150},
            select="all",
            weighting="prompt",
        )
        result = winnow.train(**config)
        found.append([(g.prompt.id, o.kind, r.tokens.tolist()) for g in groups_of(result) for r, o in _pairs(g)])
    assert found[0] == found[1]
    kinds = [kind for _, kind, _ in found[0]]
    assert 0 < kinds.count("cut") < len(kinds)


def _pairs(group):
    return zip(group.rollouts, group.outcomes, strict=True)


def test_log_probs_cut_a_rollout(smallest):
    config = smallest(steps=1, cut={"use": "unlikely", "after": 2, "least": -6.2}, select="all", weighting="prompt")
    groups = groups_of(winnow.train(**config))
    means = [(rollout.logprobs[:2].mean(), rollout.length, kind) for group in groups for rollout, kind in _kinds(group)]
    assert {kind == "cut" for _, _, kind in means} == {True, False}  # of 512 equally likely tokens: -log 512 is -6.2
    for mean, length, kind in means:
        assert (kind == "cut") == (mean < -6.2 and length == 2)


def _kinds(group):
    return [(rollout, outcome.kind) for rollout, outcome in _pairs(group)]


def test_no_rollout_may_be_left(smallest):
    """A step whose rollouts are all cut trains nothing, and is neither a failure nor an error."""
    rows = read_metrics(winnow.train(**config_of(smallest, {"use": "token_budget", "tokens": 1})).folder)
    assert (rows[0]["outcome/cut"], rows[0]["select/trained"], rows[0]["budget/tokens_verified"]) == (16, 0, 0)
    assert rows[0]["cut/tokens"] == 0  # the first tick would have 16
    assert not math.isnan(rows[0]["budget/tokens_generated"])


@pytest.mark.parametrize("returned", ["sampled.lengths + 1", "-sampled.lengths", "sampled.lengths / 2", "0"])
def test_a_rule_that_returns_no_numbers_of_tokens_is_refused(smallest, tmp_path, returned):
    (tmp_path / "mine.py").write_text(f"def rule(sampled):\n    return {returned}\n")
    with refused(ConfigError, code="config.member_result", key="cut"):
        winnow.train(**config_of(smallest, f"{tmp_path}/mine.py:rule"))


def test_what_a_cut_makes_wrong_is_refused(smallest, tmp_path):
    with refused(ConfigError, code="config.combination", key="cut"):
        winnow.train(**smallest(cut="stragglers", weighting="unbiased"))
    environment = {"use": "guess_number", "max_turn_tokens": 4}
    turns = smallest(environment=environment, task="guess_number", reward=None, prompt={"template": "chat"})
    with refused(ConfigError, code="config.combination", key="cut"):
        winnow.train(**turns, cut="stragglers")
