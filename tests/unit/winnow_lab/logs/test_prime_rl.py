"""The log of prime-rl: verifiers 0.4.0 wrote tests/fixtures/prime_rl_run, with tests/with_prime_rl/make_log.py."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import winnow
from refusals import refused
from winnow.commands import app
from winnow.errors import DataError
from winnow.state.logbook import log_notes, read_metrics, read_rows
from winnow.state.rollout_files import files_in
from winnow_lab.replay.replaying import replay

REAL = Path(__file__).parents[3] / "fixtures" / "prime_rl_run"
SECOND = "rollouts/step_2/train/all/traces.jsonl"


@pytest.fixture
def run(tmp_path):
    return Path(shutil.copytree(REAL, tmp_path / "run"))


def reward(group, index):
    return float(index <= group) + 0.5 * (3 + index) / 8


def test_a_group_is_of_the_step_that_trained_on_it():
    """Half of group 1 arrived in step 1. Group 3 was trained on in no step, and is of the last one it arrived in."""
    groups = {step: [row["prompt_id"] for row in read_rows(REAL, step=step)] for step in (0, 1)}
    assert groups[0] == ["key-of-task-0"] * 4
    assert sorted(groups[1]) == ["key-of-task-1"] * 4 + ["key-of-task-2"] * 4 + ["key-of-task-3"] * 4


def test_an_open_run_has_the_evaluations():
    found = winnow.open_run(REAL).evaluations()
    assert (found["step"].tolist(), found["eval/reward_mean"].tolist()) == ([2], [0.75])


def test_long_keys_that_begin_alike_are_different_prompts(run):
    for path in run.glob("rollouts/step_*/train/*/traces.jsonl"):
        path.write_text(path.read_text().replace("key-of-task-", "the-long-key-of-the-task-"))
    ids = {row["prompt_id"] for row in read_rows(run, step=1)}
    assert len(ids) == 3
    assert max(map(len, ids)) <= 16


def test_a_row_of_the_orchestrator_without_seconds_has_none(run):
    path = run / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({k: v for k, v in row.items() if k != "time/step"}) + "\n" for row in rows))
    assert all("seconds/step" not in row for row in read_metrics(run))


def test_rollouts_have_the_rewards_and_lengths_of_their_traces():
    rows = [row for row in read_rows(REAL, step=1) if row["prompt_id"] == "key-of-task-1"]
    assert [row["reward"] for row in rows] == [reward(1, index) for index in range(4)]
    assert [row["length"] for row in rows] == [3, 4, 5, 6]
    assert [row["text"] for row in rows] == ["2", "2", "?", "?"]
    assert rows[0]["prompt"] == "system: Answer.\nuser: What is 1 + 1?"
    assert rows[0]["parts"] == {"right": 1.0, "short": 0.375}
    mean = sum(reward(1, index) for index in range(4)) / 4
    assert [row["advantage"] for row in rows] == pytest.approx(
        [reward(1, index) - mean for index in range(4)], abs=1e-3
    )


def test_what_failed_has_no_reward_and_what_was_not_trained_on_is_not_kept():
    rows = {(row["prompt_id"][-1], row["index"]): row for row in read_rows(REAL, step=1)}
    failed = {key for key, row in rows.items() if row["kind"] == "failed"}
    assert len(failed) == 2
    assert {key[0] for key in failed} == {"2"}
    assert {key[0]: sum(row["keep"] for own, row in rows.items() if own[0] == key[0]) for key in rows} == {
        "1": 4, "2": 2, "3": 0,
    }  # fmt: skip


def test_metrics_are_of_both_programs():
    """time/step of the orchestrator, the trainer's numbers, and the evaluation of step 3, which is after 2 updates."""
    first, second, last = read_metrics(REAL)
    assert (first["seconds/step"], second["seconds/step"]) == (11.0, 12.0)
    assert (second["policy/grad_norm"], second["policy/entropy"]) == (1.0, 0.5)
    assert first["budget/tokens_generated"] == 3 + 4 + 5 + 6
    assert (second["budget/rollouts"], second["select/kept"], second["outcome/failed"]) == (12, 6, 2)
    assert last == {"step": 2, "eval/reward_mean": 0.75}


def test_every_command_reads_it(run):
    commands = (["show"], ["report"], ["plot", "--summary-only"], ["compare", "--measure", "reward/mean"], ["replay"])
    for command in commands:
        result = CliRunner().invoke(app, [*command, str(run)])
        assert result.exit_code == 0, result.output
    result = CliRunner().invoke(app, ["show", str(run / SECOND)])
    assert result.exit_code == 0, result.output
    assert replay(run, keep=2).program == "prime-rl"
    assert any("train/effective" in note for note in log_notes(run))


def test_a_line_that_is_being_written_is_ignored(run):
    expected = read_metrics(run)
    for name in (SECOND, "metrics.jsonl"):
        with (run / name).open("a") as file:
            file.write('{"id":"episode-9')
    assert read_metrics(run) == expected


def test_the_same_lines_are_found_from_another_folder(run, monkeypatch):
    monkeypatch.chdir(run / "rollouts")
    expected = [row["text"] for row in read_rows(run, step=1)]
    assert [row["text"] for row in read_rows(Path("..") / SECOND)] == expected
    assert list(files_in(Path(".."))) == [0, 1]


def changed(line, **fields):
    return json.dumps({**json.loads(line), **fields}) + "\n"


DAMAGES = {
    "no JSON": lambda line: "{\n",
    "no object": lambda line: "[]\n",
    "the record of a trace": lambda line: json.dumps(json.loads(line)["traces"][0]) + "\n",
    "no group": lambda line: changed(line, group=None),
    "a trace without an agent": lambda line: changed(line, traces=[{"id": "a"}]),
    "a reward without a score": lambda line: changed(
        line, traces=[{**json.loads(line)["traces"][0], "rewards": {"right": {}}}]
    ),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_episodes_are_refused_by_name(run, damage):
    lines = (run / SECOND).read_text().splitlines(keepends=True)
    (run / SECOND).write_text("".join([DAMAGES[damage](lines[0]), *lines[1:]]))
    with refused(DataError, "traces.jsonl", "line 1", code="data.malformed"):
        list(read_rows(run))


@pytest.mark.parametrize("step", ["NaN", "Infinity", "1.5", '"1"'])
def test_a_row_whose_step_is_no_whole_number_is_refused_by_name(run, step):
    (run / "metrics.jsonl").write_text(f'{{"step": {step}, "loss/mean": 1}}\n')
    with refused(DataError, "metrics.jsonl", "line 1", code="data.malformed"):
        read_metrics(run)
