"""Logs that were cut, edited or invented: `show`, `plot` and `export` name line or file, and say nothing that acts."""

from __future__ import annotations

import contextlib
import json
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from synthetic_run import write_run
from winnow.cli import app
from winnow.errors import DataError
from winnow.state.logbook import read_rollouts, read_rows
from winnow.state.rollout_columns import SCHEMA

VALUES = (
    "true", "-1", "1.5", "1e308", "-1e308", "1e999", "NaN", "-Infinity", "5" * 500, "5" * 5000, "[" * 5000,
    '"text"', '"\\u001b[2J"', "[]", "{}", "[null]", '[1e308,"a"]', "null",
)  # fmt: skip
READS = {
    "metrics.jsonl": (["plot", "--summary-only"], ["export", "--history"], ["export"]),
    "rollouts": (["show", "--prompt", "toy"], ["show", "--worst", "1"], ["show", "--failed", "--full"]),
}
METRICS, PLACE = "metrics.jsonl", 3  # from 0: a row of the last step
FILE = "rollouts/step-000001.parquet"


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "toy", steps=2)


def winnow(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def damage(run, log, number, change):
    """Replace one row of a log by what `change` makes of it."""
    lines = (run / log).read_bytes().splitlines(keepends=True)
    lines[number] = change(lines[number])
    (run / log).write_bytes(b"".join(lines))


def put(row, key, value):
    """A row's text with a value, itself JSON or nearly, at a dotted key; "-" leaves the key out."""
    data = json.loads(row)
    *tables, last = key.split(".")
    inner = data
    for table in tables:
        inner = inner[table]
    del inner[last]
    if value != "-":
        inner[last] = "@@"
    return json.dumps(data).replace('"@@"', value).encode() + b"\n"


def read(run, log):
    """What the commands that read a log say; each has printed something, or ended with a message for a person."""
    results = [winnow(command, run, *options) for command, *options in READS[log]]
    for result in results:
        assert result.exit_code in (0, 2), result.exception
        assert result.stdout or result.stderr
        assert "\x1b" not in result.output
    return results


@pytest.mark.parametrize(
    ("key", "value", "found"),
    [
        ("reward/mean", '"high"', "reward/mean: str where a finite number or null belongs"),
        ("reward/mean", "true", "reward/mean: bool where"),
        ("seconds/step", "[1]", "seconds/step: list where"),
        ("policy/loss", "NaN", "policy/loss: float where"),
        ("policy/loss", "1e999", "policy/loss: float where"),
        ("budget/rollouts", "5" * 500, "budget/rollouts: int where"),
        ("step", '"1"', "it has no step"),
        ("step", "-", "it has no step"),
        ("step", "-3", "it has no step"),
    ],
)
def test_a_malformed_row_is_named_by_file_line_and_key(run, key, value, found):
    damage(run, METRICS, PLACE, lambda row: put(row, key, value))
    for result in read(run, METRICS):
        assert result.exit_code == 2
        assert f"{METRICS}, line {PLACE + 1}: not " in result.stderr
        assert found in result.stderr
        assert "delete the line" in result.stderr


def test_a_file_that_is_no_log_is_not_to_be_cut(tmp_path):
    """It may be a data set of the user's."""
    (tmp_path / "problems.jsonl").write_text('{"question": "2 + 2?", "answer": "4"}\n')
    result = winnow("plot", tmp_path / "problems.jsonl")
    assert result.exit_code == 2
    assert "line 1: not a row of a run's log, it has no step; name a run folder or its metrics.jsonl" in result.stderr


def rewrite(run, **columns):
    """A step's rollouts with other columns: their first value, or what a field makes of all; None leaves one out."""
    table = pq.read_table(run / FILE)
    for name, value in columns.items():
        place = table.column_names.index(name)
        if value is None:
            table = table.remove_column(place)
        elif isinstance(value, pa.Field):
            table = table.set_column(place, value, table.column(name).cast(value.type))
        else:
            values = [value, *table.column(name).to_pylist()[1:]]
            table = table.set_column(place, SCHEMA.field(name), pa.array(values, SCHEMA.field(name).type))
    pq.write_table(table, run / FILE)


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("prompt_id", None, "there is no column 'prompt_id'"),
        ("surrogates", None, "there is no column 'surrogates'"),
        ("values", pa.field("values", pa.list_(pa.float64())), "'values' is of list<element: double>"),
        ("index", pa.field("index", pa.string(), nullable=False), "'index' is of string, where int64 belongs"),
        ("prompt", pa.field("prompt", pa.string()), "'prompt' is of string or null, where string belongs"),
        ("tokens", pa.field("tokens", pa.list_(pa.int64())), "'tokens' is of list<element: int64>"),
    ],
)
def test_a_file_of_other_columns_is_refused_with_the_column(run, name, value, found):
    rewrite(run, **{name: value})
    for result in read(run, "rollouts"):
        assert result.exit_code == 2
        assert f"{FILE}: not rollouts as a run logs them" in result.stderr
        assert found in result.stderr
        assert "put the file back as it was" in result.stderr


