from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest

from winnow.core.plan import prompt_gradient_norms
from winnow.records import Group, Outcome, Prompt, Rollout


def verified(prompt: str, verdicts: Sequence[bool | None]) -> Group:
    """One rollout per verdict; None is a verifier that failed."""
    outcomes = [
        Outcome(reward=math.nan, correct=None, kind="failed", cause="raised")
        if verdict is None
        else Outcome(reward=float(verdict), correct=verdict, kind="correct" if verdict else "wrong")
        for verdict in verdicts
    ]
    rollouts = tuple(
        Rollout(index=i, tokens=np.array([i + 1]), logprobs=np.array([-1.0]), text="", finish="stop", version=0)
        for i in range(len(verdicts))
    )
    of = Prompt(id=prompt, tokens=np.array([2]), text="", answer=None, task="t")
    return Group(prompt=of, rollouts=rollouts, outcomes=tuple(outcomes))


def run_of(gradient_norms=None, *, of: str = "embedding", most: int | None = None) -> SimpleNamespace:
    return SimpleNamespace(
        learner=SimpleNamespace(gradient_norms=gradient_norms),
        members=SimpleNamespace(gradient_norm=of),
        config=SimpleNamespace(update=SimpleNamespace(max_trained_tokens=most)),
    )


def run(requested: list[tuple[str, int]]) -> SimpleNamespace:
    """A rollout's norm is ten to the power of its index."""

    def gradient_norms(sequences, *, of):
        assert of == "embedding"
        requested.extend((s.prompt.id, s.rollout.index) for s in sequences)
        return np.array([10.0**s.rollout.index for s in sequences])

    return run_of(gradient_norms)


def test_a_prompts_norm_is_the_mean_over_its_correct_rollouts() -> None:
    groups = [
        verified("two", [True, False, True, None]),
        verified("none right", [False]),
        verified("none verified", [None]),
        verified("none sampled", []),
        verified("one", [None, True]),
    ]
    requested: list[tuple[str, int]] = []
    norms = prompt_gradient_norms(run(requested), groups)
    np.testing.assert_array_equal(norms, [(1 + 100) / 2, 0, math.nan, math.nan, 10])
    assert requested == [("two", 0), ("two", 2), ("one", 1)]


def test_the_norm_is_over_the_tokens_that_would_be_trained() -> None:
    group, lengths = verified("p", [True, True]), list[int]()
    long = dataclasses.replace(group.rollouts[1], tokens=np.arange(5), logprobs=np.zeros(5))

    def gradient_norms(sequences, *, of):
        lengths.extend(len(s.rollout.tokens) for s in sequences)
        return np.ones(len(sequences))

    groups = [dataclasses.replace(group, rollouts=(group.rollouts[0], long))]
    for most in (None, 3):
        prompt_gradient_norms(run_of(gradient_norms, most=most), groups)
    assert lengths == [1, 5, 1, 3]


@pytest.mark.parametrize("groups", [[], [verified("p", [False])]])
def test_without_a_correct_rollout_the_norm_is_0(groups: list[Group]) -> None:
    norms = prompt_gradient_norms(run([]), groups)
    np.testing.assert_array_equal(norms, np.zeros(len(groups)))


def test_norms_that_are_not_configured_are_not_computed() -> None:
    assert prompt_gradient_norms(run_of(of="none"), [verified("p", [True])]) is None
