"""The named rollouts on which the mismatch is measured, with rollout.ahead = 1."""

from __future__ import annotations

import numpy as np

from winnow.core.mismatch import STALENESS, as_staleness
from winnow.core.named_rollouts import centred
from winnow.records import Group, Outcome, Prompt, Rollout


def judged(*rewards):
    prompt = Prompt(id="p", tokens=np.array([1]), text="", answer="", task="t")
    one = Rollout(index=0, tokens=np.array([1]), logprobs=np.zeros(1), text="", finish="stop", version=0)
    failed = Outcome(reward=float("nan"), correct=None, kind="failed", cause="crash")
    outcomes = [failed if r is None else Outcome(reward=r, correct=r > 0, kind="correct") for r in rewards]
    return Group(prompt=prompt, rollouts=(one,) * len(rewards), outcomes=tuple(outcomes))


def test_rewards_are_centred_over_the_verified_ones():
    assert centred(judged(1.0, None, 0.0, 0.0, 1.0)).tolist() == [0.5, 0.0, -0.5, -0.5, 0.5]
    assert centred(judged(None, None)).tolist() == [0.0, 0.0]


def test_staleness_has_names_of_its_own_and_no_parity():
    compared = {name: float(place) for place, name in enumerate(STALENESS)}
    found = as_staleness({**compared, "policy/parity_alarm": 1.0, "policy/engine_lag": 2.0})
    assert list(found.values()) == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert all(name.startswith("policy/staleness_") for name in found)
    assert as_staleness({}) == {}
