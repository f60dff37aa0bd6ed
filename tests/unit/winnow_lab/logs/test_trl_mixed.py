"""A log of TRL with evaluations, and with a reward function that returns None for some rows.

tests/fixtures/trl_mixed_run was made by TRL 1.16.0, with tests/with_trl/make_log.py: 5 steps of 4 prompts with 8
rollouts, weights 1 and 0.5, and evaluations of 12 completions after steps 2, 4 and 5 of TRL.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from refusals import check_printed_error, refused
from winnow.commands import app
from winnow.errors import DataError
from winnow.metrics import is_step
from winnow.state.logbook import log_notes, read_metrics, read_rows
from winnow.state.rollout_files import files_in
from winnow_lab.replay.replaying import replay

REAL = Path(__file__).parents[3] / "fixtures" / "trl_mixed_run"
WEIGHTS = "reward_weights = { even = 0.5, right = 1.0 }\n"
COMMANDS = (["show"], ["report"], ["plot", "--summary-only"], ["compare", "--measure", "reward/mean"], ["replay"])


@pytest.fixture
def run(tmp_path):
    folder = Path(shutil.copytree(REAL, tmp_path / "run"))
    (folder / "winnow.toml").write_text(WEIGHTS)
    return folder


def history(run):
    return json.loads((run / "trainer_state.json").read_text())["log_history"]


def write_history(run, rows):
    path = run / "trainer_state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "log_history": rows}))


def table_of(run, step):
    return run / "completions" / f"completions_{step:05d}.parquet"


def change(run, step, of):
    pq.write_table(of(pq.read_table(table_of(run, step))), table_of(run, step))


def with_column(table, name, values, kind):
    return table.set_column(table.column_names.index(name), name, pa.array(values, kind))


def test_tables_of_evaluations_are_no_rollouts_of_training(run):
    assert list(files_in(run)) == [0, 2]
    assert {row["step"] for row in read_rows(run)} == {0, 2}
    assert replay(run, keep=2).steps == [0, 2]
    (note,) = [note for note in log_notes(run) if "completions_00002.parquet" in note]
    assert "completions_00004.parquet, completions_00005.parquet" in note
    assert "completions_00003.parquet" not in note


def test_steps_with_an_evaluation_have_the_metrics_of_the_trainer(run):
    logged = {row["step"]: row for row in history(run) if "reward" in row}
    rows = read_metrics(run)
    assert [row["step"] for row in rows if is_step(row)] == [0, 1, 2, 3, 4]
    for step in (1, 3, 4):
        own = logged[step + 1]
        assert rows[step]["reward/mean"] == own["reward"]
        assert (rows[step]["budget/rollouts"], rows[step]["select/trained"]) == (32, 32)
        assert rows[step]["budget/tokens_generated"] == 32 * own["completions/mean_length"]
        assert "group/count" not in rows[step]
    evaluations = {row["step"]: row["eval_reward"] for row in history(run) if "eval_reward" in row}
    assert {row["step"]: row["eval/reward_mean"] for row in rows if "eval/reward_mean" in row} == evaluations


def test_rewards_are_sums_without_none(run):
    """The trainer's own mean reward, and a row's parts are those that were returned."""
    logged = {row["step"]: row["reward"] for row in history(run) if "reward" in row}
    some = 0
    for step in (0, 2):
        table = pq.read_table(table_of(run, step + 1)).to_pydict()
        rows = list(read_rows(run, step=step))
        for row, right, even in zip(rows, table["right"], table["even"], strict=True):
            assert row["reward"] == pytest.approx(right + 0.5 * (even or 0.0))
            assert set(row["parts"]) == ({"right"} if even is None else {"right", "even"})
            some += even is None
        assert np.mean([row["reward"] for row in rows]) == pytest.approx(logged[step + 1], abs=1e-6)
    assert some > 0


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_every_command_reads_it(run, command):
    result = CliRunner().invoke(app, [*command, str(run)])
    assert result.exit_code == 0, result.output


def test_the_plot_has_the_rewards_of_training(run):
    """First and last step of the trainer, and no number of an evaluation."""
    text = CliRunner().invoke(app, ["plot", "--summary-only", str(run)]).output
    first, last = (row["reward"] for row in history(run) if "reward" in row and row["step"] in (1, 5))
    assert f"{first:.3f} -> {last:.3f}" in text


def test_a_step_of_an_evaluation_is_refused_by_name(run):
    for arguments in (["show", str(run), "--step", "1"], ["show", str(table_of(run, 2))]):
        result = CliRunner().invoke(app, arguments)
        check_printed_error(result, "evaluation", code="data.missing")


def test_an_evaluation_after_every_step_leaves_the_metrics(run):
    evaluation = next(row for row in history(run) if "eval_reward" in row)
    write_history(run, [*history(run), *({**evaluation, "step": step} for step in (1, 3))])
    assert files_in(run) == {}
    assert sum(map(is_step, read_metrics(run))) == 5
    for command in COMMANDS:
        result = CliRunner().invoke(app, [*command, str(run)])
        if command[0] in ("show", "replay"):
            check_printed_error(result, "evaluation", code="data.missing")
            assert "log.rollouts" not in result.output
        else:
            assert result.exit_code == 0, result.output


def test_an_evaluation_before_training_is_of_no_step(run):
    evaluation = next(row for row in history(run) if "eval_reward" in row)
    shutil.copy(table_of(run, 2), table_of(run, 0))
    write_history(run, [{**evaluation, "step": 0}, *history(run)])
    assert list(files_in(run)) == [0, 2]
    assert read_metrics(run)[0]["eval/reward_mean"] == evaluation["eval_reward"]


def test_several_sets_are_evaluated_apart(run):
    rows = []
    for row in history(run):
        if "eval_reward" not in row:
            rows.append(row)
            continue
        common = {name: value for name, value in row.items() if name != "eval_runtime"}
        rows += [{**common, "eval_a_runtime": 1.0}, {**common, "eval_b/c_runtime": 2.0, "eval_reward": 0.125}]
    write_history(run, rows)
    found = read_metrics(run)[2]
    assert found["eval/b_c/reward_mean"] == 0.125
    assert found["eval/a/reward_mean"] != 0.125
    assert found["eval/seconds"] == 3.0
    assert "eval/reward_mean" not in found


def test_a_step_that_generates_nothing_after_an_evaluation(run):
    """TRL writes the rows of the evaluation again, under the next step, whose metrics are of an earlier generation."""
    rows = [row for row in history(run) if row["step"] != 2 or "reward" not in row]  # step 2 is evaluated, not logged
    write_history(run, rows)
    old = pq.read_table(table_of(run, 2))
    pq.write_table(with_column(old, "step", [3] * len(old), pa.int64()), table_of(run, 3))
    assert list(files_in(run)) == [0]


def test_an_evaluation_after_the_state_was_saved(run):
    """Only the means of the last table show it: the state ends with step 2, whose evaluation it lacks."""
    write_history(run, [row for row in history(run) if row["step"] <= 2 and "reward" in row])
    assert list(files_in(run)) == [0]
    assert any("completions_00002.parquet" in note and "evaluation" in note for note in log_notes(run))
    assert read_metrics(run)[1]["budget/rollouts"] == 32


def test_marked_rows_of_winnow_trl_are_of_an_evaluation(run):
    """Without an evaluation in the state: `kept` is null in the last table."""
    write_history(run, [row for row in history(run) if row["step"] <= 3])
    assert list(files_in(run)) == [0, 2]
    for step in (1, 3):
        kept = [None if step == 3 else True] * 32
        change(run, step, lambda table, kept=kept: table.append_column("kept", pa.array(kept, pa.bool_())))
    assert list(files_in(run)) == [0]


def test_a_function_that_never_returns_a_reward(run):
    for step in range(1, 6):
        change(run, step, lambda table: with_column(table, "even", [None] * 32, pa.null()))
    rows = history(run)
    for row in rows:
        if "reward" in row:
            row |= {"rewards/even/mean": None, "reward": row["rewards/right/mean"]}
    write_history(run, rows)
    for command in COMMANDS:
        assert CliRunner().invoke(app, [*command, str(run)]).exit_code == 0
    assert {tuple(row["parts"]) for row in read_rows(run)} == {("right",)}


def test_none_in_rollouts_that_the_table_has_not_contradicts_no_weight(run):
    """With `logging_steps` above 1 the mean is of several generations; here `even` scored all rows of the last one."""
    change(run, 3, lambda table: with_column(table, "even", [2.0] * 32, pa.float64()))
    assert {row["parts"]["even"] for row in read_rows(run, step=2)} == {2.0}


def test_the_remedy_names_the_weights_that_fit(run):
    """The refused weights are not the remedy, and the remedy works when it is followed."""
    expected = replay(run)
    (run / "winnow.toml").unlink()
    with refused(DataError, "even", "right", key="reward_weights", code="data.mismatch") as caught:
        replay(run)
    line = str(caught.value)[str(caught.value).index("reward_weights = {") :].partition("}")[0] + "}"
    (run / "winnow.toml").write_text(line)
    assert replay(run) == expected


def test_weights_that_the_log_does_not_determine_are_not_guessed(run):
    """One table is not enough for two weights."""
    (run / "winnow.toml").unlink()
    table_of(run, 1).unlink()
    with refused(DataError, "reward_weights = {", key="reward_weights", code="data.mismatch") as caught:
        replay(run)
    assert '"even" = ...' in str(caught.value)


def test_a_reward_that_is_the_verdict_of_some_prompts(run):
    """A group in which the function returned None has no verdict, and is not wrong."""
    (run / "winnow.toml").write_text(WEIGHTS + 'correct_by = "even"')
    verdicts = {(row["correct"] is None, "even" in row["parts"]) for row in read_rows(run)}
    assert verdicts == {(True, False), (False, True)}
    assert not any("accuracy" in name for row in read_metrics(run) for name in row)
