from __future__ import annotations

import json

import numpy as np
import pytest
from written_runs import write_run

from refusals import refused
from winnow.errors import DataError
from winnow.state.logbook import read_metrics
from winnow_lab.compare.curve import Curve, curve_of, mean_curve, on_shared_x


def curve(seed, x, y, axis="seconds"):
    return Curve(f"seed {seed}", str(seed), {axis: np.array(x, float)}, {"accuracy": np.array(y, float)})


def read(folder, **options):
    return curve_of(read_metrics(folder), source=str(folder), seed="0", **options)


def test_an_evaluation_is_at_the_cost_before_it_with_probes(tmp_path):
    probes = {0: {"seconds/probe": 5.0, "budget/probe_tokens": 300}, 2: {"seconds/probe": 7.0}}
    run = write_run(tmp_path / "run", [0.1, 0.4, 0.3], step=lambda step: probes.get(step, {}))
    result = read(run)
    assert result.x["seconds"].tolist() == [0, 25, 52]  # 10 a step; the evaluations took 1,000 each
    assert result.x["tokens_generated"].tolist() == [0, 2300, 4300]
    assert result.x["tokens_trained"].tolist() == [0, 500, 1000]
    assert result.x["steps"].tolist() == [0, 2, 4]
    assert result.y["accuracy"].tolist() == [0.1, 0.4, 0.3]
    assert result.y["length"].tolist() == [20, 18, 16]
    assert set(result.y) == {"accuracy", "length", "answer"}  # format and both were not measured


def test_a_resumed_run_counts_each_of_its_steps_once(tmp_path):
    from winnow.state.logbook import Logbook

    run = write_run(tmp_path / "run", [0.1, 0.4, 0.3])
    rows = (run / "metrics.jsonl").read_text().splitlines()
    Logbook(run, seed=0).truncate_from(
        2, but_evaluation=True
    )  # interrupted in step 3, and resumed from a checkpoint after step 2
    with (run / "metrics.jsonl").open("a") as file:
        file.writelines(f"{row}\n" for row in rows if json.loads(row)["step"] >= 2 and "eval/seconds" not in row)
        file.write(rows[-1] + "\n")
    assert read(run).x["seconds"].tolist() == [0, 20, 40]
    assert read(run).y["accuracy"].tolist() == [0.1, 0.4, 0.3]


def test_a_log_that_lacks_a_step_is_refused(tmp_path):
    run = write_run(tmp_path / "run", [0.1, 0.4])
    rows = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join(row for row in rows if '"step":1,' not in row) + "\n")
    with refused(DataError, run, 1, 2, code="data.incomplete"):
        read(run)


def test_a_further_task_has_a_separate_curve():
    rows = [
        {"step": 0, "eval/accuracy_sampled": 0.5, "eval/math500/accuracy_sampled": 0.2, "eval/math500/part/answer": 0.3}
    ]
    result = curve_of(rows, source="run", seed="0", task="math500")
    assert {name: y.tolist() for name, y in result.y.items()} == {"accuracy": [0.2], "answer": [0.3]}
    assert curve_of(rows, source="run", seed="0", task="aime24") is None


def test_seeds_with_the_same_x_keep_their_points():
    result = mean_curve(
        [curve(0, [0, 2, 4], [0.1, 0.5, 0.6]), curve(1, [0, 2, 4], [0.3, 0.3, 0.8])], "seconds", "accuracy"
    )
    assert result.x.tolist() == [0, 2, 4]
    assert result.mean == pytest.approx([0.2, 0.4, 0.7])
    assert result.standard_error == pytest.approx(
        [0.1, 0.1, 0.1]
    )  # of 0.1 and 0.3: deviation 0.1 sqrt(2), over sqrt(2)
    assert result.high - result.mean == pytest.approx(
        [12.7062 * 0.1] * 3, rel=1e-5
    )  # Student's t of 1 degree of freedom


def test_seeds_are_interpolated_and_never_extrapolated():
    result = on_shared_x([curve(0, [0, 10], [0.0, 1.0]), curve(1, [1, 4, 8], [0.5, 0.5, 0.7])], "seconds", "accuracy")
    assert result.x.tolist() == [1, 4, 8]  # not 0, which seed 1 lacks, and not 10
    assert result.y[0] == pytest.approx([0.1, 0.4, 0.8])
    assert result.y[1] == pytest.approx([0.5, 0.5, 0.7])


def test_a_missing_measurement_is_omitted_from_its_seed():
    result = on_shared_x([curve(0, [0, 1, 2], [0.0, np.nan, 1.0])], "seconds", "accuracy")
    assert result.x.tolist() == [0, 2]


def test_seeds_without_a_common_range_or_axis_have_no_mean():
    assert mean_curve([curve(0, [0, 1], [0, 1]), curve(1, [2, 3], [0, 1])], "seconds", "accuracy") is None
    assert mean_curve([curve(0, [0, 1], [0, 1]), curve(1, [0, 1], [0, 1], "steps")], "seconds", "accuracy") is None


def test_one_seed_has_a_mean_and_no_interval():
    result = mean_curve([curve(0, [0, 1], [0.1, 0.2])], "seconds", "accuracy")
    assert result.mean.tolist() == [0.1, 0.2]
    assert np.isnan([result.standard_error, result.low, result.high]).all()
