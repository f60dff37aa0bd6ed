"""Weights by hand: three rollouts of 2, 3 and 5 tokens, the first two of one prompt."""

from __future__ import annotations

import numpy as np
import pytest

from winnow.algos.weighting import constant, prompt, sequence, token
from winnow.records import Shape

SHAPE = Shape(
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
