"""A tabular policy: every prompt has a known pass rate, so it is known what it should get. No model anywhere.

The engine draws its verdicts by those rates. `probe.plan` and the history are the real ones, driven step by step as
`fit` and `train_step` drive them; gradient norms are the table's.
"""

from __future__ import annotations

from functools import partial
from math import comb
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from winnow.budget.allocation import gvm_weights
from winnow.budget.allocators import gvm, gvm_online
from winnow.config_file import validate
from winnow.core.draw import PromptPool
from winnow.core.plan import plan, prompt_gradient_norms
from winnow.core.progress import Ahead, Phases
from winnow.memory.usage import Gauge
from winnow.options import bind
from winnow.records import Prompt
from winnow.registry import resolve
from winnow.seeds import generator
from winnow.state.history import History
from winnow.testing import group_of

REPOSITORY = Path(__file__).parents[3]
G, PER_STEP, N = 16, 8, 16
SAMPLE = bind(resolve("sampler", "uniform"), {}, key="sample")
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

    def gradient_norms(self, sequences, *, of):
        return np.array([self.norms[sequence.prompt.id] for sequence in sequences])

    def reset(self, what):
        assert what == "none"

    def prop_1(self):
        """{id: share} at the true values."""
        rates, norms = (np.array(list(column.values())) for column in (self.rates, self.norms))
        weights = gvm_weights(rates, norms, alpha=1e-3, beta=2.0)
        return dict(zip(self.rates, weights / weights.sum(), strict=True))


def run_of(table, allocate, source, seed=0):
    """The parts of a run, and of its progress, that planning reads; N' = 8."""
    rollout = {"prompts_per_step": PER_STEP, "rollouts_per_prompt": N}
    config = validate({"rollout": rollout, "probe": {"every": 2}})
    rows = []
    run = SimpleNamespace(
        config=config,
        seed=seed,
        sampling=None,
        members=SimpleNamespace(
            config=config,
            source=source,
            allocate=allocate,
            sample=SAMPLE,
            gradient_norm=config.probe.gradient_norm,
        ),
        prompts=PromptPool(table.prompts, per_step=PER_STEP, seed=("table",)),
        engine=table,
        learner=table,
        gauge=Gauge,
        verifiers=SimpleNamespace(  # the table's groups are judged already
            submit=None, collect=lambda groups: groups, check_step=lambda groups: None
        ),
        logbook=SimpleNamespace(rows=rows, write_between=lambda step, metrics: rows.append((step, metrics))),
    )
    return run, SimpleNamespace(
        history=History([prompt.id for prompt in table.prompts], decay=config.probe.decay),
        phases=Phases(),
        ahead=Ahead(),
    )


def walk(run, progress, steps):
    """[steps] what each prompt got, by id: plan, sample, observe."""
    found = []
    for step in steps:
        plan(run, progress, step)
        prompts = run.prompts.take(progress.history.drawn(step))
        counts = progress.history.plan(prompts, step)
        groups = run.engine.generate(prompts, counts, None, seed=(run.seed, "rollout", step))
        norms = prompt_gradient_norms(run, groups) if run.members.source == "history" else None
        progress.history.observe(groups, norms)
        found.append({prompt.id: int(n) for prompt, n in zip(prompts, counts, strict=True)})
    return found


def correlation(counts, table):
    """Between what each prompt got and Proposition 1 at the true rates and norms."""
    share = table.prop_1()
    return np.corrcoef(list(counts.values()), [share[prompt] for prompt in counts])[0, 1]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("allocator", "source", "norms"),
    [(gvm, "probe", NORMS), (gvm_online, "history", NORMS), (gvm_online, "history", np.ones(G))],
    ids=["probe", "online", "online, equal norms"],
)
def test_after_20_steps_the_counts_are_those_of_proposition_1(allocator, source, norms, seed):
    """An epoch is 2 steps, so by then every prompt was visited 10 times; the last two steps hold each once."""
    table = Table(RATES, norms)
    run, progress = run_of(table, allocator, source, seed=seed)
    first, *_, last = [one | other for one, other in pairs(walk(run, progress, range(20)))]
    assert len(last) == G
    assert sum(last.values()) == G * N
    assert correlation(last, table) > 0.8
    if source == "history":
        assert set(first.values()) == {N}  # nothing was known at the first visit


def pairs(steps):
    return zip(steps[::2], steps[1::2], strict=True)


RETURNING = [(partial(gvm, exploration=2), "probe"), (gvm_online, "history")]
each_returning = pytest.mark.parametrize(("allocator", "source"), RETURNING, ids=["probe", "online"])


@each_returning
def test_a_prompt_that_was_never_solved_is_visited_again_and_again(allocator, source):
    table = Table([0.0, *RATES[1:]], NORMS)
    visits = [counts["p0"] for counts in walk(*run_of(table, allocator, source), range(20)) if "p0" in counts]
    assert len(visits) == 10
    assert min(visits) == 2 == visits[-1]


@each_returning
def test_it_gets_its_share_once_it_can_be_solved(allocator, source):
    """From step 10 on the heaviest prompt of all passes at 0.5."""
    table = Table([0.0, *RATES[1:]], [8.0, *NORMS[1:]])
    run, progress = run_of(table, allocator, source)
    before = walk(run, progress, range(10))
    table.rates["p0"] = 0.5
    after = walk(run, progress, range(10, 40))
    assert max(counts.get("p0", 0) for counts in before[2:]) == 2
    last = [counts["p0"] for counts in after if "p0" in counts][-1]
    assert last > 1.5 * N


def test_without_exploration_the_next_probe_still_finds_out():
    table = Table([0.0, *RATES[1:]], NORMS)
    run, progress = run_of(table, gvm, "probe")
    assert sum(counts.get("p0", 0) for counts in walk(run, progress, range(10))) == 0
    table.rates["p0"] = 0.5
    assert sum(counts.get("p0", 0) for counts in walk(run, progress, range(10, 20))) > 0


def test_a_window_of_whole_epochs_spends_its_budget_and_no_more():
    run, progress = run_of(Table(RATES, NORMS), gvm, "probe")
    steps = walk(run, progress, range(6))
    assert [sum((one | other).values()) for one, other in pairs(steps)] == [2 * PER_STEP * N] * 3
    assert [step for step, _ in run.logbook.rows] == [0, 2, 4]


def test_the_bias_of_a_probed_pass_rate_is_what_the_docs_say():
    """docs/spending-the-budget.md: E[p / p_hat; p_hat > 0] of N' = 4, 8, 16; what a probe did not solve is left out."""
    text = (REPOSITORY / "docs" / "spending-the-budget.md").read_text(encoding="utf-8")
    _, _, *lines = text[text.index("| p | N' = 4 |") :].partition("\n\n")[0].splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines]
    assert len(rows) == 3
    for p, *ratios in rows:
        expected = [f"{probed_ratio(trials, float(p)):.2f}" for trials in (4, 8, 16)]
        assert ratios == expected, p


def probed_ratio(trials, p):
    return sum(comb(trials, c) * p**c * (1 - p) ** (trials - c) * p * trials / c for c in range(1, trials + 1))
