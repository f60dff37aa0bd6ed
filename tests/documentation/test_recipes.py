"""docs/recipes.md: each command passes `check` for a GPU of 80 GB, planned from the published shape of its model."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from doc_pages import PAGES
from typer.testing import CliRunner

from winnow.commands import app
from winnow.models.folder import settings_folder

PAGE = PAGES["docs/recipes.md"]
RECIPE = re.findall(r"(?ms)^```toml\n(.*?)^```", PAGE)
COMMANDS = [shlex.split(line)[2:] for line in re.findall(r"(?m)^    (winnow train .*)$", PAGE)]

# Of the published config.json: hidden size, layers, heads, key-value heads, inner size, vocabulary, tied.
SHAPES = {
    "0.5B": (896, 24, 14, 2, 4864, 151936, True),
    "1.5B": (1536, 28, 12, 2, 8960, 151936, True),
    "3B": (2048, 36, 16, 2, 11008, 151936, True),
    "7B": (3584, 28, 28, 4, 18944, 152064, False),
}
RATES = {"all weights": "1e-06", "adapter": "1e-05"}


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


def test_there_is_a_start_for_each_size_and_number_of_gpus():
    assert len(RECIPE) == 1
    assert sorted((ranks_of(c), size_of(c)) for c in COMMANDS) == sorted((n, s) for n in "128" for s in SHAPES)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: f"{ranks_of(c)} GPUs {size_of(c)}")
def test_a_recipe_passes_check(command, tmp_path, monkeypatch):
    for module in ("winnow.commands.check.dry_run", "winnow.memory.plan"):
        monkeypatch.setattr(f"{module}.free_on_device", lambda device: None)  # unknown: this machine is not the target
    for split in ("train", "test"):
        rows = [json.dumps({"question": f"{i} + 1?", "answer": f"#### {i + 1}"}) + "\n" for i in range(100)]
        (tmp_path / f"{split}.jsonl").write_text("".join(rows))
    model = tmp_path / "model"
    model.mkdir()
    (tmp_path / "recipe.toml").write_text(RECIPE[0])
    arguments = [str(tmp_path / "recipe.toml"), *command[1:], "--memory", "80GiB"]
    data, path = f"task.path={tmp_path}", f"model.path={model_folder(size_of(command), model)}"
    result = CliRunner().invoke(app, ["check", *arguments, "--set", data, "--set", path])
    assert result.exit_code == 0, result.output
    assert not [line for line in result.output.splitlines() if line.startswith("! ")], "no key is to be changed"
    rate = RATES["adapter" if "model.lora.rank=32" in command else "all weights"]
    assert f"optimizer.learning_rate = {rate}" in result.output
