"""A tabular policy: every prompt has a known pass rate, so it is known what it should get. No model anywhere.

The engine draws its verdicts by those rates. `probe.plan` and the history are the real ones, driven step by step as `fit` and
`train_step` drive them; gradient norms are the table's.
"""

from __future__ import annotations

from functools import partial
from math import comb
from types import SimpleNamespace

import numpy as np
import pytest

from winnow.algos.allocation import gvm, gvm_online, gvm_weights
from winnow.config import validate
from winnow.probe import plan
from winnow.records import Prompt
from winnow.seeds import generator
from winnow.state.history import History
from winnow.tasks.stream import PromptStream
from winnow.testing import group_of

G, PER_STEP, N = 16, 8, 16
DRAW = np.random.default_rng(0)
RATES = DRAW.permutation(np.linspace(0.1, 1.0, G))
NORMS = DRAW.permutation(np.geomspace(0.5, 4.0, G))


class Table:
    """Pass rates and gradient norms by prompt; they may be changed while it is in use."""

    def __init__(self, rates, norms):
        ids = [f"p{i}" for i in range(len(rates))]
        self.rates, self.norms = (dict(zip(ids, values, strict=True)) for values in (rates, norms))
        self.prompts = [Prompt(id=i, tokens=np.array([1]), text="", answer="", task="table") for i in ids]

    def generate(self, prompts, counts, sampling, *, seed, on_rollout=None):
        rng = generator(*seed)
        drawn = [(rng.random(n) < self.rates[p.id]).astype(float) for p, n in zip(prompts, counts, strict=True)]
        return [group_of(d, prompt=p.id, lengths=[2] * len(d)) for p, d in zip(prompts, drawn, strict=True)]

    def prompt_gradient_norms(self, groups, *, of):
        return np.array([self.norms[g.prompt.id] if g.correct.any() else 0.0 for g in groups])

    def prop_1(self):
        """{id: share} at the true values."""
        weights = gvm_weights(*(np.array(list(v.values())) for v in (self.rates, self.norms)), alpha=1e-3, beta=2.0)
        return dict(zip(self.rates, weights / weights.sum(), strict=True))


def run_of(table, allocate, source, **probe):
    config = validate(
        {"rollout": {"prompts_per_step": PER_STEP, "rollouts_per_prompt": N}, "probe": {"every": 2, **probe}}
    )
    rows = []
    return SimpleNamespace(
        config=config,
        seed=0,
        sampling=None,
        source=source,
        allocate=allocate,
        prompts=PromptStream(table.prompts, per_step=PER_STEP, seed=("table",)),
        history=History(decay=config.probe.decay),
        engine=table,
        policy=table,
        verifiers=SimpleNamespace(submit=None, collect=lambda groups: groups),  # the table's groups are judged already
        logbook=SimpleNamespace(rows=rows, write_between=lambda step, metrics: rows.append((step, metrics))),
    )


def walk(run, steps):
    """[steps] what each prompt got, by id: plan, sample, observe."""
    found = []
    for step in steps:
        plan(run, step)
        prompts = run.prompts.take(step)
        counts = run.history.plan(prompts, step)
        groups = run.engine.generate(prompts, counts, None, seed=(run.seed, "rollout", step))
        norms = run.policy.prompt_gradient_norms(groups, of="embedding") if run.source == "history" else None
        run.history.observe(groups, step, norms)
        found.append({prompt.id: int(n) for prompt, n in zip(prompts, counts, strict=True)})
    return found


def correlation(counts, table):
    """Between what each prompt got and Proposition 1 at the true rates and norms."""
    share = table.prop_1()
    return np.corrcoef(list(counts.values()), [share[prompt] for prompt in counts])[0, 1]


ALLOCATIONS = [(gvm, "probe"), (gvm_online, "history")]
each_allocation = pytest.mark.parametrize(("allocator", "source"), ALLOCATIONS, ids=["probe", "online"])


@each_allocation
@pytest.mark.parametrize("norms", [NORMS, np.ones(G)], ids=["norms differ", "norms equal"])
def test_after_20_steps_the_counts_are_those_of_proposition_1(allocator, source, norms):
    """An epoch is 2 steps, so by then every prompt was visited 10 times; the last two steps hold each once."""
    table = Table(RATES, norms)
    last = walk(run_of(table, allocator, source, rollouts_per_prompt=32), range(20))[-2:]
    counts = last[0] | last[1]
    assert len(counts) == G
    assert sum(counts.values()) == G * N
    print(correlation(counts, table))
    assert correlation(counts, table) > 0.8
