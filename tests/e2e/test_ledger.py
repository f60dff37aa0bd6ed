"""The ledger of tokens: what a run's metrics add up to is what its engine has counted."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import winnow
from winnow.engines.native.sampler import Native
from winnow.state.logbook import read_metrics

APART = ("probe", "mismatch", "evaluation")  # rollouts that no step trains on
COMPLETIONS = ("budget/tokens_generated", "cut/tokens_beyond", *(f"budget/{name}_tokens" for name in APART))
PROMPTS = ("budget/prompt_tokens", *(f"budget/{name}_prompt_tokens" for name in APART))
HARD = {"rollout": {"dynamic_sampling_rounds": 2}, "reward": lambda prompt, rollout: float(rollout.index == 1)}
FLAT = {**HARD, "reward": lambda prompt, rollout: 1.0}
PILOT = {"rounds": {"use": "screening", "pilot": 2}}


class Counting:
    """An engine that counts the tokens of prompts and rollouts that its inner engine samples."""

    def __init__(self, engine):
        self._engine, self.prompts, self.completions = engine, 0, 0

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def generate(self, prompts, counts, *request, **more):
        groups = self._engine.generate(prompts, counts, *request, **more)
        self.prompts += sum(len(prompt.tokens) for prompt, count in zip(prompts, counts, strict=True) if count)
        self.completions += sum(len(rollout.tokens) for group in groups for rollout in group.rollouts)
        return groups


ENGINES = []


def accept(config):
    """It may sample while the policy is trained: it has a copy of the weights."""


@winnow.register("engine", "counting", ahead=accept)
def counting(context):
    ENGINES.append(Counting(Native(dataclasses.replace(context, sharded=True))))
    return ENGINES[-1]


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"evaluate": {"every": 1, "greedy": True}}, id="evaluation"),
        pytest.param({"allocate": "gvm", "probe": {"every": 2, "rollouts_per_prompt": 2}}, id="probe"),
        pytest.param({"rollout": {"ahead": 1}, "correction": "token_truncate"}, id="ahead"),
        pytest.param(PILOT, id="pilot"),
        pytest.param(FLAT, id="refill"),
        pytest.param({**FLAT, **PILOT}, id="refill-in-rounds"),
        pytest.param({"cut": {"use": "token_budget", "tokens": 60}}, id="cut"),
        pytest.param({**HARD, **PILOT, "cut": {"use": "unlikely", "after": 2, "least": -6.2}}, id="all"),
    ],
)
def test_the_metrics_add_up_to_what_the_engine_counted(smallest, changes):
    ENGINES.clear()
    rollout = {"engine": counting, **changes.get("rollout", {})}
    config = smallest(**{"select": "all", "weighting": "prompt", "steps": 3, **changes, "rollout": rollout})
    rows = read_metrics(winnow.train(**config).folder)
    (engine,) = ENGINES
    assert sum(row.get(name, 0.0) for row in rows for name in COMPLETIONS) == engine.completions
    assert sum(row.get(name, 0.0) for row in rows for name in PROMPTS) == engine.prompts
    steps = [row for row in rows if "budget/rollouts" in row]
    if "rounds" in changes:  # of pilots, their continuation and refills
        parts = ("rounds/pilot_tokens", "rounds/further_tokens", "dynamic_sampling/tokens")
        assert all(sum(row.get(p, 0.0) for p in parts) == row["budget/tokens_generated"] for row in steps)
    for name, key in (("cut/tokens", "cut"), ("budget/probe_tokens", "probe"), ("dynamic_sampling/tokens", "reward")):
        if key in changes:
            assert np.sum([row.get(name, 0.0) for row in rows]) > 0
