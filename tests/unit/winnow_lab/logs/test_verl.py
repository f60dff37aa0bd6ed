"""The log of verl as winnow's records: tests/fixtures/verl_run was written by verl 0.9.1's own writers, with
tests/with_verl/make_log.py, and is damaged here in ways that are each refused by name.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from refusals import check_printed_error, refused
from winnow.alarms.watch import alarms_of_run
from winnow.commands import app
from winnow.errors import ConfigError, DataError
from winnow.run_view.summary import summary
from winnow.state.logbook import log_notes, read_metrics, read_rows
from winnow_lab.compare.inputs import named_inputs
from winnow_lab.logs.reading import estimated_lengths
from winnow_lab.plan.evidence import evidence_of
from winnow_lab.replay.replaying import replay
from winnow_lab.report.headline import headline

REAL = Path(__file__).parents[3] / "fixtures" / "verl_run"
THIRD, LOG = "rollouts/3.jsonl", "log.jsonl"


@pytest.fixture
def run(tmp_path):
    return Path(shutil.copytree(REAL, tmp_path / "run"))


def rows_of(run, name=THIRD):
    return [json.loads(line) for line in (run / name).read_text().splitlines()]


def change(run, of, name=THIRD):
    """Rewrite the rows of a file by a function of one row, or of its number and the row."""
    rows = [of(number, row) for number, row in enumerate(rows_of(run, name))]
    (run / name).write_text("".join(json.dumps(row) + "\n" for row in rows if row is not None))


def test_a_log_of_verl_is_replayed():
    """5 steps of 4 prompts with 8 rollouts, rewards 0 or 1: two of each prompt with the largest variance."""
    found = replay(REAL, keep=2)
    assert (found.program, found.steps, found.groups) == ("verl", [0, 1, 2, 3, 4], 20)
    assert (found.sampled.rollouts, found.kept_by_run.rollouts, found.kept.rollouts) == (160, 160, 40)
    rewards = [np.array([row["score"] for row in rows_of(REAL, f"rollouts/{step}.jsonl")]) for step in range(1, 6)]
    groups = np.concatenate(rewards).reshape(20, 8)
    assert found.sampled.variance == pytest.approx(groups.var(axis=1).mean())
    mixed = (groups.min(axis=1) < groups.max(axis=1)).mean()
    assert found.kept.variance == pytest.approx(0.25 * mixed)
    assert found.flat == 20 - round(20 * mixed)
    lengths = [len(row["output"]) for step in range(1, 6) for row in rows_of(REAL, f"rollouts/{step}.jsonl")]
    assert found.sampled.tokens == sum(lengths)  # a text of the fixture has one character per token


def test_metrics_are_those_of_the_rows_and_of_the_trainer():
    rows = read_metrics(REAL)
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4, 5]
    for step, row in enumerate(rows[:5], start=1):
        scores = np.array([of["score"] for of in rows_of(REAL, f"rollouts/{step}.jsonl")])
        assert row["reward/mean"] == row["reward/accuracy"] == pytest.approx(scores.mean())
        assert row["outcome/correct"] == scores.sum()
        assert (row["budget/rollouts"], row["group/count"]) == (32, 4)
        assert row["policy/entropy"] == pytest.approx(0.5 - 0.05 * step)
        assert row["seconds/step"] == 10
        assert row["rollout/length_mean"] * 32 == row["budget/tokens_generated"]
    assert rows[0]["eval/accuracy_sampled"] == 0.125
    assert rows[5] == {"step": 5, "eval/accuracy_sampled": 0.5, "eval/seconds": 3.0}


def test_rows_have_texts_and_verdicts():
    rows = list(read_rows(REAL, step=0))
    logged = rows_of(REAL, "rollouts/1.jsonl")
    assert [row["text"] for row in rows] == [row["output"] for row in logged]
    assert [row["correct"] for row in rows] == [row["score"] == 1 for row in logged]
    assert [row["answer"] for row in rows] == [row["gts"] for row in logged]
    assert [row["length"] for row in rows] == [len(row["output"]) for row in logged]
    assert {row["advantage"] for row in rows} == {None}
    assert len({row["prompt_id"] for row in rows}) == 4


def test_every_command_reads_it(run):
    for command in (["show"], ["report"], ["plot", "--summary-only"], ["compare"], ["replay", "--keep", "2"]):
        result = CliRunner().invoke(app, [*command, str(run)])
        assert result.exit_code == 0, result.output
    assert (run / "report.html").stat().st_size > 100_000


def test_alarms_are_raised_over_it(run):
    """With no reward at all in five steps, the reward is constant."""
    assert alarms_of_run(read_metrics(run)) == []
    for step in range(1, 6):
        change(run, lambda _, row: {**row, "score": 0.0}, f"rollouts/{step}.jsonl")
    assert {alarm.name for alarm in alarms_of_run(read_metrics(run))} == {"constant_reward"}


def test_two_runs_are_compared(run, tmp_path):
    other = shutil.copytree(REAL, tmp_path / "other")
    result = CliRunner().invoke(app, ["compare", str(run), str(other)])
    assert result.exit_code == 0, result.output
    assert "other" in result.output


def test_folders_of_one_name_are_two_groups(run, tmp_path):
    """Also if they are folders of generations, which are all called `rollouts`."""
    other = Path(shutil.copytree(REAL, tmp_path / "other"))
    named, _ = named_inputs([str(run / "rollouts"), str(other / "rollouts")])
    assert [item.label for item in named] == ["run/rollouts", "other/rollouts"]
    assert [item.label for item in named_inputs([str(run), f"a={other}"])[0]] == ["run", "a"]


def test_rows_without_a_uid_are_grouped_by_their_input(run):
    """As the older trainer of verl writes them, which also shuffles the rows of a step."""
    for step in range(1, 6):
        name = f"rollouts/{step}.jsonl"
        change(run, lambda _, row: {key: row[key] for key in row if key != "uid"}, name)
        lines = (run / name).read_text().splitlines(keepends=True)
        (run / name).write_text("".join(lines[::2] + lines[1::2]))
    found = replay(run, keep=2)
    assert found.groups == 20
    assert found.sampled.variance == pytest.approx(replay(REAL).sampled.variance)
    assert any("uid" in note for note in log_notes(run))


def test_acc_is_the_verdict(run):
    change(run, lambda number, row: {**row, "score": 0.5, "acc": number < 8})
    rows = list(read_rows(run, step=2, columns=["correct", "reward"]))
    assert [row["correct"] for row in rows] == [True] * 8 + [False] * 24
    assert {row["reward"] for row in rows} == {0.5}


def test_partial_credit_is_not_correct(run):
    """Four shares of a response's tests in turn: only a whole one is a verdict of correct."""
    shares = (0, 0.5, 0.999, 1.0)
    for step in range(1, 6):
        change(run, lambda number, row: {**row, "score": 0.5, "acc": shares[number % 4]}, f"rollouts/{step}.jsonl")
    rows = list(read_rows(run, step=2, columns=["correct", "reward"]))
    assert [row["correct"] for row in rows] == [False, False, False, True] * 8
    (first, *_) = read_metrics(run)
    assert (first["reward/accuracy"], first["outcome/correct"], first["reward/mean"]) == (0.25, 8, 0.5)
    assert any("acc" in note for note in log_notes(run))
    assert not any("acc " in note for note in log_notes(REAL))


