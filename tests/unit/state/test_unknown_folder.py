"""A folder that is no run: every command lists the formats that are read, and what was found."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from refusals import check_printed_error
from winnow.commands import app

FIXTURES = Path(__file__).parents[2] / "fixtures"
COMMANDS = (["show"], ["plot", "--summary-only"], ["compare"], ["replay"], ["report"])
FOUND = {  # what is in a folder, and what the message names
    "a W&B run": ({"wandb/run-1/run-1.wandb": "x"}, ("Weights & Biases", "wandb")),
    "a table of W&B": ({"completions.table.json": "{}"}, ("Weights & Biases", "completions.table.json")),
    "output of a console": ({"train.log": "step 1 loss 0.5"}, ("console", "train.log")),
    "events of TensorBoard": ({"events.out.tfevents.1.host": "x"}, ("TensorBoard", "events.out.tfevents.1.host")),
    "rows of an unknown program": ({"rows.jsonl": '{"prompt": "a", "r": 1}\n'}, ("rows.jsonl", "prompt, r")),
    "a model": ({"model.safetensors": "x", "config.json": "{}"}, ("weights", "model.safetensors")),
    "nothing": ({}, ("nothing",)),
    "other names": ({"notes.md": "x"}, ("notes.md",)),
}
FORMATS = ("metrics.jsonl", "TRL", "verl", "prime-rl", "OpenRLHF", "SkyRL")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
@pytest.mark.parametrize("found", FOUND)
def test_an_unknown_folder_is_described(tmp_path, command, found):
    files, named = FOUND[found]
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    result = CliRunner().invoke(app, [*command, str(tmp_path)])
    check_printed_error(result, *named, *FORMATS, code="data.missing")


def test_the_runs_in_a_folder_are_named(tmp_path):
    for name in ("trl_run", "verl_run", "prime_rl_run"):
        shutil.copytree(FIXTURES / name, tmp_path / "all" / name)
    for command in (["show"], ["plot", "--summary-only"], ["replay"], ["report"]):
        result = CliRunner().invoke(app, [*command, str(tmp_path / "all")])
        check_printed_error(result, "prime_rl_run, trl_run, verl_run", code="data.missing")


def test_the_runs_of_a_sweep_are_named(tmp_path):
    (tmp_path / "grpo").mkdir()
    (tmp_path / "sweep.json").write_text("{}")
    shutil.copytree(FIXTURES / "trl_run", tmp_path / "grpo" / "seed-0")
    result = CliRunner().invoke(app, ["show", str(tmp_path)])
    check_printed_error(result, "grpo/seed-0", "name one of these runs", code="data.missing")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_file_of_settings_is_no_run(tmp_path, command):
    file = tmp_path / "sweep.toml"
    file.write_text('config = "arithmetic"\noutput = "sweeps/x"\n')
    result = CliRunner().invoke(app, [*command, str(file)])
    check_printed_error(result, str(file), "output", code="data.malformed")


def test_a_file_is_no_model(tmp_path):
    file = tmp_path / "sweep.toml"
    file.write_text('config = "arithmetic"\noutput = "sweeps/x"\n')
    check_printed_error(CliRunner().invoke(app, ["eval", str(file)]), str(file), "--config", code="data.missing")
