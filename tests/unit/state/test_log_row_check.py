"""Logs that were cut, edited or invented: `show`, `plot` and `export` name the line, and print nothing that acts."""

from __future__ import annotations

import json
import random

import pytest
from typer.testing import CliRunner

from synthetic_run import write_run
from winnow.cli import app

VALUES = (
    "true", "-1", "1.5", "1e308", "-1e308", "1e999", "NaN", "-Infinity", "5" * 500, "5" * 5000, "[" * 5000,
    '"text"', '"\\u001b[2J"', "[]", "{}", "[null]", '[1e308,"a"]', "null",
)  # fmt: skip
READS = {
    "metrics.jsonl": (["plot", "--summary-only"], ["export", "--history"], ["export"]),
    "rollouts.jsonl": (["show", "--prompt", "toy"], ["show", "--worst", "1"], ["show", "--failed", "--full"]),
}
PLACES = {"metrics.jsonl": 3, "rollouts.jsonl": 10}  # from 0: of the last step; of rollouts the first of a group


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
    ("log", "key", "value", "found"),
    [
        ("metrics.jsonl", "reward/mean", '"high"', "reward/mean: str where a finite number or null belongs"),
        ("metrics.jsonl", "reward/mean", "true", "reward/mean: bool where"),
        ("metrics.jsonl", "seconds/step", "[1]", "seconds/step: list where"),
        ("metrics.jsonl", "policy/loss", "NaN", "policy/loss: float where"),
        ("metrics.jsonl", "policy/loss", "1e999", "policy/loss: float where"),
        ("metrics.jsonl", "budget/rollouts", "5" * 500, "budget/rollouts: int where"),
        ("metrics.jsonl", "step", '"1"', "it has no step"),
        ("metrics.jsonl", "step", "-", "it has no step"),
        ("metrics.jsonl", "step", "-3", "it has no step"),
        ("rollouts.jsonl", "prompt_id", "-", "prompt_id: Field required"),
        ("rollouts.jsonl", "text", "5", "text: Input should be an instance of str"),
        ("rollouts.jsonl", "tokens", "[1, 2, 1e99]", "tokens.2: Input should be a valid integer"),
        ("rollouts.jsonl", "tokens", "[1, 2, 99999999999999999999]", "tokens.2: Input should be less than"),
        ("rollouts.jsonl", "tokens", "[1]", "1 tokens, but 3 entries of 'logprobs'"),
        ("rollouts.jsonl", "finish", '"never"', "finish: Input should be 'stop' or 'length'"),
        ("rollouts.jsonl", "outcome", "[]", "outcome: Input should be a valid dictionary"),
        ("rollouts.jsonl", "outcome.kind", '"perfect"', "outcome.kind: Input should be"),
        ("rollouts.jsonl", "outcome.reward", "null", "outcome: a failed verdict has no reward"),
        ("rollouts.jsonl", "outcome.detail", "-", "outcome.detail: Field required"),
        ("rollouts.jsonl", "advantage", "Infinity", "advantage"),
        ("rollouts.jsonl", "weight", '"heavy"', "weight: Input should be a valid number"),
    ],
)
def test_a_malformed_row_is_named_by_file_line_and_key(run, log, key, value, found):
    damage(run, log, PLACES[log], lambda row: put(row, key, value))
    for result in read(run, log):
        assert result.exit_code == 2
        assert f"{log}, line {PLACES[log] + 1}: not " in result.stderr
        assert found in result.stderr
        assert "delete the line" in result.stderr


NO_ROWS = (
    b'{"step":1,"a":', b"[" * 5000, b"\x80\xff\x00\x1b[2J", b"", b'"step"', b'{"step":' + b"5" * 5000 + b"}",
    b'{"step":1,"text":"' + bytes(range(32)) + b'"}',
)  # fmt: skip


@pytest.mark.parametrize("log", READS)
@pytest.mark.parametrize("text", NO_ROWS, ids=range(len(NO_ROWS)))
def test_what_is_no_row_is_named_by_file_and_line(run, log, text):
    damage(run, log, PLACES[log], lambda row: text.replace(b"\n", b"") + b"\n")
    for result in read(run, log):
        assert result.exit_code == 2
        assert f"{log}, line {PLACES[log] + 1}: not " in result.stderr


@pytest.mark.parametrize("log", READS)
def test_a_last_row_that_is_cut_is_left_out_and_said(run, log):
    whole = [result.stdout for result in read(run, log)]
    with (run / log).open("ab") as file:
        file.write(b'{"step":9,"rew')
    for result, before in zip(read(run, log), whole, strict=True):
        assert result.stdout == before
        assert f"note: the last row of {run / log} is cut and left out" in result.stderr


@pytest.mark.parametrize("log", READS)
def test_whatever_stands_in_a_row_ends_in_text_or_a_message(run, log):
    original = (run / log).read_bytes()
    row = original.splitlines(keepends=True)[PLACES[log]]
    keys = [*json.loads(row), *(f"outcome.{name}" for name in json.loads(row).get("outcome", ()))]
    chosen = random.Random(0).sample([(key, value) for key in keys for value in (*VALUES, "-")], 25)
    for key, value in chosen:
        damage(run, log, PLACES[log], lambda row, key=key, value=value: put(row, key, value))
        read(run, log)
        (run / log).write_bytes(original)


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


@pytest.mark.parametrize("key", ["prompt_id", "prompt", "answer", "text", "reason", "outcome.answer", "outcome.detail"])
def test_nothing_in_a_rollout_acts_on_the_terminal_or_passes_for_a_line_of_ours(run, key):
    value = HOSTILE if key != "prompt_id" else f"toy-hard{HOSTILE}"
    damage(run, "rollouts.jsonl", PLACES["rollouts.jsonl"], lambda row: put(row, key, json.dumps(value)))
    shown = winnow("show", run, "--prompt", "toy", "--full")
    assert shown.exit_code == 0, shown.output
    assert not set(shown.stdout) & set("\x1b\x07\x9b\u202e\r")
    assert "\nstep 9" not in shown.stdout
    assert "\\x1b[2J" in shown.stdout
    scored = winnow("score", run, "--reward", "gsm8k", "--workers", "0")
    assert not set(scored.output) & set("\x1b\x07\x9b\u202e\r")


def test_a_verdict_in_a_scored_file_does_not_act_on_the_terminal(tmp_path):
    row = {"text": "#### 1", "answer": "1", "outcome": {"kind": HOSTILE}}
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
