"""Selection and credit in chunks of a prompt's rollouts, by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from refusals import refused
from winnow.algos.advantage import dr_grpo, grpo
from winnow.algos.chunks import credit_in_chunks, kept_in_chunks, select_in_chunks
from winnow.algos.selectors import max_reward, max_variance, random
from winnow.config_file import validate
from winnow.errors import ConfigError
from winnow.seeds import Rng
from winnow.testing import group_of
from winnow.training.budget import budget
from winnow.training.resolve import resolve_members

RNG = Rng(("test",))


def best(group, rng):
    return max_reward(group, rng, keep_per_prompt=2)


def places(mask):
    return np.flatnonzero(mask).tolist()


def test_each_chunk_keeps_its_own():
    group = group_of([1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert places(select_in_chunks(best, 4)(group, RNG)) == [2, 3, 6, 7, 8]
    assert places(best(group, RNG)) == [7, 8]


def test_pods_keeps_a_quarter_of_each_chunk():
    """One correct rollout in the first 128 of 512, and 100 in each other: 1, 16, 16 and 16 of them are kept."""

    def select(group, rng):
        return max_variance(group, rng, keep_per_prompt=32)

    rewards = np.array(([1.0] + [0.0] * 127) + ([1.0] * 100 + [0.0] * 28) * 3)
    mask = select_in_chunks(select, 128)(group_of(rewards), RNG)
    assert mask.reshape(4, 128).sum(axis=1).tolist() == [32] * 4
    assert (rewards * mask).reshape(4, 128).sum(axis=1).tolist() == [1, 16, 16, 16]


def test_a_chunk_goes_by_the_index_of_its_rollouts_and_not_by_their_place():
    """Rollout 2 has failed and is hidden: the first chunk has three left, and takes none of the second."""
    group = group_of([1, 2, 9, 4, 5, 6], indices=[0, 1, 3, 4, 5, 6])
    assert places(select_in_chunks(best, 4)(group, RNG)) == [1, 2, 4, 5]


def test_ties_within_a_chunk_are_broken_by_the_rollouts_ids():
    def some(group, rng):
        return random(group, rng, keep_per_prompt=3)

    group = group_of([0.0] * 16)
    mask = select_in_chunks(some, 8)(group, RNG)
    assert mask.sum() == 6
    order = np.random.default_rng(0).permutation(16)
    shuffled = group_of([0.0] * 16, indices=order.tolist())
    assert np.array_equal(select_in_chunks(some, 8)(shuffled, RNG), mask[order])
    alone = group_of([0.0] * 8, indices=range(8, 16))
    assert np.array_equal(some(alone, RNG), mask[8:])


def test_an_answer_that_is_no_mask_is_refused():
    with refused(ConfigError, (1,), 4, key="select", code="config.member_result"):
        select_in_chunks(lambda group, rng: np.ones(1, bool), 4)(group_of([0.0] * 8), RNG)


def test_credit_is_compared_within_its_chunk():
    group = group_of([0, 1, 0, 2], keep=[0, 1, 2, 3])
    (credit,) = credit_in_chunks(dr_grpo, 2)([group])
    assert credit.tolist() == [-0.5, 0.5, -1.0, 1.0]
    assert dr_grpo([group])[0].tolist() == [-0.75, 0.25, -0.75, 1.25]


def test_a_chunk_normalises_over_its_kept_rollouts():
    """The published golden vector, twice, with another spread in the second chunk: std 0.4243, and 10 times that."""
    first, second = group_of([0.2, 0.4, 0.6, 0.8]), group_of([2.0, 4.0, 6.0, 8.0])
    group = group_of([*first.rewards, *second.rewards], keep=[0, 3, 4, 7])
    (credit,) = credit_in_chunks(grpo, 4)([group])
    assert credit == pytest.approx([-0.7069, 0, 0, 0.7069, -0.7071, 0, 0, 0.7071], abs=1e-4)


def test_a_flat_chunk_earns_nothing_in_a_group_that_is_not_flat():
    (credit,) = credit_in_chunks(grpo, 2)([group_of([1, 1, 0, 1], keep=[0, 1, 2, 3])])
    assert credit[:2].tolist() == [0, 0]
    assert credit[2] < 0 < credit[3]


def test_credit_per_token_stays_per_token():
    def by_token(groups):
        return [[np.full(n, group.rewards.sum()) for n in group.lengths.tolist()] for group in groups]

    group = group_of([1, 2, 3, 4], keep=[0, 1, 2, 3], lengths=[1, 2, 1, 2])
    (credit,) = credit_in_chunks(by_token, 2)([group])
    assert [numbers.tolist() for numbers in credit] == [[3], [3, 3], [7], [7, 7]]


@pytest.mark.parametrize(
    ("keep", "n", "size", "kept"),
    [(32, 512, 128, 128), (32, 500, 128, 3 * 32 + 32), (3, 9, 4, 3 + 3 + 1), (0.25, 10, 4, 1 + 1 + 1), (2, 4, 4, 2)],
)
def test_how_many_are_kept(keep, n, size, kept):
    assert kept_in_chunks(keep, n, size) == kept


# In a configuration --------------------------------------------------------------------------------------------------

ROLLOUT = {"prompts_per_step": 8, "rollouts_per_prompt": 512}


def members(**keys):
    return resolve_members(validate({"rollout": ROLLOUT, **keys}), Path())


def test_a_configuration_names_the_chunk_and_the_budget_counts_it():
    chosen = members(
        select={"use": "max_variance", "keep_per_prompt": 32, "chunk": 128}, advantage={"use": "grpo", "chunk": 128}
    )
    counts = budget(chosen)
    assert (counts.rollouts, counts.kept, counts.rows) == (4096, 128, 1024)
    group = group_of(list(range(512)))
    assert chosen.select(group, RNG).reshape(4, 128).sum(axis=1).tolist() == [32] * 4
    (credit,) = chosen.advantage([group.fill(keep=np.ones(512, bool))])
    assert np.allclose(credit.reshape(4, 128).sum(axis=1), 0)


@pytest.mark.parametrize(
    ("chain", "kept"),
    [
        ([{"use": "random", "keep_per_prompt": 32, "chunk": 128}, {"use": "max_variance", "keep_per_prompt": 16}], 16),
        ([{"use": "random", "keep_per_prompt": 100}, {"use": "random", "keep_per_prompt": 32, "chunk": 128}], 100),
        ([{"use": "random", "keep_per_prompt": 0.25, "chunk": 128}], 128),
    ],
)
def test_a_chain_keeps_at_most_its_smallest_count(chain, kept):
    assert budget(members(select=chain)).kept == kept


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"select": {"use": "all", "chunk": 128}}, ("select.chunk", 128, "'all'")),
        ({"select": {"use": "threshold", "chunk": 128}}, ("select.chunk", 128, "'threshold'")),
        ({"advantage": {"use": "raft", "chunk": 128}}, ("advantage.chunk", 128, "'raft'")),
        ({"select": {"use": "random", "keep_per_prompt": 129, "chunk": 128}}, (129, "select.chunk", 128)),
        ({"select": {"use": "random", "keep_per_prompt": 32, "chunk": 0}}, ("select.0.chunk",)),
    ],
)
def test_a_chunk_that_changes_nothing_is_refused(keys, named):
    with refused(ConfigError, *named):
        members(**keys)
