"""Groups of plain rewards, and selectors by name: what a trainer other than winnow's selects with."""

from __future__ import annotations

import numpy as np
import pytest

from refusals import refused
from winnow.algos.plain_groups import plain_group, selector_of
from winnow.errors import ConfigError
from winnow.seeds import Rng

RNG = Rng((0, "select", 0))


def group(rewards, **more):
    return plain_group("p", np.array(rewards), tokens=[np.arange(2)] * len(rewards), **more)


def test_a_group_has_the_rewards_and_a_verdict_for_each():
    made = group([1.0, 0.5, np.nan, 2.0], finished=[True, False, True, True], texts=["a", "b", "c", "d"], version=3)
    assert made.rewards.tolist()[:2] == [1.0, 0.5]
    assert made.valid.tolist() == [True, True, False, True]
    assert made.correct.tolist() == [True, False, False, True]
    assert [rollout.finish for rollout in made.rollouts] == ["stop", "length", "stop", "stop"]
    assert [rollout.text for rollout in made.rollouts] == ["a", "b", "c", "d"]
    assert made.lengths.tolist() == [2, 2, 2, 2]
    assert made.ids == ["p#0", "p#1", "p#2", "p#3"]
    assert {rollout.version for rollout in made.rollouts} == {3}
    assert np.isnan(made.rollouts[0].logprobs).all()


@pytest.mark.parametrize(
    ("use", "kept"),
    [
        ("max_variance", [True, False, False, True]),
        ("max_reward", [False, False, True, True]),
        ({"use": "max_reward", "keep_per_prompt": 1}, [False, False, False, True]),
        ({"use": "threshold", "low": 0.35}, [False, True, True, True]),
        ([{"use": "threshold", "low": 0.35}, "max_variance"], [False, True, False, True]),
        (lambda group, rng: group.rewards > 0.5, [False, False, True, True]),
    ],
)
def test_a_selector_is_made_of_names_tables_functions_and_lists(use, kept):
    assert selector_of(use, keep=2)(group([0.1, 0.4, 0.6, 0.9]), RNG).tolist() == kept


def test_a_file_is_relative_to_the_base(tmp_path):
    (tmp_path / "mine.py").write_text(
        "def first(group, rng):\n    return [rollout.index == 0 for rollout in group.rollouts]\n"
    )
    assert selector_of("mine.py:first", keep=2, base=tmp_path)(group([0.0, 1.0]), RNG).tolist() == [True, False]


def test_unknown_names_and_options_and_empty_lists_are_refused():
    with refused(ConfigError, "max_variants", code="config.unknown_member"):
        selector_of("max_variants", keep=2)
    with refused(ConfigError, key="select.kept", code="config.unknown_key"):
        selector_of({"use": "max_variance", "kept": 2}, keep=2)
    for nothing in ({"keep_per_prompt": 2}, {"use": None}, None, [None], 4):
        with refused(ConfigError, key="select.use", code="config.missing_key"):
            selector_of(nothing, keep=2)
    with refused(ConfigError, key="select", code="config.value"):
        selector_of([], keep=2)
