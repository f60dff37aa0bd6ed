"""The command: one tiny profile from start to end, and options that are refused before a measurement."""

import csv
import json
import re

import pytest
from typer.testing import CliRunner

from winnow.commands import app
from winnow.recipes import recipe_paths

CONFIG = recipe_paths()["arithmetic"]
TINY = [
    "task.size=64",
    "evaluate.problems=4",
    "rollout.max_new_tokens=4",
    "rollout.rollouts_per_prompt=8",
    "update.tokens_per_micro_batch=128",
    "threads=1",
]


def call(*words):
    return CliRunner().invoke(app, ["profile", str(CONFIG), *(x for s in TINY for x in ("--set", s)), *words])


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    output = tmp_path_factory.mktemp("profile") / "tiny"
    result = call("--rollouts", "8,16", "--kept", "16", "--repeats", "1", "-o", str(output))  # a process per point
    assert result.exit_code == 0, result.output
    return result.output, output


def test_the_csv_has_every_point_with_its_work(profiled):
    with profiled[1].with_suffix(".csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["measured"], int(row["rollouts"])) for row in rows] == [
        ("sampling", 8),
        ("sampling", 16),
        *((f"update, {way}", 8) for way in ("accumulation", "selection")),
        *((f"update, {way}", 16) for way in ("no accumulation", "accumulation", "selection")),
    ]
    assert {row["ending"] for row in rows} == {"measured"}, rows
    assert [row["trained"] for row in rows] == ["", "", "8", "4", "16", "16", "8"]  # 4 of 8 are kept
    for row in rows:
        tokens = 4 * int(row["trained"] or row["rollouts"])  # every rollout has the maximum length
        assert int(row["tokens"]) == tokens
        assert float(row["seconds_per_token"]) == pytest.approx(float(row["seconds"]) / tokens)
        assert int(row["held_bytes"]) <= int(row["peak_bytes"]) + 2**20  # the kernel counts in batches of pages


def test_without_accumulation_there_is_one_micro_batch(profiled):
    with profiled[1].with_suffix(".csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["rollouts"] == "16" and row["measured"] != "sampling"]
    pieces = {row["measured"]: int(row["micro_batches"]) for row in rows}
    assert pieces["update, no accumulation"] == 1
    assert pieces["update, accumulation"] > pieces["update, selection"] > 1


def test_the_json_has_the_machine_the_points_and_the_conclusions(profiled):
    data = json.loads(profiled[1].with_suffix(".json").read_text(encoding="utf-8"))
    assert data["measured_on"]["threads"] == 1
    assert data["measured_on"]["versions"]["torch"]
    assert data["configuration"]["rollout"]["max_new_tokens"] == 4
    assert data["asked"] == {"rollouts": [8, 16], "kept": [16], "repeats": 1, "seconds": 120.0, "memory_limit": None}
    assert data["selects"] == "max_variance, 4 of 8"
    assert data["updates_end"]["update, no accumulation"] == {"fits": 16, "ends": None}
    at = {(point["measured"], point["rollouts"]): point["seconds"] for point in data["points"]}
    assert data["steps"][0] == {
        "rollouts": 8,
        "trained_on_all": at["sampling", 8] + at["update, accumulation", 8],
        "trained_on_selected": at["sampling", 8] + at["update, selection", 8],
    }


def test_the_terminal_shows_every_point_and_the_picture_is_drawn(profiled):
    text, output = profiled
    shown = re.findall(r"(?m)^(sampling|update, [a-z ]+?) {2,}(\d+) ", text)
    with output.with_suffix(".csv").open(encoding="utf-8", newline="") as file:
        assert shown == [(row["measured"], row["rollouts"]) for row in csv.DictReader(file)]
    assert output.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert "max_variance, 4 of 8" in output.with_suffix(".svg").read_text(encoding="utf-8")


def test_no_run_folder_is_made_and_nothing_is_overwritten(profiled):
    files = {path: path.read_bytes() for path in profiled[1].parent.iterdir()}
    assert sorted(path.suffix for path in files) == [".csv", ".json", ".png", ".svg"]
    assert call("-o", str(profiled[1])).exit_code == 2
    assert {path: path.read_bytes() for path in profiled[1].parent.iterdir()} == files


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["--rollouts", "8,many"], ["--rollouts", "'many'"]),
        (["--kept", "1"], ["--kept", "'1'"]),
        (["--memory-limit", "2"], ["'2'"]),
        (["--set", "model.path=/nowhere"], ["'/nowhere'"]),
        (["-o", "/"], ["--output"]),
        (["--seconds", "inf"], ["--seconds"]),
    ],
)
def test_an_impossible_measurement_is_refused_first(words, names):
    result = call(*words)
    assert result.exit_code == 2
    assert all(name in result.output for name in names), result.output
    assert "tokens/s" not in result.output  # the head of the table