def test_a_file_from_before_there_were_value_models_is_read_as_one_without(run):
    whole = [repr(row) for row in read_rows(run)]
    shown = winnow("show", run, "--step", 1, "--full").stdout
    rewrite(run, values=None, returns=None)
    assert [repr(row) for row in read_rows(run)] == whole
    assert [list(row) for row in read_rows(run, step=1, columns=["returns", "reward"])] == [
        ["step", "reward", "returns"]
    ] * 7
    assert all(entry.group.values is entry.group.returns is None for entry in read_rollouts(run))
    assert winnow("show", run, "--step", 1, "--full").stdout == shown


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("finish", "never", "row 1: finish: not one of stop, length"),
        ("kind", "perfect", "row 1: kind: not one of correct"),
        ("cause", "bad luck", "row 1: cause: not one of timeout"),
        ("reward", float("nan"), "row 1: reward: a failed verdict has none"),
        ("kind", "failed", "row 1: reward: a failed verdict has none"),
        ("index", -1, "row 1: index: below 0"),
        ("tokens", [1, -2, 3], "row 1: tokens: below 0"),
        ("tokens", [1], "row 1: tokens: not one per token"),
        ("logprobs", [0.5] * 9, "row 1: logprobs: not one per token"),
        ("values", [0.5], "row 1: values: not one per token"),
        ("returns", [0.5] * 4, "row 1: returns: not one per token"),
        ("advantages", [0.5], "row 1: advantages: not one per token"),
        ("length", 4, "row 1: tokens: not one per token"),
        ("answer", "{", "row 1: answer is not JSON"),
        ("answer", "[" * 100_000, "row 1: answer is not JSON"),
        ("meta", "[]", "row 1: meta: not a JSON object"),
        ("parts", '{"a": "b"}', "row 1: parts: not a JSON object of numbers"),
        ("surrogates", '{"text": 5}', "row 1: surrogates: not a JSON object of texts"),
        ("surrogates", '{"reward": "5"}', "row 1: surrogates: not a JSON object of texts"),
        ("step", 7, "holds rollouts of step 7"),
    ],
)
def test_a_value_that_no_run_writes_is_named_by_file_row_and_column(run, name, value, found):
    rewrite(run, **{name: value})
    with pytest.raises(DataError) as error:
        list(read_rows(run))
    assert FILE in str(error.value)
    assert found in str(error.value)
    read(run, "rollouts")


def test_a_text_that_is_not_there_is_no_text(run):
    rewrite(run, text="mine")
    list(read_rollouts(run))
    table = pq.read_table(run / FILE)
    table = table.set_column(table.column_names.index("text"), SCHEMA.field("text"), pa.nulls(7, pa.string()))
    pq.write_table(table, run / FILE)
    assert "its text was not logged" in winnow("show", run).stdout
    with pytest.raises(DataError, match=r"step 1, prompt 'toy-easy': cannot be rebuilt .*log\.rollouts"):
        list(read_rollouts(run))


def cut(data, place):
    return data[:place]


def flipped(data, place):
    return data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :]


@pytest.mark.parametrize("harm", [cut, flipped])
def test_damaged_bytes_are_text_or_a_message_and_never_other_rollouts(run, harm):
    """Pages have checksums; the file's end, which has none, is read as what it is."""
    original = (run / FILE).read_bytes()
    whole = repr(list(read_rows(run)))
    end = len(original) - 8 - int.from_bytes(original[-8:-4], "little")  # of the pages
    for place in random.Random(0).sample(range(len(original)), 25):
        (run / FILE).write_bytes(harm(original, place))
        read(run, "rollouts")
        if harm is cut or 4 <= place < end:
            with contextlib.suppress(DataError):
                assert repr(list(read_rows(run))) == whole


@pytest.mark.parametrize("data", [b"", b"PAR1", b'{"step":1}\n', b"PAR1" + bytes(100) + b"PAR1"])
def test_what_is_no_parquet_is_named(run, data):
    (run / FILE).write_bytes(data)
    for result in read(run, "rollouts"):
        assert result.exit_code == 2
        assert FILE in result.stderr