def test_a_log_with_partial_credit_alone_is_read(tmp_path):
    """Every response has half of the credit, and the log has generations only."""
    log = tmp_path / "run"
    log.mkdir()
    rows = [
        {"input": f"q{prompt}", "output": "a", "gts": "4", "score": float(index % 2), "step": 1, "acc": 0.5}
        for prompt in range(2)
        for index in range(4)
    ]
    (log / "1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert {row["correct"] for row in read_rows(log)} == {False}
    assert {row["reward/accuracy"] for row in read_metrics(log)} == {0.0}
    for command in (["show"], ["compare", "--measure", "reward/mean"], ["replay", "--keep", "2"]):
        result = CliRunner().invoke(app, [*command, str(log)])
        assert result.exit_code == 0, result.output


def test_comparing_names_the_missing_file(run, tmp_path):
    """The remedy works when it is followed."""
    (run / THIRD).rename(tmp_path / "kept")
    refused_run = CliRunner().invoke(app, ["compare", str(run), str(REAL)])
    check_printed_error(refused_run, run / THIRD, code="data.incomplete")
    assert "metrics.jsonl" not in refused_run.output
    (tmp_path / "kept").rename(run / THIRD)
    assert CliRunner().invoke(app, ["compare", str(run), str(REAL)]).exit_code == 0


def test_without_evaluations_the_rewards_of_training_are_compared(run):
    """As the remedy says: the log's generations alone have no evaluation."""
    (run / LOG).unlink()
    empty = CliRunner().invoke(app, ["compare", str(run)])
    check_printed_error(empty, "reward/mean", code="data.empty")
    assert CliRunner().invoke(app, ["compare", str(run), "--measure", "reward/mean"]).exit_code == 0


def test_rows_that_fill_a_batch_and_earlier_outputs_are_no_rollouts(run):
    padding, key = f"pad{'0' * 32}_0_0", rows_of(run)[0]["uid"]
    first = rows_of(run)[0]
    more = [{**first, "uid": padding}, {**first, "uid": key[:-1] + "1", "output": "last"}]
    with (run / THIRD).open("a") as file:
        file.write("".join(json.dumps(row) + "\n" for row in more))
    rows = list(read_rows(run, step=2, columns=["text"]))
    assert len(rows) == 32
    assert sum(row["text"] == "last" for row in rows) == 1


def test_a_score_of_null_is_not_judged(run):
    change(run, lambda number, row: {**row, "score": None} if number == 0 else row)
    found = replay(run, keep=2)
    assert found.not_judged == 1


def test_generations_alone_are_read_without_lengths(run):
    (run / LOG).unlink()
    found = replay(run, keep=2)
    assert np.isnan(found.sampled.tokens)
    assert found.kept.rollouts == 40
    assert "budget/tokens_generated" not in read_metrics(run)[0]
    result = CliRunner().invoke(app, ["show", str(run)])
    assert result.exit_code == 0, result.output


def test_the_folder_of_generations_finds_the_metrics_above_it(run):
    assert read_metrics(run / "rollouts") == read_metrics(run)
    columns = ["step", "length"]
    assert list(read_rows(run / THIRD, columns=columns)) == list(read_rows(run, step=2, columns=columns))


def test_unknown_columns_and_metrics_are_named(run):
    change(run, lambda _, row: {**row, "my_score": 1})
    change(run, lambda _, row: {**row, "data": {**row["data"], "my_metric": "text"}}, LOG)
    notes = log_notes(run)
    assert any("my_score" in note for note in notes)
    assert any("my_metric" in note for note in notes)


def test_several_tasks_are_evaluated_apart(run):
    change(run, lambda _, row: {**row, "data": {**row["data"], "val-core/other/set/acc/mean@4": 0.25}}, LOG)
    first = read_metrics(run)[0]
    assert first["eval/other_set/accuracy_sampled"] == 0.25
    assert first["eval/arithmetic/accuracy_sampled"] == 0.125
    assert "eval/accuracy_sampled" not in first


def test_a_last_row_of_metrics_that_is_being_written_is_ignored(run):
    whole = read_metrics(run)
    with (run / LOG).open("a") as file:
        file.write('{"step":6,"data":{"actor/ent')
    assert read_metrics(run) == whole


def test_the_newest_generations_that_are_being_written_are_left_out_with_a_note(run):
    whole = read_metrics(run)
    with (run / "rollouts" / "5.jsonl").open("r+b") as file:
        file.truncate(200)
    rows = read_metrics(run)
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 5]  # of step 5, the evaluation after it
    assert rows[:4] == whole[:4]
    assert any("rollouts/5.jsonl" in note for note in log_notes(run))
    assert replay(run, keep=2).steps == [0, 1, 2, 3]
    for step in (2, 3, 4, 5):
        (run / "rollouts" / f"{step}.jsonl").unlink()
    (run / "rollouts" / "1.jsonl").write_bytes((REAL / "rollouts" / "1.jsonl").read_bytes()[:200])
    with refused(DataError, "1.jsonl", code="data.malformed"):  # nothing is left beside it
        read_metrics(run)


