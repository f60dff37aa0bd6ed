"""The forecast in a run's summary and progress: steps become tokens and seconds."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from planned_run import write_planned_run
from winnow.commands import app
from winnow.core.events import Evaluated, Started
from winnow.run_view.configuration import Evaluations
from winnow.run_view.forecast import forecast_lines, forecast_of
from winnow.run_view.progress import Standing, _message, earlier_rows
from winnow.run_view.summary import summary
from winnow.state.logbook import read_metrics
from winnow_lab.report.headline import headline

ALL = {"budget/tokens_generated": 1000.0, "seconds/step": 2.0, "group/count": 1.0, "budget/rollouts": 4.0}


def rows_of(steps, every=5, plateau=0.8):
    """Accuracies of a Hill curve with tau 10, evaluated before every fifth step."""
    rows = []
    for step in range(steps):
        rows.append({"step": step, **ALL})
        if step % every == 0:
            rows[-1]["eval/accuracy_sampled"] = 0.2 + (plateau - 0.2) * step**2 / (step**2 + 100)
    return rows


def test_steps_become_tokens_and_seconds_at_the_last_pace():
    rows = rows_of(40)
    for row in rows[-10:]:
        row["seconds/step"] = 4.0
    found = forecast_of(rows)
    assert found.done == 40
    assert found.spent == {"budget/tokens_generated": (40_000.0, 1000.0), "seconds/step": (100.0, 4.0)}
    assert found._cost(found.spent["seconds/step"], 50) == pytest.approx(140.0)
    assert found._cost(found.spent["budget/tokens_generated"], 20) == pytest.approx(20_000.0)


def test_the_line_has_the_plateau_and_the_step_with_intervals():
    found = forecast_of(rows_of(60))
    plateau, reached = found.found.expected_plateau, found.found.reached
    for number in (plateau.middle, plateau.low, plateau.high):
        assert f"{number:.1%}" in found.line()
    assert f"at step {reached.middle:,.0f} ({reached.low:,.0f} to " in found.line()
    assert found.short().startswith(f"plateau at {reached.middle:,.0f} (")


def test_a_run_past_its_plateau_is_advised_to_stop_and_a_young_one_is_not():
    # 0.76 = 0.2 + 0.6 g: g = 14/15, step 10 * 14^(1/2) = 37
    assert forecast_of(rows_of(200)).advice() is not None
    assert forecast_of(rows_of(26)).advice() is None
    assert len(forecast_of(rows_of(200)).lines()) == 2


def test_no_accuracy_below_0_is_expected():
    rows = rows_of(1000)
    for row in rows:
        if "eval/accuracy_sampled" in row:
            row["eval/accuracy_sampled"] = 0.03 * row["step"] ** 2 / (row["step"] ** 2 + 60**2)
    found = forecast_of(rows)
    assert found.found.at(2000).low < 0
    assert "(0.0% to " in found.advice()


@pytest.mark.parametrize("curve", [lambda step: 0.6 - 0.002 * step, lambda step: 0.3, lambda step: 1.0])
def test_a_curve_that_does_not_rise_has_no_plateau_and_no_advice(curve):
    rows = rows_of(200)
    for row in rows:
        if "eval/accuracy_sampled" in row:
            row["eval/accuracy_sampled"] = curve(row["step"])
    found = forecast_of(rows)
    assert (found.rises, found.advice(), len(found.lines())) == (False, None, 1)
    assert "plateau" not in "".join(line["label"] for line in headline(rows))


def test_a_number_far_beyond_the_run_is_not_printed():
    rows = rows_of(30)
    for row in rows:
        if "eval/accuracy_sampled" in row:
            row["eval/accuracy_sampled"] = 0.1 + 0.002 * row["step"]
    assert "more than 300" in forecast_of(rows).line()


def test_evaluations_of_other_settings_and_few_of_them_have_no_forecast():
    assert forecast_of(rows_of(16)) is None  # 4 evaluations
    assert forecast_of(rows_of(40), Evaluations(since=30)) is None
    rows = [{name: value for name, value in row.items() if name != "seconds/step"} for row in rows_of(40)]
    assert set(forecast_of(rows).spent) == {"budget/tokens_generated"}


def test_the_summary_has_the_forecast():
    rows = [{**row, "seconds/generate": 1.0} for row in rows_of(200)]
    text = summary(rows)
    assert "expected plateau" in text
    assert "expected plateau" not in summary(rows[:16])


def test_progress_forecasts_from_the_fifth_evaluation_on(tmp_path):
    standing = Standing()
    standing.follow(Started(tmp_path, 0, 100))
    for step in np.arange(0, 100, 10):
        assert (standing.forecast is None) == (step < 50)
        event = Evaluated(int(step), {"eval/accuracy_sampled": 0.8 * step / (step + 5)})
        standing.follow(event)
    assert "plateau" in standing._fields()
    assert _message(event, standing).startswith("held-out, after 90 steps: sampled")


def test_evaluations_of_training_problems_are_not_called_held_out(tmp_path):
    standing, run = Standing(), write_planned_run(tmp_path / "run", sets=["evaluate.split=train"])
    standing.follow(Started(run, 0, 9))
    event = Evaluated(0, {"eval/accuracy_sampled": 0.5})
    standing.follow(event)
    assert _message(event, standing) == "training split, after 0 steps: sampled 50.0%"


@pytest.fixture
def evaluated_run(tmp_path):
    """A run's folder with 12 evaluations."""
    run = write_planned_run(tmp_path / "run", steps=12)
    path = run / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        row |= {
            "eval/accuracy_sampled": 0.8 * row["step"] / (row["step"] + 2),
            "eval/seconds": 1.0,
            "seconds/step": 2.0,
        }
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run


