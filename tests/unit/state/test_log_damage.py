"""Logs that were cut, edited or invented: `show`, `plot` and `export` name line or file, and print no control codes."""

from __future__ import annotations

import contextlib
import json
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from logged_groups import read_rollouts
from refusals import refused
from synthetic_run import write_run
from winnow.commands import app
from winnow.errors import DataError
from winnow.state.logbook import read_metrics, read_rows
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
    """Replace one row of a log by `change` of it."""
    lines = (run / log).read_bytes().splitlines(keepends=True)
    lines[number] = change(lines[number])
    (run / log).write_bytes(b"".join(lines))


def put(row, key, value):
    """A row's text with a value (JSON, or nearly) at a dotted key; "-" omits the key."""
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
    """The results of the commands that read a log. Each prints something, or exits with a message for a person."""
    results = [winnow(command, run, *options) for command, *options in READS[log]]
    for result in results:
        assert result.exit_code in (0, 2), result.exception
        assert result.stdout or result.stderr
        assert "\x1b" not in result.output
    return results


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        ("reward/mean", '"high"', "str"),
        ("reward/mean", "true", "bool"),
        ("seconds/step", "[1]", "list"),
        ("policy/loss", "NaN", "float"),
        ("policy/loss", "1e999", "float"),
        ("budget/rollouts", "5" * 500, "int"),
        ("step", '"1"', "step"),
        ("step", "-", "step"),
        ("step", "-3", "step"),
    ],
)
def test_a_malformed_row_is_named_by_file_line_and_key(run, key, value, kind):
    damage(run, METRICS, PLACE, lambda row: put(row, key, value))
    with refused(DataError, f"{METRICS}, line {PLACE + 1}", key, kind, code="data.malformed"):
        read_metrics(run)
    for result in read(run, METRICS):
        assert result.exit_code == 2
        assert f"{METRICS}, line {PLACE + 1}:" in result.stderr
        assert key in result.stderr


def test_a_file_that_is_not_a_log_is_refused_with_the_right_name(tmp_path):
    """It may be a data set of the user, so the remedy for a first line is not to delete it."""
    path = tmp_path / "problems.jsonl"
    path.write_text('{"question": "2 + 2?", "answer": "4"}\n')
    with refused(DataError, f"{path}, line 1", code="data.malformed") as error:
        read_metrics(path)
    assert error.value.remedy.startswith("name")
    assert METRICS in error.value.remedy
    assert winnow("plot", path).exit_code == 2


def rewrite(run, **columns):
    """Rewrite a step's rollouts with other columns: a first value, or a field as new type; None removes the column."""
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
    ("name", "value", "kinds"),
    [
        ("prompt_id", None, []),
        ("surrogates", None, []),
        ("values", pa.field("values", pa.list_(pa.float64())), ["double"]),
        ("index", pa.field("index", pa.string(), nullable=False), ["string", "int64"]),
        ("prompt", pa.field("prompt", pa.string()), ["string or null"]),
        ("tokens", pa.field("tokens", pa.list_(pa.int64())), ["int64", "int32"]),
    ],
)
def test_a_file_of_other_columns_is_refused_with_the_column(run, name, value, kinds):
    rewrite(run, **{name: value})
    with refused(DataError, FILE, f"'{name}'", *kinds, code="data.malformed"):
        list(read_rows(run))
    for result in read(run, "rollouts"):
        assert result.exit_code == 2
        assert FILE in result.stderr
        assert f"'{name}'" in result.stderr


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("finish", "never", ["row 1: finish", "stop", "length"]),
        ("kind", "perfect", ["row 1: kind", "correct"]),
        ("cause", "bad luck", ["row 1: cause", "timeout"]),
        ("reward", float("nan"), ["row 1: reward"]),
        ("kind", "failed", ["row 1: reward"]),
        ("index", -1, ["row 1: index", 0]),
        ("tokens", [1, -2, 3], ["row 1: tokens", 0]),
        ("tokens", [1], ["row 1: tokens"]),
        ("logprobs", [0.5] * 9, ["row 1: logprobs"]),
        ("values", [0.5], ["row 1: values"]),
        ("returns", [0.5] * 4, ["row 1: returns"]),
        ("advantages", [0.5], ["row 1: advantages"]),
        ("length", 4, ["row 1: tokens"]),
        ("answer", "{", ["row 1: answer", "JSON"]),
        ("answer", "[" * 100_000, ["row 1: answer", "JSON"]),
        ("meta", "[]", ["row 1: meta", "JSON"]),
        ("parts", '{"a": "b"}', ["row 1: parts", "JSON"]),
        ("surrogates", '{"text": 5}', ["row 1: surrogates", "JSON"]),
        ("surrogates", '{"reward": "5"}', ["row 1: surrogates", "JSON"]),
        ("step", 7, ["step 7"]),
    ],
)
def test_a_value_that_no_run_writes_is_named_by_file_row_and_column(run, name, value, named):
    rewrite(run, **{name: value})
    with refused(DataError, FILE, *named, code="data.malformed"):
        list(read_rows(run))
    read(run, "rollouts")


