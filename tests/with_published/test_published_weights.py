"""The published model: its tokenizer is the published one to the byte, and the recipes for it train."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from winnow.config_file import load
from winnow.installed import is_installed
from winnow.models.folder import PUBLISHED
from winnow.models.load import load_tokenizer, model_stop_tokens
from winnow.recipes import find_config
from winnow.state.logbook import read_metrics
from winnow.training.fit import fit
from winnow.training.resolve import resolve_members

pytestmark = pytest.mark.published

# SHA-256 of the published files of HuggingFaceTB/SmolLM2-135M-Instruct.
TOKENIZER = "9ca9acddb6525a194ec8ac7a87f24fbba7232a9a15ffa1af0c1224fcd888e47c"
TOKENIZER_CONFIG = "4ec77d44f62efeb38d7e044a1db318f6a939438425312dfa333b8382dbad98df"
GENERATION = "87b916edaaab66b3899b9d0dd0752727dff6666686da0504d89ae0a6e055a013"


def read(folder: Path, name: str) -> dict:
    return json.loads((folder / name).read_text(encoding="utf-8"))


def sha256(content: bytes | dict) -> str:
    """Of bytes, or of settings in the form in which transformers wrote the published ones."""
    if isinstance(content, dict):
        content = f"{json.dumps(content, indent=2, ensure_ascii=False)}\n".encode()
    return hashlib.sha256(content).hexdigest()


def test_the_tokenizer_is_the_published_one_to_the_byte(folder):
    assert sha256((folder / "tokenizer.json").read_bytes()) == TOKENIZER


def test_the_settings_have_the_published_template_and_special_tokens(folder):
    """Those of a GGUF file lack four keys, which transformers derives from the others."""
    settings = read(folder, "tokenizer_config.json")
    whole = ("content", "lstrip", "normalized", "rstrip", "single_word", "special")
    published = {
        "add_prefix_space": False,
        "added_tokens_decoder": {
            token: {key: one[key] for key in whole} for token, one in settings["added_tokens_decoder"].items()
        },
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        **{key: settings[key] for key in ("bos_token", "chat_template", "clean_up_tokenization_spaces", "eos_token")},
        **{key: settings[key] for key in ("model_max_length", "pad_token")},
        "tokenizer_class": "GPT2Tokenizer",
        "unk_token": settings["unk_token"],
        "vocab_size": 49152,
    }
    assert sha256(published) == TOKENIZER_CONFIG
    generation = {key: read(folder, "generation_config.json")[key] for key in ("bos_token_id", "eos_token_id")}
    pad = {"pad_token_id": read(folder, "generation_config.json")["pad_token_id"]}
    assert sha256({"_from_model_config": True, **generation, **pad, "transformers_version": "4.42.3"}) == GENERATION


def test_the_end_of_a_turn_ends_a_rollout_and_is_the_padding(folder):
    tokenizer = load_tokenizer(PUBLISHED)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert (model_stop_tokens(PUBLISHED, tokenizer), tokenizer.pad_token_id) == ((end,), end)
    text = tokenizer.apply_chat_template([{"role": "user", "content": "a  47"}], tokenize=False)
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert tokenizer.convert_ids_to_tokens(tokenizer("a  47").input_ids) == ["a", "ĠĠ", "4", "7"]


def test_the_weights_are_bfloat16_and_the_output_layer_is_the_embedding(folder):
    weights = load_file(folder / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
    assert sum(tensor.numel() for tensor in weights.values()) == 134_515_008
    assert "lm_head.weight" not in weights
    assert read(folder, "config.json")["tie_word_embeddings"]


def test_the_folder_says_where_the_weights_are_from(folder):
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "apache-2.0" in card
    assert "HuggingFaceTB" in card
    for line in (folder / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split()
        assert sha256((folder / name).read_bytes()) == digest


SMALL = {
    "threads": 1,
    "device": "cpu",
    "steps": 1,
    "task.size": 8,
    "rollout.prompts_per_step": 1,
    "rollout.rollouts_per_prompt": 4,
    "rollout.max_new_tokens": 12,
    "select.keep_per_prompt": 2,
    "evaluate.every": 0,
    "evaluate.problems": 1,
    "evaluate.rollouts_per_prompt": 1,
    "evaluate.greedy": False,
    "verify.workers": 0,
    "checkpoint.every": 0,
}


MORE = {  # as configs/sweeps/smollm2_instructions.toml has it, in less time than float32
    "smollm2_instructions": {
        "model.dtype": "bfloat16",
        "optimizer.master_weights": False,
        "optimizer.stochastic_rounding": True,
    }
}


@pytest.mark.parametrize("name", ["smollm2_arithmetic", "smollm2_instructions"])
def test_a_recipe_for_it_trains(name, folder, tmp_path):
    if name == "smollm2_instructions" and not is_installed("if_verifiable"):
        pytest.skip("needs the extra winnow-rl[instructions]")
    path = find_config(name)
    sets = {**SMALL, **MORE.get(name, {})}
    config = load(path, [f"{key}={json.dumps(value)}" for key, value in sets.items()] + [f"output={tmp_path / 'run'}"])
    result = fit(resolve_members(config, base=path.parent))
    (row,) = [row for row in read_metrics(result.folder) if "budget/rollouts" in row]
    assert row["budget/rollouts"] == 4
    assert row["outcome/failed"] == 0
    assert 0 <= row["reward/mean"] <= 1.1
