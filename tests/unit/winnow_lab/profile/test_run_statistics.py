"""Statistics of a run's log, against values by hand."""

import json

import numpy as np
import pytest
from winnow_lab.profile.run_statistics import statistics_of

from planned_run import RIGHT, SECONDS, N, group, rewards_of, write_planned_run
from refusals import refused
from winnow.algos.planning import fit_pass_rates
from winnow.errors import ConfigError, DataError, RunFolderError


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_planned_run(tmp_path_factory.mktemp("planned") / "run")


def test_statistics_are_means_over_the_window(run):
    statistics = statistics_of(run, window=2)
    assert (statistics.first, statistics.last, statistics.groups) == (1, 2, 2 * len(RIGHT))
    assert statistics.flat == pytest.approx(1 / 4)
    assert statistics.rates == fit_pass_rates(RIGHT * 2, [N] * 2 * len(RIGHT))
    assert (statistics.two_values.values, statistics.two_values.border, statistics.two_values.explained) == (
        2,
        0.5,
        1.0,
    )
    assert (statistics.length, statistics.trained_length) == (6.0, 6.0)
    assert statistics.grad_norm == 0.5


def test_the_seconds_of_the_first_step_and_of_a_checkpoint_do_not_count(run):
    statistics = statistics_of(run, window=20)
    assert statistics.first == 0
    assert statistics.seconds == {name: seconds for name, seconds in SECONDS.items() if name != "save"}
    assert statistics.step_seconds == pytest.approx(4.57)
    alone = statistics_of(run, window=20, before=1)
    assert alone.seconds["update"] == pytest.approx(2.5)


def test_lasting_is_the_share_of_longer_rollouts(run):
    """Half of them have 4 tokens, half 8."""
    lasting = statistics_of(run, window=1).lasting
    assert lasting.tolist() == [1.0] * 4 + [0.5] * 4
    assert lasting.sum() == pytest.approx(6.0)


def test_a_failed_verdict_is_no_wrong_answer(tmp_path):
    groups = [group("p", [1.0, 0.0, np.nan, np.nan]), group("q", [np.nan] * 4)]
    statistics = statistics_of(write_planned_run(tmp_path / "run", groups), window=3)
    assert statistics.groups == 3  # q has no verdict in any of the three steps
    assert statistics.rates.mean == pytest.approx(0.5)


def test_several_reward_values_become_two_by_the_explained_variance(tmp_path):
    """The border between 0.1 and 1 explains nearly all of the variance; the mean of a prompt does not count."""
    groups = [group("p", [0.0, 0.1, 1.0, 1.0]), group("q", [0.1, 0.1, 0.1, 0.1])]
    statistics = statistics_of(write_planned_run(tmp_path / "run", groups), window=1).two_values
    values, two = np.array([0.0, 0.1, 1.0, 1.0]), np.array([0, 0, 1, 1])
    expected = np.corrcoef(values, two)[0, 1] ** 2
    assert (statistics.values, statistics.border) == (3, 0.55)
    assert statistics.explained == pytest.approx(expected)


@pytest.mark.parametrize("right", [0, N], ids=["all wrong", "all right"])
def test_a_run_whose_groups_are_all_flat_has_no_plan(tmp_path, right):
    run = write_planned_run(tmp_path / "run", [group("p", rewards_of(right))])
    with refused(ConfigError, run, code="config.unsupported"):
        statistics_of(run, window=20)


def test_a_run_without_rollouts_or_numbers_is_refused(tmp_path):
    with refused(RunFolderError, tmp_path):
        statistics_of(tmp_path, window=20)
    lacks = write_planned_run(tmp_path / "lacks", **{"seconds/update": None})
    with refused(DataError, "seconds/update", code="data.incomplete"):
        statistics_of(lacks, window=20)
    for file in (lacks / "rollouts").iterdir():
        file.unlink()
    with refused(DataError, lacks, key="log.rollouts", code="data.empty"):
        statistics_of(lacks, window=20)


def test_a_run_of_several_processes_is_refused(tmp_path):
    run = write_planned_run(tmp_path / "run")
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps(manifest | {"ranks": 2}))
    with refused(ConfigError, run, 2, code="config.unsupported"):
        statistics_of(run, window=20)


def test_steps_without_an_update_have_no_gradient(tmp_path):
    """The root of the mean square: 0.5 in the two steps that have one, 0 in the third."""
    run = write_planned_run(tmp_path / "run")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    del lines[1]["policy/grad_norm"]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert statistics_of(run, window=20).grad_norm == pytest.approx(0.5 * (2 / 3) ** 0.5)


def test_a_run_without_an_update_has_no_gradient_norm(tmp_path):
    run = write_planned_run(tmp_path / "run", **{"policy/grad_norm": None})
    assert statistics_of(run, window=20).grad_norm is None
