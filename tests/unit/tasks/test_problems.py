"""The prompts of a step."""

from __future__ import annotations

import numpy as np

from refusals import refused
from winnow.errors import ConfigError
from winnow.records import Prompt
from winnow.tasks.problems import PromptStream


def prompts(n):
    return [Prompt(id=str(i), tokens=np.array([1]), text="", answer="", task="test") for i in range(n)]


def ids(stream, step):
    return [p.id for p in stream.take(step)]


def test_a_step_is_a_pure_function_of_seed_and_step():
    a, b = (PromptStream(prompts(10), per_step=3, seed=("s",)) for _ in range(2))
    assert [ids(a, step) for step in range(7)] == [ids(b, step) for step in reversed(range(7))][::-1]
    other = PromptStream(prompts(10), per_step=3, seed=("t",))
    assert [ids(a, step) for step in range(7)] != [ids(other, step) for step in range(7)]


def test_prompts_of_an_epoch_are_distinct_and_epochs_differ():
    stream = PromptStream(prompts(10), per_step=3, seed=("s",))
    epochs = [[i for step in range(3 * e, 3 * e + 3) for i in ids(stream, step)] for e in range(20)]
    assert all(len(set(epoch)) == 9 for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 20
    assert set.union(*map(set, epochs)) == {str(i) for i in range(10)}  # the cut omits no prompt for ever


def test_more_prompts_per_step_than_there_are():
    with refused(ConfigError, 11, 10, key="rollout.prompts_per_step", code="config.combination"):
        PromptStream(prompts(10), per_step=11, seed=("s",))