NO_ROWS = (
    b'{"step":1,"a":', b"[" * 5000, b"\x80\xff\x00\x1b[2J", b"", b'"step"', b'{"step":' + b"5" * 5000 + b"}",
    b'{"step":1,"text":"' + bytes(range(32)) + b'"}',
)  # fmt: skip


@pytest.mark.parametrize("text", NO_ROWS, ids=range(len(NO_ROWS)))
def test_what_is_no_row_is_named_by_file_and_line(run, text):
    damage(run, METRICS, PLACE, lambda row: text.replace(b"\n", b"") + b"\n")
    for result in read(run, METRICS):
        assert result.exit_code == 2
        assert f"{METRICS}, line {PLACE + 1}: not " in result.stderr


def test_a_last_row_that_is_cut_is_left_out_and_said(run):
    whole = [result.stdout for result in read(run, METRICS)]
    with (run / METRICS).open("ab") as file:
        file.write(b'{"step":9,"rew')
    for result, before in zip(read(run, METRICS), whole, strict=True):
        assert result.stdout == before
        assert f"note: the last row of {run / METRICS} is cut and left out" in result.stderr


def test_a_step_that_is_being_written_is_not_read(run):
    before = [result.stdout for result in read(run, "rollouts")]
    (run / "rollouts" / ".step-000002.parquet.draft").write_bytes(b"PAR1 half")
    assert [result.stdout for result in read(run, "rollouts")] == before


def test_whatever_stands_in_a_row_ends_in_text_or_a_message(run):
    original = (run / METRICS).read_bytes()
    keys = [*json.loads(original.splitlines(keepends=True)[PLACE])]
    chosen = random.Random(0).sample([(key, value) for key in keys for value in (*VALUES, "-")], 25)
    for key, value in chosen:
        damage(run, METRICS, PLACE, lambda row, key=key, value=value: put(row, key, value))
        read(run, METRICS)
        (run / METRICS).write_bytes(original)


def test_numbers_that_no_axis_could_show_are_left_out_of_the_picture(run, tmp_path):
    for number in range(len((run / "metrics.jsonl").read_bytes().splitlines())):
        row = json.loads((run / "metrics.jsonl").read_bytes().splitlines()[number])
        for name in row.keys() - {"step"}:
            damage(run, "metrics.jsonl", number, lambda text, name=name: put(text, name, "1.7e308"))
    assert winnow("plot", run, "-o", tmp_path / "plot.png").exit_code == 0
    for name in ("eval/accuracy_sampled", "eval/accuracy_sampled_sem"):
        damage(run, "metrics.jsonl", 0, lambda text, name=name: put(text, name, "-1.0"))
    assert winnow("plot", run, "-o", tmp_path / "plot.png").exit_code == 0


def test_an_evaluation_without_a_verdict_is_exported_as_null(run):
    damage(
        run, "metrics.jsonl", 3, lambda row: put(row, "step", "1").replace(b"}", b', "eval/accuracy_sampled": null}')
    )
    (first, _) = json.loads(winnow("export", run, "--history").stdout)
    assert first["val_reward"] is None


HOSTILE = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202e\r\nstep 9  forged"


@pytest.mark.parametrize("key", ["prompt_id", "prompt", "answer", "text", "reason", "extracted", "detail"])
def test_nothing_in_a_rollout_acts_on_the_terminal_or_passes_for_a_line_of_ours(run, key):
    value = HOSTILE if key != "prompt_id" else f"toy-hard{HOSTILE}"
    rewrite(run, **{key: json.dumps(value) if key == "answer" else value})
    shown = winnow("show", run, "--prompt", "toy", "--full")
    assert shown.exit_code == 0, shown.output
    assert not set(shown.stdout) & set("\x1b\x07\x9b\u202e\r")
    assert "\nstep 9" not in shown.stdout
    assert "\\x1b[2J" in shown.stdout
    scored = winnow("score", run, "--reward", "gsm8k", "--workers", "0")
    assert not set(scored.output) & set("\x1b\x07\x9b\u202e\r")


def test_a_verdict_in_a_scored_file_does_not_act_on_the_terminal(tmp_path):
    row = {"text": "#### 1", "answer": "1", "kind": HOSTILE, "id": HOSTILE}
    (tmp_path / "saved.jsonl").write_text(json.dumps(row) + "\n")
    scored = winnow("score", tmp_path / "saved.jsonl", "--reward", "gsm8k", "--workers", "0")
    assert scored.exit_code == 0
    assert not set(scored.output) & set("\x1b\x07\x9b\u202e\r")


def test_export_without_an_option_says_what_it_would_write(run):
    result = winnow("export", run)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "nothing is written" in result.stderr
    assert "--history  training_history.json: a JSON list of 2 entries, one per finished step" in result.stderr
    assert "reward_mean" in result.stderr
