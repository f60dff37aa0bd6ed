"""The draw of a run: checked, stored by step, restored at a resume, and read by every caller."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

import winnow
from logged_groups import read_rollouts
from refusals import refused
from winnow.budget.sampling import Drawn
from winnow.config_file import validate
from winnow.core.draw import PromptPool, check_drawn, draw
from winnow.errors import ConfigError, RunFolderError
from winnow.records import Prompt
from winnow.seeds import generator
from winnow.state.history import History
from winnow.state.logbook import read_metrics
from winnow.training.resolve import resolve_members

STATE = {"place": 3}


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        ([0, 1], ["list"]),
        ((np.array([0, 1]),), ["tuple"]),
        ((np.array([0.0, 1.0]), STATE), ["float64", "(2,)"]),
        ((np.array([0, 1, 2]), STATE), ["int64", "(3,)", 2, 5]),
        ((np.array([0, 5]), STATE), [0, 5]),
        ((np.array([-1, 0]), STATE), [-1, 0]),
        ((np.array([3, 3]), STATE), [1, 2]),
        ((np.array([0, 1]), None), ["NoneType"]),
        ((np.array([0, 1]), {"a": {"b": np.zeros(1)}}), ["ndarray"]),
        ((np.array([0, 1]), {"a": math.nan}), ["JSON"]),
        ((np.array([0, 1]), {"a": {3: 1}}), ["JSON", "key"]),
        ((np.array([0, 1]), {"a": (0, 1)}), ["JSON", "tuple"]),
        ((np.array([0, 1]), {"a": np.zeros((2, 3))}), ["'a'", "(2, 3)"]),
        ((np.array([0, 1]), {"a": np.zeros(2, dtype=bool)}), ["'a'", "bool"]),
    ],
)
def test_a_sampler_returns_different_rows_and_a_state(answer, named):
    with refused(ConfigError, *named, key="sample", code="config.member_result"):
        check_drawn(answer, 5, 2)


def test_rows_may_be_a_list_and_the_numbers_of_the_draw_may_be_missing():
    drawn = check_drawn(([4, 0], STATE), 5, 2)
    assert (drawn.rows.tolist(), drawn.rows.dtype) == ([4, 0], np.int64)
    assert drawn[1:] == (STATE, 0, 0, None)
    assert check_drawn(Drawn(np.array([1]), STATE, 7, 2), 5, 1)[1:] == (STATE, 7, 2, None)


@pytest.mark.parametrize(
    ("probability", "known", "fits"),
    [
        ([0.5, 1.0], True, True),
        ([0.5, 1.0], False, True),
        (None, False, True),
        (None, True, False),  # registered as known
        ([0.5], True, False),
        ([0.0, 1.0], True, False),
        ([0.5, 1.1], False, False),
        ([0.5, np.nan], True, False),
    ],
)
def test_probabilities_of_a_draw_are_above_0_and_one_per_row(probability, known, fits):
    answer = Drawn(np.array([1, 2]), STATE, probability=probability)
    if fits:
        found = check_drawn(answer, 5, 2, known=known).probability
        assert found is None if probability is None else found.tolist() == probability
        return
    with refused(ConfigError, key="sample", code="config.member_result"):
        check_drawn(answer, 5, 2, known=known)


def parts(sample, rounds=0):
    rollout = {"prompts_per_step": 3, "dynamic_sampling_rounds": rounds}
    members = resolve_members(validate({"sample": sample, "rollout": rollout}), base=Path.cwd())
    prompts = [Prompt(id=f"p{i}", tokens=np.array([1]), text="", answer="", task="t") for i in range(10)]
    pool = PromptPool(prompts, per_step=3, seed=("s",))
    return members, History([prompt.id for prompt in prompts], remember=members.remember), pool


def test_a_window_is_drawn_at_once_and_its_prompts_are_distinct():
    members, history, pool = parts("cures")
    draw(members, history, pool, range(6, 9))
    rows = np.concatenate([history.drawn(step) for step in (6, 7, 8)])
    assert len(set(rows.tolist())) == 9
    assert history.table.draws == 9
    counted = dict(history.draw_metrics(6))
    assert (counted["sampler/skipped"], counted["sampler/overdue"]) == (1.0, 0.0)
    # 9 of 10 in three steps; a step has a prompt with a third of the probability of the window
    assert 0 < counted["sampler/probability_least"] <= counted["sampler/probability_most"] <= 1 / 3
    restored = History([f"p{i}" for i in range(10)], remember=True)
    restored.load_state_dict(json.loads(json.dumps(history.state_dict())))
    for step in (6, 7, 8):
        assert [of.prompts for of in history.draws(step)] == [10] * 3
        assert restored.draws(step) == history.draws(step)
    assert not history.draw_metrics(7)


def best_first(table, state, rng, count):
    """Rows 0 to count - 1, in the order of a preference."""
    return Drawn(np.arange(count), {}, probability=0.1 + 0.1 * np.arange(count))


def test_a_preferred_prompt_is_in_any_step_of_a_window_and_keeps_its_probability():
    """6 prompts in 2 steps: a row is in the first step of half of the windows, with half of its probability."""
    members, history, pool = parts(best_first)
    first = np.zeros(6)
    for start in range(0, 400, 2):
        draw(members, history, pool, range(start, start + 2))
        for step in (start, start + 1):
            rows, found = history.drawn(step), [of.probability for of in history.draws(step)]
            np.testing.assert_allclose(found, (0.1 + 0.1 * rows) / 2, rtol=1e-12)
        first[history.drawn(start)] += 1
    assert first.sum() == 3 * 200
    assert np.abs(first - 100).max() < 4 * np.sqrt(200) / 2  # 4 standard deviations
    draw(members, history, pool, range(1))
    assert history.drawn(0).tolist() == [0, 1, 2]  # a draw of one step keeps the sampler's order


def test_uniform_has_no_metrics_and_no_table():
    members, history, pool = parts("uniform")
    draw(members, history, pool, range(1))
    assert not history.draw_metrics(0)
    assert history.table.draws == 0
    assert history.drawn(0).tolist() == generator("s", "epoch", 0).permutation(10)[:3].tolist()


def test_further_rounds_have_the_other_prompts_each_once():
    """7 others in rounds of 3; their order has the name and the numbers that it always had."""
    members, history, pool = parts("uniform", rounds=5)
    draw(members, history, pool, range(4, 5))
    others = np.setdiff1d(np.arange(10), history.drawn(4))
    generator("s", "refill", 4).shuffle(others)
    rounds = [history.drawn(4, extra=n).tolist() for n in (1, 2, 3, 4)]
    assert rounds == [others[:3].tolist(), others[3:6].tolist(), others[6:].tolist(), []]
    members, history, pool = parts("uniform", rounds=1)
    draw(members, history, pool, range(4, 5))
    assert [len(history.drawn(4, extra=n)) for n in (1, 2)] == [3, 0]


def train(config, **more):
    return winnow.train(**config, watch=lambda event: None, **more)


SAMPLERS = {
    "greso": {"use": "greso"},
    "mopps": {"use": "mopps", "candidates": 2},
    "adarft": {"use": "adarft", "field": "level", "start": 1, "highest": 6, "step_size": 3},
    "cures": {"use": "cures"},
    "replay": {"use": "replay", "cooldown": 1, "low": 0.0, "high": 1.0},
    "retire": {"use": "retire", "above": 0.5},
}


def same_files(one, other):
    for name in ("model.safetensors", "trainer.tensors", "trainer.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


@pytest.mark.parametrize("sample", SAMPLERS.values(), ids=SAMPLERS)
def test_a_run_with_a_sampler_resumes_to_the_same_bits(sample, smallest, tmp_path):
    """16 prompts in steps of 4: from the fifth step on the results decide."""
    config = smallest(steps=7, sample=sample, task={"levels": [1, 2, 3]}, checkpoint={"every": 5})
    whole = train({**config, "output": str(tmp_path / "whole")})
    shutil.copytree(whole.folder, tmp_path / "half")
    shutil.rmtree(tmp_path / "half" / "checkpoints" / "step-000007")
    same_files(whole.model, train({**config, "output": str(tmp_path / "half")}, resume=True).model)
    rows = [row for row in read_metrics(whole.folder) if "budget/rollouts" in row]
    assert all(row["sampler/skipped"] >= 0 == row["sampler/overdue"] for row in rows)


def test_a_resume_inside_a_window_reads_the_stored_draw(smallest, tmp_path):
    probe = {"every": 4, "rollouts_per_prompt": 2, "gradient_norm": "none"}
    keys = {"sample": "cures", "allocate": "gvm", "weighting": "prompt", "select": "all", "probe": probe}
    config = smallest(steps=6, **keys)
    whole = train({**config, "output": str(tmp_path / "whole")})
    half = {**config, "output": str(tmp_path / "half")}
    train({**half, "steps": 2})
    same_files(whole.model, train(half, resume=True).model)


def by_length(table, state, rng, count):
    """The same prompts in every step."""
    return np.arange(count)[::-1], {"calls": state.get("calls", 0) + 1}


def test_a_user_s_sampler_decides_the_prompts_of_every_step(smallest):
    result = train(smallest(steps=3, sample=by_length))
    prompts = [{entry.group.prompt.id for entry in read_rollouts(result.folder, step)} for step in range(3)]
    assert prompts[0] == prompts[1] == prompts[2]
    assert len(prompts[0]) == 4


def always_the_first(table, state, rng, count):
    return np.zeros(count, dtype=np.int64), state


def test_a_run_refuses_a_wrong_result_of_a_sampler(smallest):
    with refused(ConfigError, key="sample", code="config.member_result"):
        train(smallest(sample=always_the_first))


def test_a_resume_may_not_change_the_sampler_unless_it_is_allowed(smallest):
    config = smallest(steps=2)
    train(config)
    changed = {**config, "steps": 3, "sample": "greso"}
    with refused(RunFolderError, key="sample.use", code="run_folder.changed"):
        train(changed, resume=True)
    assert train(changed, resume=True, allow_change=["sample"]).steps == 3


def test_a_label_is_read_before_a_model_is_loaded(smallest):
    with refused(ConfigError, "'difficulty'", "'level'", key="sample", code="config.combination"):
        train(smallest(sample="adarft", model={"path": "bundled"}))


def test_a_sampler_that_reads_results_reads_their_decay(smallest):
    config = {"probe": {"decay": 0.5}}
    resolve_members(validate({**config, "sample": "mopps"}), base=Path.cwd())
    with refused(ConfigError, key="probe.decay", code="config.no_effect"):
        resolve_members(validate(config), base=Path.cwd())
