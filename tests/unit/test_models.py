from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import GenerationConfig

from winnow.errors import ConfigError, DataError
from winnow.models.architecture import CONFIGS, architecture
from winnow.models.load import BUNDLED, check_tokenizer, describe, load, load_tokenizer, stop_tokens

TOKENIZER = load_tokenizer("bundled")
SMALL = {"hidden": 16, "layers": 1, "heads": 2, "kv_heads": 1, "intermediate": 16, "context": 64}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the bundled policy without its weights, to be damaged."""
    shutil.copytree(BUNDLED, tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors"))
    return tmp_path / "model"


def edit(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@given(st.text())
@settings(max_examples=300, deadline=None)
def test_every_text_comes_back_from_its_tokens(text: str) -> None:
    tokens = TOKENIZER.encode(text, add_special_tokens=False)
    assert TOKENIZER.decode(tokens) == text
    assert all(0 <= token < 512 for token in tokens)


@pytest.mark.parametrize("text", [" 12  3", "e\u0301 é", "\r\n\t\x00", "日本 🎉", "don 't . , !", "<think></think>"])
def test_nothing_is_normalised(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text, add_special_tokens=False)) == text


def test_digits_stand_alone_and_tags_are_ordinary_tokens() -> None:
    tokens = TOKENIZER.encode("4+8=12</think> <answer>132</answer><|endoftext|>", add_special_tokens=False)
    assert TOKENIZER.convert_ids_to_tokens(tokens) == [
        *("4", "+", "8", "=", "1", "2", "</think>", "Ġ", "<answer>", "1", "3", "2", "</answer>", "<|endoftext|>")
    ]
    assert TOKENIZER.decode(tokens, skip_special_tokens=True) == "4+8=12</think> <answer>132</answer>"


def test_a_prompt_opens_the_reasoning() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 4 + 8?"}]
    text = TOKENIZER.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert text == "<|system|>Be brief.<|endoftext|><|user|>What is 4 + 8?<|endoftext|><|assistant|><think>"
    tokens = TOKENIZER.apply_chat_template(messages[1:], add_generation_prompt=True, return_dict=False)
    assert len(tokens) == 13


def test_a_further_turn_continues_prompt_and_rollout() -> None:
    first = [{"role": "user", "content": "What is 4 + 8?"}]
    said = "4+8=12</think> <answer>12</answer>"
    prompt = TOKENIZER.apply_chat_template(first, add_generation_prompt=True, tokenize=False)
    later = [*first, {"role": "assistant", "content": "<think>" + said}, {"role": "user", "content": "And 5?"}]
    assert TOKENIZER.apply_chat_template(later, tokenize=False).startswith(prompt + said + TOKENIZER.eos_token)


def test_an_unknown_role_is_refused() -> None:
    with pytest.raises(Exception, match="unknown role tool"):
        TOKENIZER.apply_chat_template([{"role": "tool", "content": "12"}], tokenize=False)


def test_the_bundled_policy_is_small_and_loads_for_sampling() -> None:
    loaded = load("bundled")
    assert sum(weight.numel() for weight in loaded.model.parameters()) < 3_000_000
    assert sum(file.stat().st_size for file in BUNDLED.iterdir()) < 6_000_000
    assert not loaded.model.training
    assert loaded.model.dtype == torch.float32
    assert loaded.model.config._attn_implementation == "sdpa"
    assert loaded.stop_tokens == (TOKENIZER.eos_token_id,)
    assert TOKENIZER.pad_token_id not in loaded.stop_tokens


def test_the_bundled_policy_is_read_exactly() -> None:
    exact = load("bundled", dtype="float64").model.state_dict()
    for name, weight in load("bundled").model.state_dict().items():
        torch.testing.assert_close(weight.double(), exact[name], rtol=0, atol=0)


def test_the_bundled_policy_does_column_work() -> None:
    loaded = load("bundled")
    tokens = TOKENIZER.apply_chat_template(
        [{"role": "user", "content": "What is 21 + 34?"}], add_generation_prompt=True, return_tensors="pt"
    )
    out = loaded.model.generate(**tokens, max_new_tokens=48, do_sample=False)
    text = TOKENIZER.decode(out[0, tokens["input_ids"].shape[1] :])
    assert text == "1+4=5 2+3=5</think> <answer>55</answer><|endoftext|>"


def test_description_needs_no_weights(folder: Path) -> None:
    description = describe(str(folder))
    assert (description.family, description.context, description.vocabulary) == ("qwen2", 2048, 512)


@pytest.mark.parametrize("arch", CONFIGS)
def test_a_random_model_is_a_function_of_its_seed(arch: str) -> None:
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    first, same, other = (architecture(arch, TOKENIZER, seed=seed, **SMALL) for seed in (1, 1, 2))
    assert torch.equal(before, torch.random.get_rng_state())
    weights = [model.get_input_embeddings().weight for model in (first, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert first.config.vocab_size == len(TOKENIZER)


@pytest.mark.parametrize("arch", CONFIGS)
def test_a_saved_model_loads_again_without_dropout(arch: str, tmp_path: Path) -> None:
    model = architecture(arch, TOKENIZER, **SMALL)
    model.save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    edit(tmp_path / "config.json", attention_dropout=0.5)
    loaded = load(str(tmp_path))
    ids = torch.arange(8).unsqueeze(0)
    assert torch.equal(loaded.model.train()(ids).logits, model.eval()(ids).logits)
    assert loaded.tokenizer.encode("e\u0301 12") == TOKENIZER.encode("e\u0301 12")
    assert describe(str(tmp_path)).context == 64


def test_an_unknown_architecture_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'qwen2'"):
        architecture("qwen3", TOKENIZER)


def test_stop_tokens_join_tokenizer_and_generation_settings() -> None:
    eos = TOKENIZER.eos_token_id
    assert stop_tokens(TOKENIZER) == (eos,)
    assert stop_tokens(TOKENIZER, GenerationConfig()) == (eos,)
    assert stop_tokens(TOKENIZER, GenerationConfig(eos_token_id=9)) == (eos, 9)
    assert stop_tokens(TOKENIZER, GenerationConfig(eos_token_id=[9, eos, 7])) == (eos, 7, 9)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pad_token": None}, 'no pad token.*set "pad_token" in .*tokenizer_config.json'),
        ({"eos_token": None}, 'no rollout could ever stop; set "eos_token" in .*tokenizer_config.json'),
        ({"pad_token": "<|endoftext|>"}, "pads with its eos token.*never teaches the policy to stop.*it has '<|pad|>'"),
    ],
)
def test_a_tokenizer_that_cannot_pad_or_stop_is_refused(folder: Path, changes: dict[str, Any], message: str) -> None:
    edit(folder / "tokenizer_config.json", **changes)
    with pytest.raises(DataError, match=message.replace("|", r"\|")):
        load_tokenizer(str(folder))
    with pytest.raises(DataError, match=message.replace("|", r"\|")):
        load(str(folder))  # before the weights, which are not there


def test_a_good_tokenizer_passes() -> None:
    check_tokenizer(TOKENIZER, "bundled")


@pytest.mark.parametrize("path", ["./nowhere", "/nowhere/model", "nowhere", "a/b/c"])
def test_a_missing_folder_is_named(path: str) -> None:
    for reader in (describe, load_tokenizer, load):
        with pytest.raises(DataError, match=f"there is no folder '{path}'; give \"bundled\""):
            reader(path)


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("config.json", "no usable config.json of"),
        ("tokenizer.json", "has no tokenizer; copy tokenizer.json"),
        (None, "no usable weights of"),
    ],
)
def test_a_missing_file_is_named(folder: Path, missing: str | None, message: str) -> None:
    if missing is not None:
        (folder / missing).unlink()
    with pytest.raises(DataError, match=message):
        load(str(folder))


@pytest.mark.parametrize(("broken", "what"), [("model.safetensors", "weights"), ("tokenizer.json", "tokenizer")])
def test_a_truncated_file_is_named(folder: Path, broken: str, what: str) -> None:
    (folder / broken).write_bytes((BUNDLED / broken).read_bytes()[:1000])
    with pytest.raises(DataError, match=f"no usable {what} of"):
        load(str(folder))


def test_weights_that_would_be_random_are_refused(folder: Path) -> None:
    weights = load_file(BUNDLED / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DataError, match=r"1 weights are not in the files and would be random, 'model.norm.weight'"):
        load(str(folder))


def test_a_foreign_tokenizer_is_refused(folder: Path) -> None:
    edit(folder / "config.json", vocab_size=300)
    with pytest.raises(DataError, match="the tokenizer has 512 tokens but the model only 300"):
        load(str(folder))


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'float32'"):
        load("bundled", dtype="float3")
