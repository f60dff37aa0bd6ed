"""Commands on a run with log.rollouts = "none": each works, or its error names the key and the remedy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from refusals import refusal_of, refused
from winnow import open_run
from winnow.commands import app
from winnow.config_file import validate
from winnow.errors import DataError
from winnow.state.decisions import read_decisions
from winnow.state.rollout_files import logs_none
from winnow.training.fit import fit
from winnow.training.resolve import resolve_members

PLAN = {"use": "auto", "every": 2, "prompts_per_step": (2, 8), "rollouts_per_prompt": (2, 8)}


@pytest.fixture(scope="module")
def runs(smallest_in, tmp_path_factory):
    """Two runs of six steps: of fixed sizes, and one that chooses them. Neither logs rollouts."""
    home = tmp_path_factory.mktemp("unlogged")
    for name, keys in (("fixed", {}), ("auto", {"plan": PLAN})):
        base = {"steps": 6, "log": {"rollouts": "none"}, "evaluate": {"every": 2}, "output": str(home / name), **keys}
        fit(resolve_members(validate(smallest_in(home)(**base)), home))
    return home


def winnow(*arguments):
    return CliRunner().invoke(app, [str(of) for of in arguments])


@pytest.mark.parametrize("name", ["fixed", "auto"])
def test_a_run_is_shown_without_its_rollouts(runs, name):
    result = winnow("show", runs / name)
    assert result.exit_code == 0, result.output
    assert "log.rollouts" in result.output
    assert ("sizes: step" in result.output) == (name == "auto")
    assert len(read_decisions(runs / name)) == 2 * (name == "auto")


def test_the_report_and_the_picture_are_made_of_metrics(runs, tmp_path):
    """Of the run that has more of them."""
    report = winnow("report", runs / "auto", "-o", tmp_path / "report.html")
    assert report.exit_code == 0, report.output
    assert "log.rollouts" in report.output
    assert (tmp_path / "report.html").stat().st_size > 100_000
    plot = winnow("plot", runs / "auto", "-o", tmp_path / "plot.svg")
    assert plot.exit_code == 0, plot.output
    assert (tmp_path / "plot.svg").is_file()


def test_runs_are_compared_by_their_metrics(runs, tmp_path):
    result = winnow("compare", runs / "fixed", runs / "auto", "-o", tmp_path / "comparison", "--no-plot")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    "words",
    [
        ("show", "--worst", "2"),
        ("show", "--step", "3"),
        ("show", "--failed"),
        ("replay",),
        ("replay", "--allocate", "uniform"),
        ("score", "--reward", "last_integer"),
        ("plan",),
    ],
    ids=" ".join,
)
def test_what_reads_rollouts_names_the_key_and_the_remedy(runs, words):
    result = winnow(words[0], runs / "fixed", *words[1:])
    assert result.exit_code == 2
    error = refusal_of(result)
    assert error.key == "log.rollouts"
    assert 'log.rollouts = "all"' in str(error)


@pytest.mark.parametrize(("command", "code"), [("audit", "config.unknown_member"), ("profile", "config.unreadable")])
def test_commands_that_read_no_run_refuse_it(runs, command, code):
    result = winnow(command, runs / "fixed")
    assert result.exit_code == 2
    assert result.output.startswith(f"error ({code})")


def test_the_numbers_of_the_run_are_columns_and_its_rollouts_an_error(runs):
    run = open_run(runs / "fixed")
    assert len(run.metrics()["step"]) == 6
    with refused(DataError, key="log.rollouts", code="data.missing"):
        run.rollouts()


def test_a_run_that_may_still_log_them_is_no_such_run(runs, tmp_path):
    data = json.loads((runs / "fixed" / "manifest.json").read_text())
    assert logs_none(runs / "fixed")
    for config in ({**data["config"], "log": {"rollouts": "all"}}, {"log": "none"}, {}, 3):
        (tmp_path / "manifest.json").write_text(json.dumps({**data, "config": config}))
        assert not logs_none(tmp_path)
    assert not logs_none(Path("/nowhere"))
    with refused(DataError, code="data.missing") as caught:
        open_run_rollouts(tmp_path, data)
    assert caught.value.key is None


def open_run_rollouts(folder, data):
    data["config"]["log"]["rollouts"] = "all"
    (folder / "manifest.json").write_text(json.dumps(data))
    open_run(folder).rollouts()
