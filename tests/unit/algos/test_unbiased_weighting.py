"""The unbiased weight takes the pass rate of the plan, where it is not what these rollouts happened to show."""

from __future__ import annotations

import numpy as np
import pytest

from winnow.algos.weighting import unbiased
from winnow.records import KeptRollouts


def test_the_plans_pass_rate_wins_over_that_of_the_rollouts_weighed():
    """1 / (G n p): 4 rollouts each, planned 3/4 and 1/2, though 2 and 1 of them came out correct."""
    shape = KeptRollouts(
        planned=2,
        lengths=np.array([2, 3, 5]),
        group=np.array([0, 0, 1]),
        correct=np.array([True, True, True]),
        generated=np.array([4, 4]),
        valid=np.array([4, 4]),
        accepted=np.array([2, 1]),
        pass_rate=np.array([0.75, 0.5]),
        max_new_tokens=8,
    )
    assert unbiased(shape) == pytest.approx([1 / 6, 1 / 6, 1 / 4])