def test_a_rollout_without_text_is_shown_and_not_rebuilt(run):
    rewrite(run, text="mine")
    list(read_rollouts(run))
    table = pq.read_table(run / FILE)
    table = table.set_column(table.column_names.index("text"), SCHEMA.field("text"), pa.nulls(7, pa.string()))
    pq.write_table(table, run / FILE)
    shown = winnow("show", run)
    assert shown.exit_code == 0
    assert not {"mine", "None"} & set(shown.stdout.split())
    with pytest.raises(ValueError, match=r"log\.rollouts"):
        list(read_rollouts(run))


def cut(data, place):
    return data[:place]


def flipped(data, place):
    return data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :]


@pytest.mark.parametrize("harm", [cut, flipped])
def test_damaged_bytes_are_text_or_a_message_and_never_other_rollouts(run, harm):
    """Pages have checksums, and the footer has none."""
    original = (run / FILE).read_bytes()
    whole = repr(list(read_rows(run)))
    end = len(original) - 8 - int.from_bytes(original[-8:-4], "little")  # of the pages
    for number, place in enumerate(random.Random(0).sample(range(len(original)), 40)):
        (run / FILE).write_bytes(harm(original, place))
        if number % 5 == 0:  # the commands read by the same function, and take a hundred times as long
            read(run, "rollouts")
        if harm is cut or 4 <= place < end:
            with contextlib.suppress(DataError):
                assert repr(list(read_rows(run))) == whole


@pytest.mark.parametrize("data", [b"", b"PAR1", b'{"step":1}\n', b"PAR1" + bytes(100) + b"PAR1"])
def test_a_file_that_is_not_parquet_is_refused_by_name(run, data):
    (run / FILE).write_bytes(data)
    for result in read(run, "rollouts"):
        assert result.exit_code == 2
        assert FILE in result.stderr


NO_ROWS = (
    b'{"step":1,"a":', b"[" * 5000, b"\x80\xff\x00\x1b[2J", b"", b'"step"', b'{"step":' + b"5" * 5000 + b"}",
    b'{"step":1,"text":"' + bytes(range(32)) + b'"}',
)  # fmt: skip


@pytest.mark.parametrize("text", NO_ROWS, ids=range(len(NO_ROWS)))
def test_a_line_that_is_not_a_row_is_named_by_file_and_line(run, text):
    damage(run, METRICS, PLACE, lambda row: text.replace(b"\n", b"") + b"\n")
    for result in read(run, METRICS):
        assert result.exit_code == 2
        assert f"{METRICS}, line {PLACE + 1}:" in result.stderr