def lines(run, name, of):
    path = run / name
    path.write_text("".join(of(path.read_text().splitlines(keepends=True))))


DAMAGES = {  # a damage, the names in the message, and the code
    "a line that is cut": (
        lambda run: lines(run, THIRD, lambda all: [*all[:-1], all[-1][:20]]), THIRD, "data.malformed",
    ),
    "a line that is no object": (lambda run: lines(run, THIRD, lambda all: ["[1]\n", *all]), THIRD, "data.malformed"),
    "no rows": (lambda run: (run / THIRD).write_text(""), THIRD, "data.malformed"),
    "no score": (
        lambda run: change(run, lambda _, row: {k: row[k] for k in row if k != "score"}), "score", "data.malformed",
    ),
    "a score as text": (lambda run: change(run, lambda _, row: {**row, "score": "1"}), "score", "data.malformed"),
    "an infinite score": (
        lambda run: change(run, lambda _, row: {**row, "score": float("inf")}), "score", "data.malformed",
    ),
    "an output that is no text": (
        lambda run: change(run, lambda _, row: {**row, "output": 1}), "output", "data.malformed",
    ),
    "rows of another step": (lambda run: change(run, lambda _, row: {**row, "step": 4}), THIRD, "data.malformed"),
    "a uid twice": (lambda run: lines(run, THIRD, lambda all: [*all, all[0]]), THIRD, "data.malformed"),
    "a uid that is no text": (lambda run: change(run, lambda _, row: {**row, "uid": 7}), "uid", "data.malformed"),
    "an acc above 1": (lambda run: change(run, lambda _, row: {**row, "acc": 1.5}), "acc", "data.malformed"),
    "an acc below 0": (lambda run: change(run, lambda _, row: {**row, "acc": -1}), "acc", "data.malformed"),
    "an acc of NaN": (lambda run: change(run, lambda _, row: {**row, "acc": float("nan")}), "acc", "data.malformed"),
    "an acc that is a text": (lambda run: change(run, lambda _, row: {**row, "acc": "1"}), "acc", "data.malformed"),
    "two files of one step": (
        lambda run: shutil.copy(run / THIRD, run / "rollouts/03.jsonl"), THIRD[9:], "data.malformed",
    ),
    "a step 0": (lambda run: shutil.copy(run / THIRD, run / "rollouts/0.jsonl"), "0.jsonl", "data.malformed"),
    "generations in two folders": (
        lambda run: shutil.copytree(run / "rollouts", run / "more"), "more", "data.missing",
    ),
    "validations in two folders": (
        lambda run: [shutil.copytree(run / "rollouts", run / name) for name in ("val", "val-2")], "val-2",
        "data.mismatch",
    ),
    "metrics of two runs": (lambda run: shutil.copy(run / LOG, run / "old.jsonl"), "old.jsonl", "data.mismatch"),
    "a row of metrics that is no JSON": (
        lambda run: lines(run, LOG, lambda all: [all[0], "{\n", *all[1:]]), LOG, "data.malformed",
    ),
    "a row without metrics": (
        lambda run: lines(run, LOG, lambda all: [all[0], '{"step": 1}\n', *all[1:]]), LOG, "data.malformed",
    ),
    "a metric as text": (
        lambda run: change(run, lambda _, row: {**row, "data": {**row["data"], "actor/entropy": "low"}}, LOG),
        "actor/entropy",
        "data.malformed",
    ),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_logs_are_refused_by_name(run, damage):
    do, named, code = DAMAGES[damage]
    do(run)
    with refused(DataError, named, code=code):
        read_metrics(run)
    with refused(DataError, named, code=code):
        replay(run)


def test_validation_is_read_as_evaluation(run):
    """The trainer's own number where it is logged; else the dump's. Steps of training are as they were."""
    before = read_metrics(run)
    shutil.copytree(run / "rollouts", run / "validation_data")
    start = [{**row, "step": 0, "score": float(number < 8)} for number, row in enumerate(rows_of(run))]
    (run / "validation_data" / "0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in start))
    for name in (run, run / "rollouts"):
        rows = read_metrics(name)
        assert [row["step"] for row in rows] == [0, 1, 2, 3, 4, 5]
        assert rows[0]["eval/accuracy_sampled"] == 0.125  # logged
        for step in range(1, 5):
            scores = [row["score"] for row in rows_of(run, f"rollouts/{step}.jsonl")]
            assert rows[step]["eval/accuracy_sampled"] == rows[step]["eval/reward_mean"] == np.mean(scores)
        assert [{name: row[name] for name in old} for row, old in zip(rows, before, strict=True)] == before
    assert replay(run, keep=2).sampled == replay(REAL, keep=2).sampled
    (run / LOG).unlink()
    assert read_metrics(run)[0]["eval/accuracy_sampled"] == 0.25


def test_the_folder_that_is_named_wins(run):
    """Two runs beside each other: each is read alone, and the folder around them is compared as two runs."""
    for name in ("expA", "expB"):
        shutil.copytree(run / "rollouts", run / name)
    shutil.rmtree(run / "rollouts")
    (run / LOG).unlink()
    for command in (["show"], ["report"], ["plot", "--summary-only"], ["replay", "--keep", "2"]):
        named = CliRunner().invoke(app, [*command, str(run / "expA")])
        assert named.exit_code == 0, named.output
        check_printed_error(CliRunner().invoke(app, [*command, str(run)]), "expA, expB", code="data.missing")
    assert len(list(read_rows(run / "expA"))) == 160
    assert len(list(read_rows(run / "expA" / "3.jsonl"))) == 32
    both = CliRunner().invoke(app, ["compare", str(run), "--measure", "reward/mean"])
    assert both.exit_code == 0, both.output
    assert "expB" in both.output


def test_settings_beside_the_folder_that_is_named(run):
    (run / "winnow.toml").write_text("rollouts_per_prompt = 7")
    with refused(DataError, 7, 8, key="rollouts_per_prompt", code="data.mismatch"):
        replay(run / "rollouts")
    (run / "rollouts" / "winnow.toml").write_text("rollouts_per_prompt = 8")
    assert replay(run / "rollouts").groups == 20


def test_rows_without_an_acc_have_no_verdict(run):
    """Tasks whose reward functions differ: verl writes null for a row whose function gave no acc."""
    change(run, lambda number, row: {**row, "score": 0.5, "acc": None if number < 8 else float(number < 16)})
    rows = list(read_rows(run, step=2, columns=["correct"]))
    assert [row["correct"] for row in rows] == [None] * 8 + [True] * 8 + [False] * 16


def test_a_group_of_another_size_is_refused(run):
    (run / "winnow.toml").write_text("rollouts_per_prompt = 8")
    assert replay(run, keep=2).groups == 20
    lines(run, THIRD, lambda all: all[:-1])
    with refused(DataError, 7, 8, key="rollouts_per_prompt", code="data.mismatch"):
        replay(run)


@pytest.mark.parametrize(
    ("text", "key", "code"),
    [
        ("reward_wights = [1.0]", "reward_wights", "config.unknown_key"),
        ("reward_weights = 1.0", "reward_weights", "config.value"),
        ("reward_weights = [1.0, 0.5]", "reward_weights", "config.value"),
        ("reward_weights = { right = 'a' }", "reward_weights", "config.value"),
        ("rollouts_per_prompt = 0", "rollouts_per_prompt", "config.value"),
        ("correct_by = 1", "correct_by", "config.value"),
        ("rollouts_per_prompt", None, "config.unreadable"),
    ],
)
def test_unusable_settings_are_refused(run, text, key, code):
    (run / "winnow.toml").write_text(text)
    with refused(ConfigError, "winnow.toml", key=key, code=code):
        read_metrics(run)


def test_the_command_names_the_damage(run):
    (run / THIRD).write_text("{")
    check_printed_error(CliRunner().invoke(app, ["report", str(run)]), THIRD, code="data.malformed")


def test_the_budget_of_winnow_verl_is_read(run):
    """Its dump has the kept rollouts alone: here 32 of 128, and a quarter of the tokens."""
    kept = {row["step"]: row["budget/tokens_generated"] for row in read_metrics(run) if "reward/mean" in row}

    def budget(_, row):
        if not (tokens := kept.get(row["step"] - 1)):
            return row
        own = {"generated_tokens": 4 * tokens, "trained_tokens": tokens, "share_kept": 0.25}
        return {**row, "data": {**row["data"], **{f"budget/{name}": value for name, value in own.items()}}}

    change(run, budget, LOG)
    for row in read_metrics(run)[:5]:
        tokens = kept[row["step"]]
        names = ("tokens_generated", "tokens_kept", "tokens_trained", "tokens_wasted")
        assert [row[f"budget/{name}"] for name in names] == [4 * tokens, tokens, tokens, 3 * tokens]
        assert (row["budget/rollouts"], row["select/kept"]) == (128, 32)
    with refused(ConfigError, code="config.unsupported"):  # the others, and so the pass rates, are not logged
        evidence_of(run)
    notes = log_notes(run)
    assert any("winnow_verl" in note for note in notes)
    assert not any("budget/" in note for note in notes)


@pytest.mark.parametrize("mean", [math.nan, math.inf, -math.inf])
def test_lengths_without_a_finite_mean_are_unknown(mean):
    assert np.isnan(estimated_lengths([3, 5], mean)).tolist() == [True, True]


def test_what_the_log_lacks_is_omitted_and_not_0(run):
    """verl logs no number of updates, and without its file logger neither tokens nor seconds."""
    known = summary(read_metrics(run))
    assert "updates" not in known
    assert "tokens" in known
    assert "training" in known
    (run / LOG).unlink()
    lacking, lines = summary(read_metrics(run)), headline(read_metrics(run))
    assert "160 rollouts" in lacking
    assert not [word for word in ("updates", "tokens", "training", "evaluating", "0:00") if word in lacking]
    assert [line["label"] for line in lines if "tokens" in line["label"] or "time" in line["label"]] == []


def test_a_log_is_read_from_inside_its_folder(run, monkeypatch):
    columns = ["step", "length"]
    metrics, rows = read_metrics(run), list(read_rows(run, step=2, columns=columns))
    monkeypatch.chdir(run / "rollouts")
    assert read_metrics(Path(".")) == metrics
    assert list(read_rows(Path("3.jsonl"), columns=columns)) == rows
