"""docs/published.md goes through every flag of the blog's system, and names keys and options that exist."""

from __future__ import annotations

import re

import pytest
from doc_pages import PAGES
from test_named_things import OPTIONS
from typer.testing import CliRunner

from winnow.commands import app
from winnow.commands.list import keys

PAGE = PAGES["docs/published.md"].partition("\n## The flags of the blog's system\n")[2]

# As argparse declares them in its scripts.
FLAGS = {
    "scripts/run_grpo.py": """
        --model-name-or-path --train-data-path --val-data-path --output-dir --n-grpo-steps --learning-rate
        --rollout-batch-size --group-size --train-batch-size --gradient-accumulation-steps --epochs-per-rollout-batch
        --loss-type --cliprange --no-std-normalization --sampling-temperature --sampling-max-tokens --single-gpu
        --policy-device --vllm-device --gpu-memory-utilization --max-seq-length-train --num-train-samples
        --num-val-samples --eval-steps --save-steps --seed --wandb-project""",
    "scripts/run_math_eval.py": """
        --model-name-or-path --input-path --output-path --num-gpus --max-tokens --temperature --num-samples
        --backend""",
    "scripts/plot_training.py": "--input --output --summary-only",
    "scripts/download_dataset.py and scripts/download_model.py": """
        --dataset-id --output-dir --splits --force --model-id --revision --token --include --exclude --cache-only""",
}


def rows(heading):
    """The cells of the table under a heading."""
    section = PAGE.partition(f"\n### {heading}\n")[2].partition("\n### ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


HEADINGS = re.findall(r"(?m)^### (.*)$", PAGE)
NAMED = sorted({code for heading in HEADINGS for row in rows(heading) for code in re.findall("`(.*?)`", row[1])})
CONFIG_KEYS = {key.name for key in keys()}


@pytest.mark.parametrize("script", FLAGS)
def test_every_flag_stands_there_once_and_no_other(script):
    assert sorted(row[0].strip("`") for row in rows(script)) == sorted(FLAGS[script].split())


@pytest.mark.parametrize("heading", HEADINGS)
def test_a_row_names_something_or_says_why_not(heading):
    assert rows(heading)
    for name, winnow, note in rows(heading):
        assert re.search("`", winnow) or (winnow == "none" and note), f"{name}: {winnow!r}"


@pytest.mark.parametrize("name", [name for name in NAMED if not name.startswith("winnow ")])
def test_a_key_that_is_named_exists(name):
    assert name in CONFIG_KEYS | OPTIONS


@pytest.mark.parametrize("command", [name for name in NAMED if name.startswith("winnow ")])
def test_a_command_that_is_named_exists(command):
    _, name, *options = command.split()
    shown = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    assert all(re.search(rf"{option}\b", shown.output) for option in options)


def test_the_page_is_read():
    assert len(NAMED) > 30
