"""The comparison at the end of a sweep: when one is due, and what its command prints."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from winnow.commands import app
from winnow_lab.sweep import loop as command
from winnow_lab.sweep.loop import SweepResult
from winnow_lab.sweep.process import any_evaluated, comparison_due, mark_comparison
from winnow_lab.sweep_folder import Contents, LedgerLine, SweepFolder, read_sweep


@pytest.fixture
def sweep(tmp_path):
    """The open folder of a sweep with two finished runs."""
    with SweepFolder.open(tmp_path / "s", resume=False) as folder:
        folder.describe(Contents({"a": {}}, (0, 1), None, {}))
        for seed in (0, 1):
            folder.note(LedgerLine("a", seed, "finished", True, 0))
            (folder.path / "a" / f"seed-{seed}").mkdir(parents=True)
        yield folder


def compared(path):
    path.mkdir()
    (path / "curves.csv").touch()


def test_a_comparison_is_due_until_it_is_complete_and_after_each_launch(sweep):
    first = comparison_due(sweep.path)
    assert first == sweep.path / "comparison"
    compared(first)
    mark_comparison(first, sweep.path)
    assert comparison_due(sweep.path) is None

    sweep.note(LedgerLine("a", 1, "finished", True, 0))
    assert comparison_due(sweep.path) == sweep.path / "comparison-2"
    compared(sweep.path / "comparison-2")
    mark_comparison(sweep.path / "comparison-2", sweep.path)
    assert comparison_due(sweep.path) is None
    sweep.describe(Contents({"a": {}}, (0, 1), "a", {}))
    assert comparison_due(sweep.path) == sweep.path / "comparison-3"


def test_an_interrupted_comparison_is_repeated(sweep):
    (sweep.path / "comparison").mkdir()
    assert comparison_due(sweep.path) == sweep.path / "comparison"
    compared(sweep.path / "comparison")  # and not marked
    assert comparison_due(sweep.path) == sweep.path / "comparison-2"
    assert (sweep.path / "comparison" / "curves.csv").exists()


@pytest.mark.parametrize(("row", "expected"), [({}, False), ({"eval/accuracy_sampled": 0.5}, True)])
def test_any_evaluated_finds_the_evaluation_of_one_run(sweep, row, expected):
    for seed in (0, 1):
        rows = [{"step": 0, "budget/rollouts": 8}, {"step": 1, **(row if seed else {})}]
        log = sweep.path / "a" / f"seed-{seed}" / "metrics.jsonl"
        log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert any_evaluated(read_sweep(sweep.path)) == expected


def test_an_empty_output_on_the_command_line_is_refused(tmp_path):
    (tmp_path / "s.toml").write_text('config = "base.toml"\noutput = "out"\n')
    result = CliRunner().invoke(app, ["sweep", str(tmp_path / "s.toml"), "--output", ""])

    assert result.exit_code == 2
    assert "--output" in result.output


def test_a_sweep_without_evaluations_finishes_without_a_comparison(sweep, monkeypatch):
    monkeypatch.setattr(
        command, "train_sweep", lambda *_, **__: SweepResult(sweep.path, ("finished",), None, evaluated=False)
    )
    result = CliRunner().invoke(app, ["sweep", "any.toml"])

    assert result.exit_code == 0
    assert "evaluate.*" in result.output  # the keys that would add evaluations
    assert not (sweep.path / "comparison").exists()
