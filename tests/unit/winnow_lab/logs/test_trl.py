"""The log of TRL as winnow's records: tests/fixtures/trl_run was made by TRL 1.16.0, with tests/with_trl/make_log.py,
and is damaged here in ways that are each refused by name.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from refusals import check_printed_error, refused
from winnow.commands import app
from winnow.errors import ConfigError, DataError
from winnow.state.logbook import log_notes, read_metrics, read_rows
from winnow_lab.logs.trl_files import _read_state
from winnow_lab.replay.replaying import replay
from winnow_lab.replay.text import lines_of

REAL = Path(__file__).parents[3] / "fixtures" / "trl_run"
WEIGHTS = "reward_weights = { short = 0.5, right = 1.0 }\n"
MEASURE = ("--measure", "reward/mean")
THIRD = "completions/completions_00003.parquet"


@pytest.fixture
def run(tmp_path):
    """A copy with the weights of its rewards."""
    return weighted(Path(shutil.copytree(REAL, tmp_path / "run")))


def weighted(folder, more=""):
    (folder / "winnow.toml").write_text(WEIGHTS + more)
    return folder


def test_comparing_names_the_missing_table(run, tmp_path):
    """The remedy works when it is followed."""
    arguments = ["compare", str(run), str(weighted(Path(shutil.copytree(REAL, tmp_path / "b")))), *MEASURE]
    (run / THIRD).rename(tmp_path / "kept")
    result = CliRunner().invoke(app, arguments)
    check_printed_error(result, run / THIRD, code="data.incomplete")
    assert "metrics.jsonl" not in result.output
    (tmp_path / "kept").rename(run / THIRD)
    assert CliRunner().invoke(app, arguments).exit_code == 0


def test_without_an_accuracy_the_rewards_are_compared(run):
    empty = CliRunner().invoke(app, ["compare", str(run)])
    check_printed_error(empty, MEASURE[1], code="data.empty")
    assert CliRunner().invoke(app, ["compare", str(run), *MEASURE]).exit_code == 0


def test_a_real_run_is_replayed(run):
    """5 steps of 4 prompts with 8 rollouts; rewards are right + short / 2, and TRL trains on all of them."""
    found = replay(run, keep=2)
    assert (found.program, found.steps, found.groups) == ("TRL", [0, 1, 2, 3, 4], 20)
    assert (found.sampled.rollouts, found.kept_by_run.rollouts, found.kept.rollouts) == (160, 160, 40)
    expected, rewards_of = [], []
    for step in range(1, 6):
        table = pq.read_table(REAL / "completions" / f"completions_{step:05d}.parquet").to_pydict()
        rewards = np.array(table["right"]) + 0.5 * np.array(table["short"])
        rewards_of.append(rewards)
        for group in rewards.reshape(4, 8):
            low = np.sort(group)
            expected.append(max(np.var([*low[:1], *low[7:]]), np.var(low[:2]), np.var(low[6:])))
    assert found.kept.variance == pytest.approx(np.mean(expected))
    assert found.sampled.variance == pytest.approx(np.mean([np.var(r.reshape(4, 8), axis=1) for r in rewards_of]))
    history = json.loads((REAL / "trainer_state.json").read_text())["log_history"]
    tokens = [32 * row["completions/mean_length"] for row in history if "reward" in row]
    assert found.sampled.tokens == pytest.approx(sum(tokens))
    assert 0 < found.kept.tokens < found.sampled.tokens


def test_columns_of_the_user_are_named_and_not_read(run):
    notes = log_notes(run)
    assert sum("letters" in note for note in notes) == 1
    assert not any("right" in note.split() for note in notes)


def test_the_text_contains_the_notes(run):
    text = "\n".join(lines_of(replay(run)))
    assert "160" in text
    assert text.count("note: ") == len(log_notes(run)) == 3


def test_an_allocator_over_trl(run):
    found = replay(run, allocate="gvm")
    assert found.moved is not None
    assert sum(found.moved.counts) == found.moved.budget == 160


def test_the_command_reads_the_settings(run):
    weighted(run, "rollouts_per_prompt = 4\n")
    result = CliRunner().invoke(app, ["replay", str(run), "--keep", "2"])
    assert result.exit_code == 0, result.output
    found = replay(run, keep=2)
    assert found.groups == 40
    assert result.output.splitlines() == "\n".join(lines_of(found)).splitlines()


def test_a_column_kept_is_what_the_run_trained_on(run):
    change(run, THIRD, lambda table: table.append_column("kept", pa.array([i % 4 == 0 for i in range(32)])))
    assert replay(run).kept_by_run.rollouts == 160 - 32 + 8


def test_a_reward_of_none_is_omitted_and_a_row_without_any_is_not_judged(run):
    def none(table):
        for name in ("right", "short"):
            values = table[name].to_pylist()
            table = with_column(table, name, pa.array([None, *values[1:]], pa.float64()))
        return table

    change(run, THIRD, none)
    found = replay(run)
    assert found.not_judged == 1
    assert found.kept.rollouts == 80


def test_a_step_without_any_reward_keeps_nothing(run):
    nothing = pa.array([None] * 32, pa.float64())
    change(run, THIRD, lambda table: with_column(with_column(table, "right", nothing), "short", nothing))
    state(run, lambda data: {**data, "log_history": [without_rewards(row) for row in data["log_history"]]})
    found = replay(run)
    assert found.not_judged == 32
    assert found.kept.rollouts == 64
    assert len(found.kept.variances) == 16
    row = read_metrics(run)[2]
    assert (row["outcome/failed"], row["group/effective"], row["group/flat"]) == (32, 0, 0)
    assert np.isnan(row.get("reward/mean", np.nan))


def without_rewards(row):
    """The metrics of step 3 of TRL without a mean reward; other rows as they are."""
    return {name: None if name.startswith("reward") and row["step"] == 3 else row[name] for name in row}


def test_steps_after_the_newest_state_are_omitted_with_a_note(run):
    state(run, lambda data: {**data, "log_history": [row for row in data["log_history"] if row["step"] < 4]})
    found = replay(run)
    assert found.steps == [0, 1, 2]
    assert any("2 steps" in note for note in found.notes)


def test_the_newest_state_is_read(run):
    (run / "checkpoint-5").mkdir()
    (run / "trainer_state.json").rename(run / "checkpoint-5" / "trainer_state.json")
    (run / "checkpoint-2").mkdir()
    old = json.loads((run / "checkpoint-5" / "trainer_state.json").read_text())
    old["log_history"] = old["log_history"][:2]
    (run / "checkpoint-2" / "trainer_state.json").write_text(json.dumps(old))
    assert replay(run).steps == [0, 1, 2, 3, 4]


def test_a_mean_of_more_rollouts_than_the_table_has_is_noted(run):
    change(run, THIRD, lambda table: table.slice(0, 16))
    assert any("in 1 steps" in note for note in replay(run).notes)


def test_texts_are_completions_too(run):
    """Prompts and completions that are no conversations; the longest text gets the most tokens."""

    def plain(table):
        prompts = [f"prompt {i // 8}" for i in range(32)]
        texts = ["x" * (1 + i % 8) for i in range(32)]
        return with_column(with_column(table, "prompt", pa.array(prompts)), "completion", pa.array(texts))

    change(run, THIRD, plain)
    found = replay(run, select=lambda group, rng: np.arange(8) == 7)
    assert found.groups == 20
    whole = replay(run).sampled.tokens
    assert found.sampled.tokens == pytest.approx(whole)


def test_finished_cannot_be_replayed(run):
    with refused(ConfigError, "finished", key="select", code="config.unsupported"):
        replay(run, select=["finished", "max_variance"])


def with_column(table, name, column):
    return table.set_column(table.column_names.index(name), name, column)


def change(run, name, of):
    table = pq.read_table(run / name)
    pq.write_table(of(table), run / name)


def test_an_infinite_number_is_exported_as_null(run):
    """Of a gradient that overflowed."""

    def overflowed(data):
        next(row for row in data["log_history"] if "reward" in row)["grad_norm"] = math.inf
        return data

    state(run, overflowed)
    shown = CliRunner().invoke(app, ["export", str(run), "--history"])
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stdout)[0]["grad_norm"] is None


def test_the_tokens_of_winnow_trl_add_up(run):
    """Its counts replace all estimates of a step, also the tokens that were not trained on."""

    def counted(data):
        data["log_history"][0] |= {"budget/generated_tokens": 1000.0, "budget/trained_tokens": 243.0}
        return data

    state(run, counted)
    names = ("generated", "kept", "trained", "wasted")
    assert [read_metrics(run)[0][f"budget/tokens_{name}"] for name in names] == [1000, 243, 243, 757]


def state(run, of):
    path = run / "trainer_state.json"
    path.write_text(json.dumps(of(json.loads(path.read_text()))))


def write(run, name, data):
    (run / name).write_bytes(data)


def infinite(table):
    return with_column(table, "short", pa.array([np.inf, *table["short"].to_pylist()[1:]]))


DAMAGES = {  # a damage, the file or the name in the message, and the code
    "no tables": (lambda run: shutil.rmtree(run / "completions"), "completions", "data.missing"),
    "an empty folder of tables": (
        lambda run: [path.unlink() for path in (run / "completions").iterdir()],
        "completions",
        "data.missing",
    ),
    "no state": (lambda run: (run / "trainer_state.json").unlink(), "trainer_state.json", "data.missing"),
    "a state that is no JSON": (
        lambda run: write(run, "trainer_state.json", b"{"),
        "trainer_state.json",
        "data.malformed",
    ),
    "a state without metrics": (
        lambda run: state(run, lambda data: {"global_step": 5}),
        "log_history",
        "data.malformed",
    ),
    "the state of another trainer": (
        lambda run: state(run, lambda data: {"log_history": [{"step": 1, "loss": 0.5}]}),
        "GRPOTrainer",
        "data.malformed",
    ),
    "the state of another run": (
        lambda run: state(
            run, lambda data: {"log_history": [{**row, "step": row["step"] + 100} for row in data["log_history"]]}
        ),
        "trainer_state.json",
        "data.mismatch",
    ),
    "a file that is cut": (lambda run: write(run, THIRD, (run / THIRD).read_bytes()[:500]), THIRD, "data.malformed"),
    "a file that is no table": (lambda run: write(run, THIRD, b"step,prompt\n"), THIRD, "data.malformed"),
    "no column of advantages": (
        lambda run: change(run, THIRD, lambda table: table.drop_columns(["advantage"])),
        "advantage",
        "data.malformed",
    ),
    "no column of a reward": (
        lambda run: change(run, THIRD, lambda table: table.drop_columns(["short"])),
        "short",
        "data.malformed",
    ),
    "a reward as text": (
        lambda run: change(run, THIRD, lambda table: with_column(table, "right", pa.array(["1"] * 32))),
        "right",
        "data.malformed",
    ),
    "an infinite reward": (lambda run: change(run, THIRD, infinite), THIRD, "data.malformed"),
    "rows of another step": (
        lambda run: change(run, THIRD, lambda table: with_column(table, "step", pa.array([4] * 32))),
        THIRD,
        "data.malformed",
    ),
    "no rows": (lambda run: change(run, THIRD, lambda table: table.slice(0, 0)), THIRD, "data.malformed"),
    "a group that is cut": (lambda run: change(run, THIRD, lambda table: table.slice(0, 30)), THIRD, "data.incomplete"),
    "two files of one step": (
        lambda run: shutil.copy(run / THIRD, run / "completions" / "completions_000003.parquet"),
        "completions_000003.parquet",
        "data.malformed",
    ),
    "kept as numbers": (
        lambda run: change(run, THIRD, lambda table: table.append_column("kept", pa.array([1] * 32))),
        "kept",
        "data.malformed",
    ),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_runs_are_refused_by_name(run, damage):
    do, named, code = DAMAGES[damage]
    do(run)
    with refused(DataError, named, code=code):
        replay(run)


def test_weights_that_contradict_the_log_are_refused(run):
    with refused(DataError, "right", "short", key="reward_weights", code="data.mismatch"):
        replay(REAL)
    (run / "winnow.toml").write_text("reward_weights = { right = 1.0 }")
    with refused(DataError, "short", key="reward_weights", code="data.mismatch"):
        replay(run)
    (run / "winnow.toml").write_text("reward_weights = { right = 1.0, short = 0.5, shrt = 1.0 }")
    with refused(DataError, "shrt", key="reward_weights", code="data.mismatch"):
        replay(run)


def test_settings_may_begin_with_a_byte_order_mark(run):
    text = (run / "winnow.toml").read_bytes()
    expected = replay(run)
    (run / "winnow.toml").write_bytes(b"\xef\xbb\xbf" + text)
    assert replay(run) == expected


def test_a_group_that_is_no_group_is_refused(run):
    weighted(run, "rollouts_per_prompt = 12\n")
    with refused(DataError, 12, key="rollouts_per_prompt", code="data.malformed"):
        replay(run)


def test_the_command_names_the_damage(run):
    (run / THIRD).write_bytes(b"PAR1")
    check_printed_error(CliRunner().invoke(app, ["replay", str(run)]), THIRD, code="data.malformed")


def test_metrics_are_those_of_the_table_and_of_the_trainer(run):
    """Step 0 here is step 1 of TRL. Rewards are right + short / 2; no step has verdicts, as they are no 0 or 1."""
    rows = read_metrics(run)
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    table = pq.read_table(run / "completions" / "completions_00001.parquet").to_pydict()
    rewards = np.array(table["right"]) + 0.5 * np.array(table["short"])
    first = rows[0]
    assert first["reward/mean"] == pytest.approx(rewards.mean())
    assert first["reward/std"] == pytest.approx(rewards.std())
    assert (first["budget/rollouts"], first["group/count"], first["select/trained"]) == (32, 4, 32)
    assert first["budget/tokens_generated"] == first["budget/tokens_trained"] == 13.375 * 32
    assert first["reward/part/right"] == 0.34375
    assert first["policy/entropy"] == pytest.approx(0.224987, abs=1e-6)
    assert first["seconds/step"] == pytest.approx(1.508275, abs=1e-6)
    assert first["budget/updates"] == 1
    assert not any("accuracy" in name for row in rows for name in row)


def test_the_seconds_are_those_of_all_steps_since_the_last_row(run):
    logged = json.loads((run / "trainer_state.json").read_text())["log_history"]
    time = {row["step"]: row["step_time"] for row in logged if "reward" in row}
    state(run, lambda data: {**data, "log_history": [row for row in logged if row["step"] != 2]})
    assert read_metrics(run)[1]["seconds/step"] == pytest.approx(2 * time[3])  # logging_steps: the mean of two steps
    update = {"step": 2, "step_time": time[2]}  # an update of rollouts that were there
    state(run, lambda data: {**data, "log_history": [update if row["step"] == 2 else row for row in logged]})
    assert read_metrics(run)[1]["seconds/step"] == pytest.approx(time[2] + time[3])


def test_a_run_with_several_updates_of_one_generation_is_not_compared(run):
    """TRL logs no reward for such an update, and writes the table of the generation again."""
    rows = json.loads((run / "trainer_state.json").read_text())["log_history"]
    update = {"step": 2, "step_time": 1.0}
    state(run, lambda data: {**data, "log_history": [update if row["step"] == 2 else row for row in rows]})
    result = CliRunner().invoke(app, ["compare", str(run), *MEASURE])
    check_printed_error(result, "num_iterations", code="data.incomplete")
    assert "completions_00002" not in result.output


def test_a_reward_function_can_be_the_verdict(run):
    weighted(run, 'correct_by = "right"\n')
    for row in read_metrics(run):
        assert row["reward/accuracy"] == row["reward/part/right"]
        assert row["outcome/correct"] + row["outcome/wrong"] == 32
    weighted(run, 'correct_by = "write"\n')
    with refused(DataError, "write", key="correct_by", code="data.mismatch"):
        read_metrics(run)


def test_rewards_of_0_and_1_are_verdicts(run):
    def plain(table):
        zero = pa.array([0.0] * 32)
        return with_column(with_column(table, "short", zero), "right", pa.array([float(i < 9) for i in range(32)]))

    change(run, THIRD, plain)
    verdicts = [row["correct"] for row in read_rows(run, step=2, columns=["correct"])]
    assert verdicts == [True] * 9 + [False] * 23
    assert {row["correct"] for row in read_rows(run, step=1, columns=["correct"])} == {None}
    assert not any("reward/accuracy" in row for row in read_metrics(run))


def test_rows_have_texts_and_no_tokens(run):
    rows = list(read_rows(run, step=0))
    assert len(rows) == 32
    for row in rows:
        assert (row["tokens"], row["logprobs"], row["finish"], row["answer"]) == (None, None, None, None)
        assert set(row["parts"]) == {"right", "short"}
        assert row["reward"] == pytest.approx(row["parts"]["right"] + row["parts"]["short"] / 2)
    assert sum(row["length"] for row in rows) == 428
    assert len({row["prompt_id"] for row in rows}) == 4


def test_an_evaluation_after_k_steps_is_of_step_k(run):
    evaluation = {"step": 5, "eval_reward": 0.5, "eval_rewards/right/mean": 0.75, "eval_runtime": 2.0}
    state(run, lambda data: {**data, "log_history": [*data["log_history"], evaluation]})
    last = read_metrics(run)[-1]
    assert last == {"step": 5, "eval/reward_mean": 0.5, "eval/part/right": 0.75, "eval/seconds": 2.0}


def test_a_metric_that_is_no_number_is_refused(run):
    def text(data):
        data["log_history"][0]["entropy"] = "low"
        return data

    state(run, text)
    with refused(DataError, "entropy", "trainer_state.json", code="data.malformed"):
        read_metrics(run)


def test_metrics_that_nobody_knows_are_named(run):
    def mine(data):
        data["log_history"][0]["my_metric"] = 1.0
        return data

    state(run, mine)
    assert any("my_metric" in note for note in log_notes(run))


def test_a_checkpoint_from_before_the_first_log_is_passed_over(run):
    (run / "checkpoint-1").mkdir()
    (run / "checkpoint-1" / "trainer_state.json").write_text('{"log_history": []}')
    assert replay(run).steps == [0, 1, 2, 3, 4]


def test_states_of_many_checkpoints_are_not_read_again_for_each_step(run):
    text = (run / "trainer_state.json").read_text()
    for step in range(1, 21):
        (run / f"checkpoint-{step}").mkdir()
        (run / f"checkpoint-{step}" / "trainer_state.json").write_text(text)
    _read_state.cache_clear()
    read_metrics(run)
    assert _read_state.cache_info().misses <= 2
