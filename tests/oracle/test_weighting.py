"""Weights by hand: three rollouts of 2, 3 and 5 tokens, the first two of one prompt."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from winnow.algos.weighting import accepted, constant, prompt, sequence, token, unbiased
from winnow.records import KeptRollouts

SHAPE = KeptRollouts(
    planned=2,
    lengths=np.array([2, 3, 5]),
    group=np.array([0, 0, 1]),
    correct=np.array([True, False, True]),
    generated=np.array([4, 4]),
    valid=np.array([4, 4]),
    accepted=np.array([2, 1]),
    pass_rate=np.array([np.nan, np.nan]),
    max_new_tokens=8,
)


def test_token():
    assert token(SHAPE) == pytest.approx([0.1, 0.1, 0.1])


def test_sequence():
    assert sequence(SHAPE) == pytest.approx([1 / 6, 1 / 9, 1 / 15])


def test_prompt():
    assert prompt(SHAPE) == pytest.approx([0.1, 0.1, 0.1])
    assert (prompt(SHAPE) * SHAPE.lengths)[:2].sum() == pytest.approx(0.5)


def test_constant():
    assert constant(SHAPE) == pytest.approx([1 / 24] * 3)
    assert constant(SHAPE, tokens=10) == pytest.approx([1 / 30] * 3)


def test_unbiased_uses_the_plans_pass_rate():
    """Two prompts, 4 verified rollouts each, planned p = 0.5 and 0.25: 1 / (2 * 4 * p)."""
    shape = dataclasses.replace(SHAPE, pass_rate=np.array([0.5, 0.25]))
    assert unbiased(shape) == pytest.approx([1 / 4, 1 / 4, 1 / 2])


def test_unbiased_falls_back_to_the_accepted_where_nothing_was_planned():
    assert unbiased(SHAPE) == pytest.approx(accepted(SHAPE))
    assert accepted(SHAPE) == pytest.approx([1 / 4, 1 / 4, 1 / 2])
