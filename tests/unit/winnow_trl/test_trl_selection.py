"""Rows as TRL keeps them: which are kept, which fill free places, and their advantages. Needs no TRL."""

from __future__ import annotations

import numpy as np
import pytest

from refusals import refused
from winnow.algos.plain_groups import selector_of
from winnow.errors import ConfigError
from winnow.seeds import Rng
from winnow.testing import group_of
from winnow_trl.selection import advantages, fill_keep, kept_rewards, kept_variances, row_id, trained_rows

RNG = Rng((0, "select", 0))


def test_the_id_of_a_prompt_is_its_column_or_its_text():
    assert row_id({"id": "a", "prompt": "?"}) == "a"
    assert row_id({"id": 7, "prompt": "?"}) == "7"
    assert row_id({"prompt": "?"}) == "?"
    assert row_id({"level": 1}) != row_id({"level": 2})
    conversation = [{"role": "user", "content": "?"}]
    assert row_id({"prompt": conversation}) == row_id({"prompt": [{"content": "?", "role": "user"}]})


def test_kept_rows_are_in_order_and_free_places_are_filled():
    """Two prompts with 4 rollouts each, of which 2 are trained on; of the second only one is kept."""
    groups = [group_of([0.0] * 4, keep=[1, 3]), group_of([0.0] * 4, keep=[2])]
    rows, kept = trained_rows(groups, count=2)
    assert rows.tolist() == [1, 3, 4, 6]
    assert kept.tolist() == [True, True, False, True]


def test_rollouts_that_were_not_judged_are_not_selected():
    (filled,) = fill_keep([group_of([np.nan, 0.0, 1.0, np.nan])], selector_of("all", keep=4), RNG, most=4)
    assert filled.keep.tolist() == [False, True, True, False]
    (empty,) = fill_keep([group_of([np.nan, np.nan])], selector_of("all", keep=4), RNG, most=4)
    assert not empty.keep.any()


def test_more_than_the_places_are_refused():
    with refused(ConfigError, 3, key="select", code="config.combination"):
        fill_keep([group_of([0.0, 0.5, 1.0])], selector_of("all", keep=2), RNG, most=2)


GROUPS = [group_of([0.0, 0.3, 1.0], keep=[0, 2]), group_of([0.5, 0.5, 0.1], keep=[0, 1])]


@pytest.mark.parametrize(
    ("scale", "of_first"),
    [
        ("none", 0.5),
        ("group", 0.5 / (np.sqrt(0.5) + 1e-4)),
        ("batch", 0.5 / (np.sqrt(0.5 / 3) + 1e-4)),  # of 0, 1, 1/2, 1/2: mean 1/2, squares 1/4 + 1/4 over 3
    ],
)
def test_advantages_are_over_the_kept_rollouts(scale, of_first):
    found = advantages(GROUPS, scale, of_all=kept_rewards(GROUPS))
    np.testing.assert_allclose(found, [-of_first, 0, of_first, 0, 0, 0], atol=1e-12)


def test_a_single_kept_rollout_has_no_advantage_at_any_scale():
    groups = [group_of([0.0, 1.0], keep=[1])]
    for scale in ("none", "group", "batch"):
        assert advantages(groups, scale, of_all=kept_rewards(groups)).tolist() == [0.0, 0.0]


def test_kept_rewards_and_their_variances():
    assert kept_rewards(GROUPS) == [0.0, 1.0, 0.5, 0.5]
    assert kept_variances([*GROUPS, group_of([1.0], keep=[])]) == [0.25, 0.0]
