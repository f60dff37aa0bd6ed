"""Fields are written once, in full length, or not at all."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
import torch

from winnow import records
from winnow.records import Group, Outcome, Prompt, Rollout, TrainingSequence

PROMPT = Prompt(id="p", tokens=np.array([1, 2]), text="?", answer="1", task="test")


def rollout(index: int, length: int = 2) -> Rollout:
    return Rollout(index=index, tokens=np.arange(length), logprobs=np.zeros(length), text="", finish="stop", version=0)


def group(n: int = 3) -> Group:
    return Group(prompt=PROMPT, rollouts=tuple(rollout(i) for i in range(n)))


RIGHT = Outcome(reward=1.0, correct=True, kind="correct")
WRONG = Outcome(reward=0.0, correct=False, kind="wrong")
FAILED = Outcome(reward=float("nan"), correct=None, kind="failed", cause="timeout")


def test_fill_sets_a_field_once():
    filled = group().fill(outcomes=(RIGHT, WRONG, FAILED))
    with pytest.raises(ValueError, match="'outcomes'"):
        filled.fill(outcomes=(RIGHT, WRONG, FAILED))


def test_fill_refuses_wrong_lengths_unknown_fields_and_none():
    for wrong in ({"keep": np.array([True, False])}, {"kep": np.array([True, False, True])}, {"keep": None}):
        (name,) = wrong
        with pytest.raises(ValueError, match=f"'{name}'"):
            group().fill(**wrong)


def test_views_hide_nothing():
    g = group().fill(outcomes=(RIGHT, WRONG, FAILED))
    assert g.rewards[:2].tolist() == [1.0, 0.0]
    assert np.isnan(g.rewards[2])
    assert g.correct.tolist() == [True, False, False]
    assert g.valid.tolist() == [True, True, False]
    assert g.ids == ["p#0", "p#1", "p#2"]


def test_an_unverified_group_has_no_rewards():
    with pytest.raises(ValueError, match="'p'"):
        _ = group().rewards


def test_take_restricts_every_filled_field():
    g = group().fill(outcomes=(RIGHT, WRONG, FAILED)).fill(keep=np.array([True, False, False]))
    g = g.fill(advantages=np.array([0.5, -0.5, 0.0]))
    for rows in ([2, 0], np.array([2, 0])):
        taken = g.take(rows)
        assert [r.index for r in taken.rollouts] == [2, 0]
        assert taken.outcomes == (FAILED, RIGHT)
        assert taken.keep.tolist() == [False, True]
        assert taken.advantages.tolist() == [0.0, 0.5]
    assert [r.index for r in g.take(g.valid).rollouts] == [0, 1]


def test_a_row_teaches_unless_every_advantage_is_zero():
    def row(advantage):
        return TrainingSequence(prompt=PROMPT, rollout=rollout(0), group=0, advantage=advantage, weight=1.0)

    assert row(0.1).teaches
    assert not row(0.0).teaches
    assert row(np.array([0.0, -0.1])).teaches
    assert not row(np.zeros(2)).teaches


def test_row_logprobs_are_written_once_per_token():
    row = TrainingSequence(prompt=PROMPT, rollout=rollout(0), group=0, advantage=1.0, weight=1.0).fill(
        old_logprobs=np.zeros(2)
    )
    with pytest.raises(ValueError, match="'old_logprobs'"):
        row.fill(old_logprobs=np.zeros(2))
    with pytest.raises(ValueError, match="'ref_logprobs'"):
        row.fill(ref_logprobs=np.zeros(3))


SHOWN = ["Problem", "Prompt", "Rollout", "Outcome", "Group", "KeptRollouts", "TrainingSequence", "MicroBatch"]


def test_the_examples_in_the_docstrings_hold():
    """In their order, as each begins with what the ones before it have made."""
    names, runner = {**vars(records), "torch": torch}, doctest.DocTestRunner()
    for kind in SHOWN:
        (page,) = doctest.DocTestFinder(recurse=False).find(getattr(records, kind), kind, globs={})
        page.globs = names
        assert page.examples
        assert runner.run(page, clear_globs=False).failed == 0, kind