def test_show_plot_and_report_have_the_forecast_of_a_folder(evaluated_run):
    (line, *advice) = forecast_lines(evaluated_run)
    shown = CliRunner().invoke(app, ["show", str(evaluated_run)])
    plotted = CliRunner().invoke(app, ["plot", "--summary-only", str(evaluated_run)])
    for result in (shown, plotted):
        assert result.exit_code == 0, result.output
        assert line in " ".join(result.output.split())
    chosen = CliRunner().invoke(app, ["show", str(evaluated_run), "--step", "3"])
    assert "plateau" not in chosen.output
    headlines = {one["label"]: one for one in headline(read_metrics(evaluated_run))}
    assert headlines["expected plateau"]["detail"] == ". ".join([line, *advice])


def test_a_resume_goes_on_from_the_evaluations_in_the_folder(evaluated_run):
    standing = Standing()
    standing.follow(Started(evaluated_run, 11, 20))
    standing.follow(Evaluated(11, {"eval/accuracy_sampled": 0.68}))
    assert standing.forecast is not None
    assert standing.forecast.found.last == 11
    fresh = Standing()
    fresh.follow(Started(evaluated_run / "nothing", 11, 20))
    fresh.follow(Evaluated(11, {"eval/accuracy_sampled": 0.68}))
    assert fresh.forecast is None


def test_a_resume_forecasts_with_the_evaluation_that_it_keeps(evaluated_run):
    """Its log was cut behind the evaluation before the step at which it goes on."""
    path = evaluated_run / "metrics.jsonl"
    *rows, last = [json.loads(line) for line in path.read_text().splitlines()]
    kept = {name: value for name, value in last.items() if name == "step" or name.startswith("eval/")}
    path.write_text("".join(json.dumps(row) + "\n" for row in (*rows, kept)))
    read = earlier_rows(Started(evaluated_run, int(last["step"]), int(last["step"]) + 9))
    assert [row["step"] for row in read][-1] == last["step"]
    assert len(read) == len({row["step"] for row in (*rows, kept)})