def test_an_incomplete_last_row_is_omitted_with_a_note(run):
    whole = read(run, METRICS)
    with (run / METRICS).open("ab") as file:
        file.write(b'{"step":9,"rew')
    for result, before in zip(read(run, METRICS), whole, strict=True):
        assert result.stdout == before.stdout
        (note,) = set(result.stderr.splitlines()) - set(before.stderr.splitlines())
        assert str(run / METRICS) in note


def test_a_step_that_is_being_written_is_not_read(run):
    before = [result.stdout for result in read(run, "rollouts")]
    (run / "rollouts" / ".step-000002.parquet.draft").write_bytes(b"PAR1 half")
    assert [result.stdout for result in read(run, "rollouts")] == before


def test_any_value_in_a_row_results_in_text_or_a_message(run):
    original = (run / METRICS).read_bytes()
    keys = [*json.loads(original.splitlines(keepends=True)[PLACE])]
    chosen = random.Random(0).sample([(key, value) for key in keys for value in (*VALUES, "-")], 12)
    for key, value in chosen:
        damage(run, METRICS, PLACE, lambda row, key=key, value=value: put(row, key, value))
        read(run, METRICS)
        (run / METRICS).write_bytes(original)


def test_numbers_that_no_axis_can_show_are_omitted_from_the_plot(run, tmp_path):
    for number in range(len((run / "metrics.jsonl").read_bytes().splitlines())):
        row = json.loads((run / "metrics.jsonl").read_bytes().splitlines()[number])
        for name in row.keys() - {"step"}:
            damage(run, "metrics.jsonl", number, lambda text, name=name: put(text, name, "1.7e308"))
    assert winnow("plot", run, "-o", tmp_path / "plot.png").exit_code == 0
    for name in ("eval/accuracy_sampled", "eval/accuracy_sampled_sem"):
        damage(run, "metrics.jsonl", 0, lambda text, name=name: put(text, name, "-1.0"))
    assert winnow("plot", run, "-o", tmp_path / "negative.png").exit_code == 0


def test_an_evaluation_without_a_verdict_is_exported_as_null(run):
    damage(
        run, "metrics.jsonl", 3, lambda row: put(row, "step", "1").replace(b"}", b', "eval/accuracy_sampled": null}')
    )
    (first, _) = json.loads(winnow("export", run, "--history").stdout)
    assert first["val_reward"] is None


HOSTILE = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202e\r\nstep 9  forged"


@pytest.mark.parametrize("key", ["prompt_id", "prompt", "answer", "text", "reason", "extracted", "detail"])
def test_no_text_of_a_rollout_controls_the_terminal_or_forges_a_line(run, key):
    value = HOSTILE if key != "prompt_id" else f"toy-hard{HOSTILE}"
    rewrite(run, **{key: json.dumps(value) if key == "answer" else value})
    shown = winnow("show", run, "--prompt", "toy", "--full")
    assert shown.exit_code == 0, shown.output
    assert not set(shown.stdout) & set("\x1b\x07\x9b\u202e\r")
    assert "\nstep 9" not in shown.stdout
    assert "\\x1b[2J" in shown.stdout
    scored = winnow("score", run, "--reward", "gsm8k", "--workers", "0")
    assert not set(scored.output) & set("\x1b\x07\x9b\u202e\r")


def test_no_verdict_of_a_scored_file_controls_the_terminal(tmp_path):
    row = {"text": "#### 1", "answer": "1", "kind": HOSTILE, "id": HOSTILE}
    (tmp_path / "saved.jsonl").write_text(json.dumps(row) + "\n")
    scored = winnow("score", tmp_path / "saved.jsonl", "--reward", "gsm8k", "--workers", "0")
    assert scored.exit_code == 0
    assert not set(scored.output) & set("\x1b\x07\x9b\u202e\r")


def test_export_without_an_option_describes_its_output_and_writes_nothing(run):
    result = winnow("export", run)
    assert (result.exit_code, result.stdout) == (2, "")
    for name in ("--history", "training_history.json", "2 entries", "reward_mean"):
        assert name in result.stderr
