"""Recorded runs: no alarm on any documented configuration at its full length, one on each run with one mistake."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from winnow.alarms.watch import alarms_of_run
from winnow.config import dump
from winnow.config_file import load
from winnow.recipes import recipe_paths

REPOSITORY = Path(__file__).parents[3]
FIXTURES = REPOSITORY / "tests" / "fixtures"
RUNS = json.loads(gzip.decompress((FIXTURES / "healthy_runs.json.gz").read_bytes()))
ILL = json.loads(gzip.decompress((FIXTURES / "ill_runs.json.gz").read_bytes()))
# gsm8k needs a model and data
NEEDS_MORE = ("gsm8k", "smollm2")  # a data set or a model that is not here
CONFIGS = {name: path for name, path in recipe_paths().items() if not name.startswith(NEEDS_MORE)}


def rows_of(name):
    columns = {**RUNS, **ILL}[name]
    return [
        {key: column[place] for key, column in columns.items() if column[place] is not None}
        for place in range(len(columns["step"]))
    ]


@pytest.mark.parametrize("name", RUNS)
def test_a_healthy_run_raises_no_alarm(name):
    config = dump(load(CONFIGS[name.rpartition("-s")[0]]))
    rows = rows_of(name)
    assert sum("budget/rollouts" in row for row in rows) == config["steps"]
    assert alarms_of_run(rows, config) == []


# The alarm of each mistake, the step at which it is raised, and the last step at which it holds.
MISTAKES = {
    "diverged": [("sudden_drop", 3, 40)],  # a learning rate of 0.05: 36% at step 0, then nothing
    "gamed": [("reward_without_accuracy", 13, 79)],  # a short text pays more than a right answer
    "lagging": [("engine_lags", 7, 15)],  # a bfloat16 copy at a learning rate of 1e-5
    "shuffled": [("no_learning", 73, 82), ("no_learning", 119, 120)],  # after 74 steps; before, after 120
}
NAMED = {"diverged": "optimizer.learning_rate", "gamed": "reward", "lagging": "rollout.engine", "shuffled": "reward"}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_run_with_one_mistake_raises_one_alarm_that_names_it(name):
    alarms = alarms_of_run(rows_of(name))
    assert [(alarm.name, alarm.step, alarm.last) for alarm in alarms] == MISTAKES[name]
    assert all(NAMED[name] in alarm.keys for alarm in alarms)
    assert not {"prompt.template", "task"} & set(alarms[0].keys) or name == "shuffled"


def test_there_is_a_run_of_every_configuration_that_needs_nothing_else():
    assert {name.rpartition("-s")[0] for name in RUNS} == set(CONFIGS)


def test_the_same_runs_raise_alarms_under_limits_that_they_pass():
    """The fixture contains all metrics that the rules read, so missing numbers are not the reason for no alarm."""
    strict = {"flat_share": 0.02, "untrained_steps": 1, "no_learning_gain": 50.0, "drop": 1e-6, "swings": 1, "steps": 2}
    strict |= {"standard_errors": 0.05, "gradient_factor": 1.01, "no_learning_steps": 6, "entropy_floor": 0.5}
    strict |= {"clip_fraction": 1e-9, "ratio": 1e-9, "values_steps": 1}
    raised = {alarm.name for name in RUNS for alarm in alarms_of_run(rows_of(name), {"alarms": strict})}
    signal = {"all_flat", "oscillation", "sudden_drop", "no_learning"}
    assert raised >= signal | {"gradient_spike", "clip_fraction", "ratio_drift"}
    assert "values_explain_nothing" in raised
    for name in RUNS:  # `entropy_collapse` needs more flat groups than any of these runs has
        assert any({"policy/entropy", "group/flat"} <= row.keys() for row in rows_of(name)), name


@pytest.mark.slow  # a minute or more each; the fixture holds the same runs
@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_a_healthy_run_raises_no_alarm_when_it_is_run(name, tmp_path):
    import winnow
    from winnow.training.fit import fit
    from winnow.training.resolve import resolve_members

    events = []
    changes = [f'output="{tmp_path / name}"', "verify.workers=1", "threads=1", 'log.rollouts="none"']
    config = load(CONFIGS[name], changes)
    fit(resolve_members(config, base=CONFIGS[name].parent), watch=events.append)
    assert [event.alarm for event in events if isinstance(event, winnow.AlarmRaised)] == []
