"""Neighbouring seeds share no random number: seeds that are added to an index (as in reasoning-gym) fail here."""

from __future__ import annotations

import itertools

import numpy as np

from winnow.engines.base import PendingRollout
from winnow.engines.sampling import uniforms
from winnow.records import Prompt

PROMPT = Prompt(id="p", tokens=np.array([1]), text="", answer=None, task="t")


def test_rollouts_of_neighbouring_seeds_and_steps_share_no_random_number():
    rollouts = [PendingRollout(0, PROMPT, index) for index in range(4)]
    keys = itertools.product((0, 1, 2), (0, 1, 2))
    drawn = np.stack([uniforms((seed, "rollout", step), rollouts, 3) for seed, step in keys])
    assert len(np.unique(drawn)) == 9 * 4 * 3
