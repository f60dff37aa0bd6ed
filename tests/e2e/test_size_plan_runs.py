"""Whole runs that choose the sizes of their steps: equal at given costs, and a resume that repeats its decisions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from refusals import refused
from winnow.algos.size_decision import decided
from winnow.config_file import validate
from winnow.core.events import Notice
from winnow.core.size_plan import RunSizes
from winnow.core.sizes import logged_setting
from winnow.errors import DataError
from winnow.state.decisions import DECISIONS, read_decisions
from winnow.state.logbook import read_metrics
from winnow.training.fit import fit
from winnow.training.resolve import resolve_members

COSTS = Path(__file__).parents[2] / "configs" / "costs" / "two_cpu_cores.json"
SIZES = {"use": "auto", "every": 2, "prompts_per_step": (2, 8), "rollouts_per_prompt": (2, 8)}


def trainer(smallest, home):
    """run("name", costs=...) trains six steps in a folder of that name, and returns its notices."""

    def train(name, *, resume=False, costs=None, **keys):
        plan = SIZES if costs is None else {**SIZES, "costs": str(costs)}
        base = {"steps": 6, "plan": plan, "checkpoint": {"every": 0}, "output": str(home / name)}
        notices = []
        fit(
            resolve_members(validate(smallest(**{**base, **keys})), home),
            resume=resume,
            watch=lambda event: notices.append(event.text) if isinstance(event, Notice) else None,
        )
        return notices

    return train


@pytest.fixture
def run(smallest, tmp_path):
    return trainer(smallest, tmp_path)


@pytest.fixture(scope="module")
def given(smallest_in, tmp_path_factory):
    """The folder of a run at given costs, for tests that only read it, and its notices."""
    home = tmp_path_factory.mktemp("given")
    return home / "run", trainer(smallest_in(home), home)("run", costs=COSTS)


def weights(folder, step=6):
    return load_file(folder / "checkpoints" / f"step-{step:06d}" / "model.safetensors")


def same(one, two):
    return one.keys() == two.keys() and all(bool((one[name] == two[name]).all()) for name in one)


def settings(folder):
    return [logged_setting(row) for row in read_metrics(folder) if "budget/rollouts" in row]


def without_seconds(folder):
    return {step: {**row, "seconds": 0} for step, row in read_decisions(folder).items()}


def test_two_runs_at_given_costs_are_equal(given, run, tmp_path):
    one, _ = given
    run("two", costs=COSTS)
    assert same(weights(one), weights(tmp_path / "two"))
    assert without_seconds(one) == without_seconds(tmp_path / "two")
    assert list(read_decisions(one)) == [2, 4]
    assert len(set(settings(one))) > 1
    assert {row["policy/gradient_square"] > 0 for row in read_metrics(one)[1:6]} == {True}


def test_every_decision_is_computed_again_from_its_row_alone(given, run, tmp_path):
    """To the same bits, with measured and with given seconds; and another measurement gives other forecasts."""
    run("measured")
    for folder in (tmp_path / "measured", given[0]):
        rows = read_decisions(folder)
        assert list(rows) == [2, 4]
        for row in rows.values():
            found = decided({key: row[key] for key in ("run", "before", "jump", "whole", "evidence")})
            assert found["chosen"] == row["chosen"]
            assert found == {key: row[key] for key in found}
            assert row.keys() - found.keys() == {
                *("step", "window", "jump", "whole", "before", "spent", "run", "evidence", "seconds"),
            }
            row["evidence"]["lengths"][0] = [2 * length for length in row["evidence"]["lengths"][0]]
            row["evidence"]["steps"]["budget/tokens_generated"] = [1000.0, 1000.0]
            assert decided(row)["expected"] != found["expected"]


def test_a_step_has_the_sizes_of_the_decision_before_it(given):
    folder, notices = given
    found, rows = settings(folder), read_metrics(folder)
    decisions = read_decisions(folder)
    assert found[0] == found[1]
    assert vars(found[2]) == vars(found[3]) == decisions[2]["chosen"]
    assert vars(found[4]) == vars(found[5]) == decisions[4]["chosen"]
    for setting, row in zip(found, rows, strict=False):
        assert (row["budget/rollouts"], row["group/count"]) == (setting.sampled, setting.prompts)
        assert row["select/kept"] == setting.prompts * setting.kept
    assert [text for text in notices if text.startswith("step 2: n = ")]


def test_a_resume_repeats_the_decisions_of_its_log_and_not_its_seconds(run, tmp_path, monkeypatch):
    """The run is interrupted after step 5, and its last checkpoints are lost: its own seconds are another run's."""
    saves = {"every": 1, "keep_last": 9}
    run("run", checkpoint=saves)
    folder = tmp_path / "run"
    before, after = read_decisions(folder), weights(folder)
    for step in (2, 3, 4, 5, 6):
        checkpoint = folder / "checkpoints" / f"step-{step:06d}"
        for file in sorted(checkpoint.rglob("*"), reverse=True):
            file.unlink()
        checkpoint.rmdir()
    with (folder / DECISIONS).open("ab") as file:
        file.write(b'{"step": 6, "wind')  # it was being written
    monkeypatch.setattr(RunSizes, "decide", lambda *_: pytest.fail("a decision was made again"))
    run("run", resume=True, checkpoint=saves)
    assert read_decisions(folder) == before
    assert same(weights(folder), after)


def test_a_resume_with_another_learning_rate_decides_anew(run, tmp_path, smallest):
    run("run", costs=COSTS, steps=4)
    folder = tmp_path / "run"
    stale = {**read_decisions(folder)[2], "step": 4, "chosen": {"rollouts": 2, "kept": 2, "prompts": 2}}
    with (folder / DECISIONS).open("a") as file:
        file.write(json.dumps(stale) + "\n")
    config = smallest(
        steps=6, output=str(folder), plan={**SIZES, "costs": str(COSTS)}, optimizer={"learning_rate": 2e-3},
        checkpoint={"every": 0},
    )  # fmt: skip
    fit(resolve_members(validate(config), tmp_path), resume=True, allow_change=["optimizer.learning_rate"])
    assert read_decisions(folder)[4]["window"] == [2, 3]  # that of the stale one is [0, 1]


def test_costs_that_cannot_be_read_are_an_error_before_the_model(run, tmp_path):
    with refused(DataError, "costs.json", code="data.unreadable"):
        run("run", costs=tmp_path / "costs.json")
