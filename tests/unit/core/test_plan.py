"""Planning by probe: the start of windows, the cost of a probe, the limits of its plan, and its resume."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import winnow
from logged_groups import read_rollouts
from winnow.config_file import validate
from winnow.core.plan import starts_window, window
from winnow.records import PromptStats
from winnow.state.logbook import read_metrics
from winnow.training.resolve import resolve_members

# A random policy's texts pass or fail by their first character, or by the prompt they answer.
REWARD = '''
def parity(prompt, rollout):
    """About half pass."""
    return float(ord((rollout.text or " ")[0]) % 2 == 0)


def mixed(prompt, rollout):
    """By the last digit of the prompt's id: a quarter always pass, a quarter never do."""
    kind = int(prompt.id[-1], 16) % 4
    return (1.0, 0.0, *2 * [parity(prompt, rollout)])[kind]


def never(prompt, rollout):
    return 0.0
'''


@pytest.fixture
def probed(smallest_in, tmp_path):
    """A run's configuration: 4 prompts and 16 rollouts a step, windows of 2 steps, 3 rollouts a probe."""
    return probed_in(smallest_in, tmp_path)


@pytest.fixture(scope="module")
def seven_steps(smallest_in, tmp_path_factory):
    """The result of a run with an epoch's end after step 5."""
    return train(probed_in(smallest_in, tmp_path_factory.mktemp("probed"))(steps=7))


def probed_in(smallest_in, folder):
    (folder / "rewards.py").write_text(REWARD)
    smallest = smallest_in(folder)

    def configuration(reward="parity", **changes):
        base = {
            "allocate": "gvm",
            "probe": {"every": 2, "rollouts_per_prompt": 3},
            "task": {"size": 20, "levels": [2]},
            "reward": {"use": f"{folder}/rewards.py:{reward}"},
            "select": "all",
            "weighting": "prompt",
            "evaluate": {"problems": 1, "rollouts_per_prompt": 1},
            "verify": {"workers": 0},
        }
        merged = smallest(**base)
        for key, value in changes.items():
            old = merged.get(key)
            merged[key] = {**old, **value} if isinstance(value, dict) and isinstance(old, dict) else value
        return merged

    return configuration


def train(config, **more):
    return winnow.train(**config, watch=lambda event: None, **more)


def steps_of(result):
    return [row for row in read_metrics(result.folder) if "budget/rollouts" in row]


def counts_of(result):
    """One {prompt id: rollouts} per step, of the prompts that got any."""
    groups = itertools.groupby(read_rollouts(result.folder), key=lambda entry: entry.step)
    return [{entry.group.prompt.id: len(entry.group.rollouts) for entry in entries} for _, entries in groups]


def kind(prompt_id):
    return ("always", "never", "sometimes", "sometimes")[int(prompt_id[-1], 16) % 4]


@pytest.mark.parametrize(
    ("every", "windows"),
    [
        (2, [range(0, 2), range(2, 4), range(4, 5), range(5, 7), range(7, 9), range(9, 10), range(10, 12)]),
        (8, [range(0, 5), range(5, 10), range(10, 15)]),
        (1, [range(i, i + 1) for i in range(12)]),
    ],
)
def test_windows_are_cut_at_the_end_of_an_epoch(every, windows):
    """5 steps an epoch; the steps of all windows are all steps, once each."""
    run = SimpleNamespace(config=validate({"probe": {"every": every}}), prompts=SimpleNamespace(steps_per_epoch=5))
    assert [window(run, step) for step in range(12) if starts_window(run, step)] == windows


def test_one_probe_per_window_and_its_price_in_the_metrics(seven_steps):
    rows = steps_of(seven_steps)
    rollouts = [row.get("budget/probe_rollouts") for row in rows]
    assert rollouts == [24, None, 24, None, 12, 24, None]  # 3 for each of 8 prompts, of 4 at the epoch's end
    for row in rows:
        assert row["seconds/step"] > 0
        priced = [row.get(name, 0) > 0 for name in ("budget/probe_rollouts", "budget/probe_tokens", "seconds/probe")]
        assert len(set(priced)) == 1
        if priced[0]:
            prompts = row["budget/probe_rollouts"] / 3
            assert row["budget/probe_prompt_tokens"] > prompts == row["budget/probe_rollouts"] // 3
            assert row["budget/probe_rollouts"] <= row["budget/probe_tokens"] <= 8 * row["budget/probe_rollouts"]
            assert row["plan/count_min"] <= 4 <= row["plan/count_max"]


def test_a_window_spends_its_budget(seven_steps):
    """16 rollouts a step on average; the plan decides how they are spread over a window."""
    spent = [row["budget/rollouts"] for row in steps_of(seven_steps)]
    assert [sum(spent[0:2]), sum(spent[2:4]), spent[4], sum(spent[5:7])] == [32, 32, 16, 32]
    assert spent[0] != 16 or spent[2] != 16


def test_the_probes_rollouts_are_not_trained_on(seven_steps):
    logged = sum(len(entry.group.rollouts) for entry in read_rollouts(seven_steps.folder))
    assert logged == sum(row["budget/rollouts"] for row in steps_of(seven_steps)) == 7 * 16


def test_a_resume_in_the_middle_of_a_window_finds_the_plan(probed, tmp_path):
    """Windows of 4 steps, cut off after 1: the rest follows the same plan, without another probe, to the same bits."""
    config = probed(steps=4, probe={"every": 4})
    whole = train({**config, "output": str(tmp_path / "whole")})
    half = {**config, "output": str(tmp_path / "half")}
    train({**half, "steps": 1})
    resumed = train(half, resume=True)
    assert counts_of(resumed) == counts_of(whole)
    assert [step["plan/count_max"] for step in steps_of(resumed) if "plan/count_max" in step] == [
        steps_of(whole)[0]["plan/count_max"]
    ]
    for name in ("model.safetensors", "trainer.tensors", "trainer.json"):
        assert (whole.model / name).read_bytes() == (resumed.model / name).read_bytes(), name


def bound_allocator(config):
    return resolve_members(validate(config), base=Path.cwd()).allocate


def stats_with_norms(norms):
    """All pass at 0.5, so shares are as the norms."""
    n = len(norms)
    half, ones = np.full(n, 0.5), np.ones(n)
    return PromptStats(ids=("",) * n, pass_rate=half, gradient_norm=np.array(norms), trials=8 * ones, correct=4 * ones)


@pytest.mark.parametrize("allocate", ["gvm", "gvm_online"])
@pytest.mark.parametrize(("advantage", "counts"), [("grpo", [0, 2, 18]), ("rloo", [0, 2, 18]), ("raft", [0, 1, 19])])
def test_under_a_group_baseline_who_gets_any_gets_two(allocate, advantage, counts):
    """Shares 0.2, 0.9 and 18.9 of 20."""
    allocator = bound_allocator({"allocate": allocate, "advantage": advantage})
    assert allocator(stats_with_norms([0.2, 0.9, 18.9]), 20).tolist() == counts


def test_a_configured_minimum_is_used():
    allocator = bound_allocator({"allocate": {"use": "gvm", "minimum": 4}, "advantage": "grpo"})
    assert allocator(stats_with_norms([0.2, 4.9, 14.9]), 20).tolist() == [0, 5, 15]
    assert allocator(stats_with_norms([0.2, 0.9, 18.9]), 20).tolist() == [0, 4, 16]


def test_no_group_of_a_run_has_a_single_rollout(probed):
    """2 rollouts a prompt on average, so that many shares round to 1."""
    result = train(probed(steps=4, rollout={"rollouts_per_prompt": 2}))
    counts = [n for step in counts_of(result) for n in step.values()]
    assert min(counts) == 2
    assert sum(row["budget/prompts_skipped"] for row in steps_of(result)) == 16 - len(counts) > 0


def test_a_filtered_prompt_gets_nothing(probed):
    """What always passes lies above the threshold."""
    got = [prompt for step in counts_of(train(probed("mixed", steps=5))) for prompt in step]
    assert {kind(prompt) for prompt in got} == {"always", "sometimes"}

    config = probed("mixed", steps=5, allocate={"use": "gvm", "filter_threshold": 0.99})
    config["output"] += "-filtered"
    got = [prompt for step in counts_of(train(config)) for prompt in step]
    assert {kind(prompt) for prompt in got} == {"sometimes"}


def test_an_unsolved_prompt_is_counted_and_left_out_or_explored(probed):
    config = probed("mixed", steps=5, probe={"every": 5})
    (row, *_) = steps_of(train(config))
    explored = train({**config, "output": f"{config['output']}-2", "allocate": {"use": "gvm", "exploration": 2}})
    (same, *_) = steps_of(explored)
    counts = {prompt: n for step in counts_of(explored) for prompt, n in step.items()}
    hopeless = [n for prompt, n in counts.items() if kind(prompt) == "never"]
    assert row["plan/unsolved"] == same["plan/unsolved"] >= len(hopeless) > 0
    assert row["plan/count_min"] == 0
    assert same["plan/count_min"] == 2
    assert set(hopeless) == {2}
    assert sum(counts.values()) == 20 * 4


def test_where_nothing_was_solved_the_plan_is_uniform(probed):
    rows = steps_of(train(probed("never", steps=2)))
    assert rows[0]["plan/unsolved"] == 8
    assert rows[0]["plan/count_min"] == rows[0]["plan/count_max"] == 4
    assert [row["budget/updates"] for row in rows] == [0, 0]


def test_a_reset_optimizer_forgets_at_a_new_window_and_not_before(probed, tmp_path):
    """Until the second window's first update the runs are one; that update differs, as AdamW's first ever does."""
    norms = {}
    for what in ("none", "optimizer"):
        config = probed(steps=4, probe={"outer_reset": what}, output=str(tmp_path / what))
        norms[what] = [row["policy/grad_norm"] for row in steps_of(train(config))]
    assert norms["none"][:3] == norms["optimizer"][:3]  # the third is of the gradient before the update
    assert norms["none"][3] != norms["optimizer"][3]
