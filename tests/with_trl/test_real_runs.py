"""Real runs of TRL on the bundled policy: the example as it stands, and the log of which a copy is a fixture."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from make_log import PROMPTS, ROLLOUTS, STEPS, train
from typer.testing import CliRunner

from winnow.alarms.watch import alarms_of_run
from winnow.commands import app
from winnow.state.logbook import read_metrics
from winnow_lab.replay.replaying import replay

REPOSITORY = Path(__file__).parents[2]
FIXTURE = REPOSITORY / "tests" / "fixtures" / "trl_run"

pytestmark = pytest.mark.filterwarnings("ignore")  # of TRL and of what it imports


def test_the_installed_trl_logs_what_the_fixture_has(tmp_path):
    """Names, types and numbers of rows; the random numbers of a sampler are not compared."""
    train(tmp_path)
    for step in range(1, STEPS + 1):
        name = f"completions/completions_{step:05d}.parquet"
        new, old = pq.read_table(tmp_path / name), pq.read_table(FIXTURE / name)
        assert [(field.name, field.type) for field in new.schema] == [(field.name, field.type) for field in old.schema]
        assert len(new) == len(old) == PROMPTS * ROLLOUTS
    new, old = (json.loads((folder / "trainer_state.json").read_text()) for folder in (tmp_path, FIXTURE))
    assert set(new) == set(old)
    assert [set(row) for row in new["log_history"]] == [set(row) for row in old["log_history"]]
    (tmp_path / "winnow.toml").write_text("reward_weights = { right = 1.0, short = 0.5 }")
    found = replay(tmp_path, keep=2)
    assert (found.groups, found.kept.rollouts) == (STEPS * PROMPTS, 2 * STEPS * PROMPTS)
    rows = read_metrics(tmp_path)
    assert [row["step"] for row in rows] == list(range(STEPS))
    assert all(row["budget/rollouts"] == PROMPTS * ROLLOUTS for row in rows)
    assert alarms_of_run(rows) == []
    for command in (["show"], ["report"], ["plot", "--summary-only"], ["compare", "--measure", "reward/mean"]):
        result = CliRunner().invoke(app, [*command, str(tmp_path)])
        assert result.exit_code == 0, result.output
    assert (tmp_path / "report.html").stat().st_size > 100_000


def test_the_installed_trl_logs_evaluations_as_the_fixture_has_them(tmp_path):
    """Which tables the evaluations of the installed TRL were written over, and its weighted means with None."""
    train(tmp_path, mixed=True)
    (tmp_path / "winnow.toml").write_text("reward_weights = { even = 0.5, right = 1.0 }")
    assert replay(tmp_path, keep=2).steps == [0, 2]
    rows = read_metrics(tmp_path)
    assert [row["budget/rollouts"] for row in rows if "budget/rollouts" in row] == [PROMPTS * ROLLOUTS] * STEPS
    assert [row["step"] for row in rows if "eval/reward_mean" in row] == [2, 4, 5]


def test_the_example_trains_and_its_log_is_replayed(tmp_path):
    command = [sys.executable, str(REPOSITORY / "examples" / "pods_in_trl.py")]
    command += ["--steps", "2", "--rollouts", "6", "--keep", "2", "--output", str(tmp_path / "run")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    history = json.loads((tmp_path / "run" / "trainer_state.json").read_text())["log_history"]
    steps = [row for row in history if "reward" in row]
    assert len(steps) == 2
    found = replay(tmp_path / "run", keep=2)
    assert (found.sampled.rollouts, found.kept_by_run.rollouts) == (2 * 16 * 6, 2 * 16 * 2)
    for row in steps:
        assert row["budget/share_kept"] == pytest.approx(1 / 3)
        assert 0 < row["budget/trained_tokens"] < row["budget/generated_tokens"]
        assert 0 <= row["budget/kept_reward_variance"] <= 0.25
    # Of the two tables, each has the mean of its own step: the estimate of what was trained on is near the count
    assert found.sampled.tokens == pytest.approx(sum(row["budget/generated_tokens"] for row in steps))
    trained = sum(row["budget/trained_tokens"] for row in steps)
    assert found.kept_by_run.tokens == pytest.approx(trained, rel=0.1)
    for row, logged in zip(read_metrics(tmp_path / "run"), steps, strict=True):
        assert row["budget/tokens_trained"] == logged["budget/trained_tokens"]  # counted, not estimated
    means = [row["budget/kept_reward_variance"] for row in steps]
    assert found.kept_by_run.variance == pytest.approx(sum(means) / 2)
