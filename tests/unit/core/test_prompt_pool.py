"""The prompts that a sampler draws from: their rows, their random streams and their labels."""

from __future__ import annotations

import numpy as np
import pytest

from refusals import refused
from winnow.core.draw import PromptPool
from winnow.errors import ConfigError
from winnow.records import Prompt
from winnow.seeds import generator


def prompts(n, meta=lambda i: {}):
    return [Prompt(id=str(i), tokens=np.array([1]), text="", answer="", task="test", meta=meta(i)) for i in range(n)]


def pool(n=10, per_step=3, **more):
    return PromptPool(prompts(n, **more), per_step=per_step, seed=("s",))


def test_prompts_are_taken_by_their_rows():
    assert [prompt.id for prompt in pool().take(np.array([7, 0]))] == ["7", "0"]
    assert pool().take(np.array([], dtype=np.int64)) == []
    assert pool().steps_per_epoch == 3


def test_a_stream_is_named_by_the_run_s_seed_too():
    drawn = pool().stream("epoch", 2).random(3)
    np.testing.assert_array_equal(drawn, generator("s", "epoch", 2).random(3))


def test_the_difficulty_is_a_number_of_each_prompt_s_meta():
    labelled = pool(meta=lambda i: {"level": i, "name": "x"})
    np.testing.assert_array_equal(labelled.difficulty("level"), np.arange(10.0))
    for field in ("difficulty", "name"):
        with refused(ConfigError, "'0'", repr(field), key="sample", code="config.combination"):
            labelled.difficulty(field)


@pytest.mark.parametrize("label", [float("nan"), float("inf"), "3", None])
def test_a_label_that_is_no_number_is_refused(label):
    with refused(ConfigError, "'9'", key="sample", code="config.combination"):
        pool(meta=lambda i: {"level": label if i == 9 else 1.5}).difficulty("level")


def test_more_prompts_per_step_than_there_are():
    with refused(ConfigError, 11, 10, key="rollout.prompts_per_step", code="config.combination"):
        pool(per_step=11)
