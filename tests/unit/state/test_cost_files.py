"""Costs from a profile, and from a file of two curves."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from refusals import refused
from winnow.algos.costs import StepWork
from winnow.errors import DataError
from winnow.state.cost_files import as_json, read_costs

ROOT = Path(__file__).parents[3]
CURVE = {"rollouts": [4, 8], "seconds": [1.0, 2.0]}
COSTS = {"winnow_costs": 1, "sampling": CURVE, "update": CURVE}


def write(folder, data):
    path = folder / "costs.json"
    path.write_text(json.dumps(data))
    return path


def point(measured, rollouts, seconds, ending="measured", **more):
    return {"measured": measured, "rollouts": rollouts, "seconds": seconds, "ending": ending, **more}


def test_the_curves_of_a_profile_are_sampling_and_accumulated_update(tmp_path):
    data = {
        "winnow_profile": 1,
        "points": [
            point("sampling", 16, 0.2, tokens=160),
            point("sampling", 8, 0.1, tokens=80),
            point("sampling", 32, None, ending="out of memory"),
            point("update, accumulation", 8, 0.4, tokens=80, trained=8),
            point("update, no accumulation", 8, 9.0, tokens=80, trained=8),
        ],
    }
    costs = read_costs(write(tmp_path, data))
    assert costs.sampling.rollouts.tolist() == [8, 16]
    assert costs.sampling.seconds.tolist() == [0.1, 0.2]
    assert costs.sampling.tokens_per_rollout == 10
    assert costs.update.seconds.tolist() == [0.4]


def test_what_is_written_is_read_again(tmp_path):
    mixed = {**CURVE, "mixed_lengths": True}
    costs = read_costs(write(tmp_path, {**COSTS, "sampling": mixed, "per": "prompt", "seconds_per_step": 3.0}))
    again = read_costs(write(tmp_path, as_json(costs)))
    assert (again.sampling.mixed_lengths, again.update.mixed_lengths) == (True, False)
    work = StepWork(prompts=2, rollouts=12, tokens_generated=100.0, trained=8, tokens_trained=64.0)
    assert again.seconds(work) == costs.seconds(work) == pytest.approx(1.5 + 1.0 + 3.0)


@pytest.mark.parametrize(
    "data",
    [
        {},
        [],
        {**COSTS, "winnow_costs": 2},
        {**COSTS, "per": "token"},
        {**COSTS, "update": {"rollouts": [4, 8], "seconds": [1.0]}},
        {**COSTS, "update": {"rollouts": [8, 4], "seconds": [1.0, 2.0]}},
        {**COSTS, "update": {"rollouts": [4, 8], "seconds": [1.0, -2.0]}},
        {**COSTS, "update": {"rollouts": [4, 8], "seconds": [1.0, float("nan")]}},
        {**COSTS, "update": {"rollouts": [], "seconds": []}},
        {**COSTS, "update": {**CURVE, "tokens_per_rollout": 0}},
        {**COSTS, "update": {**CURVE, "mixed_lengths": "yes"}},
        {**COSTS, "seconds_per_step": -1},
        {"winnow_profile": 1, "points": []},
        {
            "winnow_profile": 1,
            "points": [point("sampling", 0, 1.0, tokens=0), point("update, accumulation", 8, 1.0, trained=8)],
        },
    ],
)
def test_a_file_without_costs_is_refused_by_its_name(tmp_path, data):
    path = write(tmp_path, data)
    with refused(DataError, path):
        read_costs(path)


@pytest.mark.parametrize(
    ("change", "key", "names"),
    [
        ({"per": "token"}, "per", ("token",)),
        ({"update": {"rollouts": [4, 8], "seconds": [1.0, -2.0]}}, "update.seconds.1", ("-2.0",)),
        ({"update": {"seconds": [1.0]}}, "update.rollouts", ()),
        ({"update": {"rollouts": [8, 4], "seconds": [1.0, 2.0]}}, "update", ()),
        ({"seconds_per_step": -1, "per": "token"}, "per", ("seconds_per_step", "-1")),
    ],
)
def test_a_wrong_value_is_refused_by_its_key(tmp_path, change, key, names):
    path = write(tmp_path, {**COSTS, **change})
    with refused(DataError, path, key, *names, key=key, code="data.malformed") as caught:
        read_costs(path)
    assert not {"pydantic", "ValidationError", "_Costs"} & set(re.findall(r"\w+", str(caught.value)))


def test_a_wrong_point_of_a_profile_is_refused_by_its_curve(tmp_path):
    points = [point("sampling", 8, -1.0, tokens=80), point("update, accumulation", 8, 1.0, tokens=8, trained=8)]
    with refused(DataError, "sampling", "seconds.0", "-1.0", code="data.malformed") as caught:
        read_costs(write(tmp_path, {"winnow_profile": 1, "points": points}))
    assert "pydantic" not in str(caught.value)


def test_a_missing_file_is_refused(tmp_path):
    with refused(DataError, tmp_path / "none.json", code="data.unreadable"):
        read_costs(tmp_path / "none.json")


def test_the_published_costs_give_back_the_published_seconds_per_step():
    costs = read_costs(ROOT / "configs/costs/pods_a.json")
    at = {(n, m): costs.seconds(StepWork(1, n, 0.0, m, 0.0)) for n, m in [(16, 16), (64, 16), (256, 16), (64, 2)]}
    np.testing.assert_allclose(list(at.values()), [7.56, 10.12, 21.37, 8.05], rtol=0.04)


def test_the_costs_of_a_whole_step_have_the_same_published_curves():
    step, prompt = (json.loads((ROOT / f"configs/costs/pods_a{end}.json").read_text()) for end in ("_step", ""))
    assert {key for key in step if step[key] != prompt[key]} == {"source", "per"}
    costs = read_costs(ROOT / "configs/costs/pods_a_step.json")
    assert costs.seconds(StepWork(4, 64, 0.0, 16, 0.0)) == pytest.approx(10.12, rel=0.04)
