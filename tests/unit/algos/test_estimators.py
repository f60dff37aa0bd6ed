"""The numbers an evaluation publishes, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from winnow.algos.estimators import pass_at_k, standard_error


def test_pass_at_k_is_unbiased():
    """1 of 4 correct, 2 drawn: 1 - C(3, 2) / C(4, 2) = 1/2, where 1 - (3/4)^2 would be 7/16."""
    assert pass_at_k(np.array([1, 0, 4, 3]), np.array([4, 4, 4, 4]), 2) == pytest.approx([0.5, 0.0, 1.0, 1.0])


def test_fewer_rollouts_than_k_say_nothing():
    assert np.isnan(pass_at_k(np.array([1]), np.array([2]), 3)).all()


def test_the_standard_error_is_that_of_a_mean():
    assert standard_error(np.array([0.0, 1.0, 1.0, 0.0])) == pytest.approx((1 / 3) ** 0.5 / 2)
    assert np.isnan(standard_error(np.array([1.0])))
