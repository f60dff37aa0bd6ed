"""docs/one-gpu.md: each command passes `check`, planned from the published shape of its model, with the memory that the
page has; its least seconds are the arithmetic of gpu_bound.py, and its configuration is the recipe.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import tomllib
from pathlib import Path

import pytest
from doc_pages import PAGES
from gpu_bound import CARDS, SHAPES, least_seconds
from typer.testing import CliRunner

from winnow.commands import app
from winnow.config_file import load, validate
from winnow.models.folder import settings_folder
from winnow.recipes import recipe_paths

PAGE = PAGES["docs/one-gpu.md"]
COMMANDS = [shlex.split(line)[2:] for line in re.findall(r"(?m)^(winnow train .*)$", PAGE.replace("\\\n", " "))]
ROWS = re.findall(r"(?m)^\| (\d+) GB \| (\S+) \| (all weights|adapter) \| (\S+) GiB \| (\S+) \| (\S+) \|$", PAGE)
CARD = {"24": "RTX 4090", "80": "A100 80 GB"}
PREDICTED = 44.7  # by the command of the page, which a test runs


def model_folder(size, folder):
    """The shape, and the bundled tokenizer with a chat template."""
    hidden, layers, heads, groups, inner, vocabulary, tied = SHAPES[size]
    settings = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "intermediate_size": inner,
        "vocab_size": vocabulary,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(settings))
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(settings_folder("bundled") / file, folder / file)
    template = Path(__file__).parents[1] / "fixtures" / "chat_templates" / "qwen2_5.jinja"
    shutil.copy(template, folder / "chat_template.jinja")
    return folder


def size_of(command):
    (size,) = re.findall(r"model\.path=Qwen/Qwen2\.5-([\d.]+B)-Instruct", " ".join(command))
    return size


def ranks_of(command):
    return command[command.index("--ranks") + 1] if "--ranks" in command else "1"


def test_there_is_a_command_for_each_row_and_for_several_gpus():
    assert len(ROWS) == 7
    alone = {
        (size_of(c), "adapter" if "model.lora.rank=32" in c else "all weights") for c in COMMANDS if ranks_of(c) == "1"
    }
    assert {(size, trained) for _, size, trained, *_ in ROWS} == alone
    assert sorted(ranks_of(command) for command in COMMANDS) == ["1"] * 6 + ["2", "8", "8"]


def planned(tmp_path, monkeypatch, size, *arguments, command="check"):
    """What the command prints for a model of that size, and prompts of up to the 512 tokens that are kept."""
    for module in ("winnow.commands.check.dry_run", "winnow.memory.plan"):
        monkeypatch.setattr(f"{module}.free_on_device", lambda device: None)  # unknown: this machine is not the target
    # A term has four tokens, and the rest of a prompt fewer than 270: the longest that is kept is one of `long`.
    long = [(f"{'1 + ' * i}1?", i + 1) for i in range(60, 150)]
    short = [(f"{i} + 1?", i + 1) for i in range(300)]
    for split, problems in (("train", short[:80]), ("test", [*long, *short[80:]])):
        rows = [json.dumps({"question": asked, "answer": f"#### {gold}"}) + "\n" for asked, gold in problems]
        (tmp_path / f"{split}.jsonl").write_text("".join(rows))
    (tmp_path / "model").mkdir()
    model = model_folder(size, tmp_path / "model")
    sets = (f"task.path={tmp_path}", f"model.path={model}", "device=cuda", "verify.workers=0")
    result = CliRunner().invoke(app, [command, *arguments, *(part for key in sets for part in ("--set", key))])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: f"{ranks_of(c)} GPUs {size_of(c)}")
def test_a_command_passes_check_with_the_memory_of_the_page(command, tmp_path, monkeypatch):
    trained = "adapter" if "model.lora.rank=32" in command else "all weights"
    rows = [row for row in ROWS if row[1:3] == (size_of(command), trained)] if ranks_of(command) == "1" else []
    card = max((int(row[0]) for row in rows), default=80)
    output = planned(tmp_path, monkeypatch, size_of(command), *command, "--memory", f"{card}GiB")
    advice = [line for line in output.splitlines() if line.startswith("! ")]
    assert all("longer than prompt.max_prompt_tokens" in line for line in advice), "no key is to be changed"
    assert f"optimizer.learning_rate = {'1e-05' if trained == 'adapter' else '1e-06'}" in output
    for row in rows:
        assert f"cuda:0: {row[3]} GiB at most" in output


def test_the_smaller_card_has_room_for_what_is_planned():
    assert all(float(row[3]) < int(row[0]) * 0.9 for row in ROWS)


def test_the_seconds_are_the_arithmetic():
    factor = PREDICTED / least_seconds("3B", "L40S", adapter=True)
    assert f"{factor:.1f} times the lower bound" in PAGE
    assert f"computes {PREDICTED} seconds" in " ".join(PAGE.split())
    assert set(CARD.values()) < set(CARDS)
    for card, size, trained, _, least, predicted in ROWS:
        seconds = least_seconds(size, CARD[card], adapter=trained == "adapter")
        assert (least, predicted) == (f"{seconds:.1f}", f"{factor * seconds:.0f}")


def test_the_plan_computes_the_seconds_of_the_page(tmp_path, monkeypatch):
    costs = str(Path(__file__).parents[2] / "configs" / "costs" / "pods_a_step.json")
    arguments = ("gsm8k", "--set", "model.lora.rank=32", "--memory", "80GiB", "--costs", costs, "--length", "256")
    output = planned(tmp_path, monkeypatch, "3B", *arguments, command="plan")
    (seconds,) = re.findall(r"(?m)^configuration +16 +4 +32 +\S+ +(\S+)", output)
    assert float(seconds) == PREDICTED


def test_the_configuration_of_the_page_is_the_recipe():
    (text,) = re.findall(r"(?ms)^```toml\n(.*?)^```", PAGE)
    shown = validate(tomllib.loads(text), source="the page", text=text)
    assert shown == load(recipe_paths()["gsm8k"])
