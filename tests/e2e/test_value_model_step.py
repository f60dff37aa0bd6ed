"""The order of a step with a value model of its own: it is read before any update, and learns before the policy."""

from __future__ import annotations

import itertools

import pytest

import winnow
from winnow.learner.learner import Learner
from winnow.learner.value_model import Critic

MOMENTS = [
    (Critic, "values"),
    (Learner, "compute_logprobs"),
    (Critic, "backward"),
    (Critic, "step"),
    (Learner, "backward"),
    (Learner, "step"),
    (Learner, "weights"),
]


@pytest.fixture
def called(monkeypatch):
    """Which methods were called, each as often as it was."""
    seen = []

    def noted(owner, name):
        method = getattr(owner, name)
        label = f"{owner.__name__}.{name}"
        monkeypatch.setattr(owner, name, lambda self, *given: (seen.append(label), method(self, *given))[1])

    for owner, name in MOMENTS:
        noted(owner, name)
    return seen


@pytest.mark.parametrize("form", ["model", "adapter"])
def test_a_value_model_is_read_and_then_learns_before_the_policy_does(form, smallest, called):
    changes = {"advantage": "gae", "update": {"epochs": 2}, "critic": {"form": form, "epochs": 2}}
    lora = {"model": {"lora": {"rank": 2}}} if form == "adapter" else {}
    winnow.train(**smallest(steps=2, **changes, **lora), watch=lambda event: None)
    learns = ["Critic.backward", "Critic.step"] * 2 + ["Learner.backward", "Learner.step"] * 2
    step = ["Critic.values", "Learner.compute_logprobs", *learns, "Learner.weights"]
    since = called[called.index("Critic.values") :]
    assert [label for label, _ in itertools.groupby(since)] == step * 2
