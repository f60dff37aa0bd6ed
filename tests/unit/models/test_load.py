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
from transformers import Gemma3Config, GenerationConfig, Phi3Config

from published_models import make
from refusals import refused
from winnow.errors import ConfigError, DataError
from winnow.models.architecture import CONFIGS, architecture
from winnow.models.folder import BUNDLED, _download
from winnow.models.load import describe, load, load_tokenizer, model_stop_tokens, stop_tokens
from winnow.models.meta import meta_model

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


def test_digits_are_single_tokens_and_tags_are_ordinary_tokens() -> None:
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
    text = "4+8=12</think> <answer>12</answer>"
    prompt = TOKENIZER.apply_chat_template(first, add_generation_prompt=True, tokenize=False)
    later = [*first, {"role": "assistant", "content": "<think>" + text}, {"role": "user", "content": "And 5?"}]
    assert TOKENIZER.apply_chat_template(later, tokenize=False).startswith(prompt + text + TOKENIZER.eos_token)


def test_an_unknown_role_is_refused() -> None:
    with pytest.raises(Exception, match="tool"):
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
    with refused(ConfigError, "'qwen3'", "'qwen2'", code="config.value"):
        architecture("qwen3", TOKENIZER)


def test_stop_tokens_join_tokenizer_and_generation_settings() -> None:
    eos = TOKENIZER.eos_token_id
    assert stop_tokens(TOKENIZER) == (eos,)
    assert stop_tokens(TOKENIZER, GenerationConfig()) == (eos,)
    assert stop_tokens(TOKENIZER, GenerationConfig(eos_token_id=9)) == (eos, 9)
    assert stop_tokens(TOKENIZER, GenerationConfig(eos_token_id=[9, eos, 7])) == (eos, 7, 9)


def test_a_tokenizer_that_cannot_stop_is_refused(folder: Path) -> None:
    edit(folder / "tokenizer_config.json", eos_token=None)
    for reader in (load_tokenizer, load):  # before the weights, which are not there
        with refused(
            DataError, folder / "tokenizer_config.json", "eos_token", key="model.path", code="data.unfit_model"
        ):
            reader(str(folder))


@pytest.mark.parametrize("listed", [[2, 512, 10**6, -1], 2])
def test_end_tokens_that_cannot_be_sampled_are_left_out(folder: Path, listed: Any) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": listed}))
    assert model_stop_tokens(str(folder), TOKENIZER) == (1, 2)


def test_without_generation_settings_the_model_s_own_name_the_ends(folder: Path) -> None:
    (folder / "generation_config.json").unlink(missing_ok=True)
    edit(folder / "config.json", eos_token_id=[2, 1])
    assert model_stop_tokens(str(folder), TOKENIZER) == (1, 2)


@pytest.mark.parametrize("path", ["./nowhere", "/nowhere/model", "nowhere", "a/b/c", "~nobody/model"])
def test_a_missing_folder_is_named(path: str) -> None:
    for reader in (describe, load_tokenizer, load):
        with refused(DataError, f"{path!r}", '"bundled"', key="model.path", code="data.missing"):
            reader(path)


@pytest.mark.parametrize(
    ("missing", "named", "code"),
    [
        ("config.json", "config.json", "data.unreadable"),
        ("tokenizer.json", "tokenizer.json", "data.missing"),
        (None, "model.safetensors", "data.missing"),
    ],
)
def test_a_missing_file_is_named(folder: Path, missing: str | None, named: str, code: str) -> None:
    if missing is not None:
        (folder / missing).unlink()
    with refused(DataError, folder, named, key="model.path", code=code):
        load(str(folder))


@pytest.mark.parametrize(("broken", "what"), [("model.safetensors", "weights"), ("tokenizer.json", "tokenizer")])
def test_a_truncated_file_is_named(folder: Path, broken: str, what: str) -> None:
    (folder / broken).write_bytes((BUNDLED / broken).read_bytes()[:1000])
    with refused(DataError, folder, what, key="model.path", code="data.unreadable"):
        load(str(folder))


def test_weights_that_would_be_random_are_refused(folder: Path) -> None:
    weights = load_file(BUNDLED / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with refused(DataError, 1, "'model.norm.weight'", key="model.path", code="data.missing"):
        load(str(folder))


def test_a_foreign_tokenizer_is_refused(folder: Path) -> None:
    edit(folder / "config.json", vocab_size=300)
    with refused(DataError, 512, 300, key="model.path", code="data.unfit_model"):
        load(str(folder))


def test_an_unknown_dtype_is_refused() -> None:
    with refused(ConfigError, "'float3'", "'float32'", key="model.dtype", code="config.value"):
        load("bundled", dtype="float3")


# Where models are -----------------------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's cache with Qwen2.5 as owner/cached; nothing else can be reached."""
    import huggingface_hub.constants as hub

    monkeypatch.setattr("winnow.models.folder._download", _download.__wrapped__)  # another test had another cache
    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    model = tmp_path / "hub" / "models--owner--cached"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text("0" * 40)
    (model / "snapshots" / ("0" * 40)).mkdir(parents=True)
    return make("qwen2.5", model / "snapshots" / ("0" * 40))


def test_a_model_in_the_hub_s_cache_is_read_as_a_folder_is(cache: Path) -> None:
    loaded = load("owner/cached")
    assert loaded.model.name_or_path == "owner/cached", "an adapter names its base by the configured path"
    assert loaded.tokenizer.get_vocab() == load_tokenizer(str(cache)).get_vocab()
    assert loaded.stop_tokens == (loaded.tokenizer.convert_tokens_to_ids("<|endoftext|>"),)
    assert loaded.files["tokenizer.json"] == (cache / "tokenizer.json").read_bytes()


def test_settings_need_no_weights_in_the_cache(cache: Path) -> None:
    (cache / "model.safetensors").unlink()
    assert describe("owner/cached").context == 131072
    with refused(DataError, "'owner/cached'", "model.safetensors", key="model.path", code="data.missing"):
        load("owner/cached")


def test_what_is_neither_here_nor_in_the_hub_could_have_been_either(cache: Path) -> None:
    for path in ("owner/other", "a--b/c", "a/b."):  # the latter two break rules that the hub has for ids
        with refused(DataError, f"'{path}'", "hub", key="model.path", code="data.missing"):
            describe(path)


def test_a_path_below_a_folder_that_is_here_is_no_hub_id(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    with refused(DataError, "'models/qwen'", key="model.path", code="data.missing"):
        describe("models/qwen")
    (tmp_path / "owner").mkdir()
    assert describe("owner/cached").family == "qwen2", "the cache has it"


# What is opened -------------------------------------------------------------------------------------------------------


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """A model in several files and their index, and the weights once more as a pickle."""
    model = load("bundled").model
    model.save_pretrained(tmp_path, max_shard_size="500KB")
    TOKENIZER.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "outside").mkdir()
    return tmp_path


def test_a_model_in_several_files_is_read(sharded: Path) -> None:
    assert len(list(sharded.glob("*.safetensors"))) > 2
    assert load(str(sharded)).model.num_parameters() == load("bundled").model.num_parameters()


@pytest.mark.parametrize(
    "name",
    ["pytorch_model.bin", "outside/model.safetensors", "../model.safetensors", "/tmp/model.safetensors", ".safetensors",
     "model.safetensors.bin", "..\\model.safetensors", "", 3, None],
)  # fmt: skip
def test_an_index_names_safetensors_in_its_own_folder_and_nothing_else(
    sharded: Path, name: object, monkeypatch
) -> None:
    monkeypatch.setattr(torch, "load", lambda *a, **k: pytest.fail("a pickle was opened"))
    index = sharded / "model.safetensors.index.json"
    names = json.loads(index.read_text())["weight_map"]
    edit(index, weight_map={**names, next(iter(names)): name})
    with refused(DataError, index, repr(str(name)), key="model.path", code="data.unfit_model"):
        load(str(sharded))


@pytest.mark.parametrize("text", ["", "[]", '{"weight_map": 3}', "{}", "[" * 100_000])
def test_an_index_that_is_none_is_named(sharded: Path, text: str) -> None:
    (sharded / "model.safetensors.index.json").write_text(text)
    with refused(DataError, sharded / "model.safetensors.index.json", key="model.path", code="data.malformed"):
        load(str(sharded))


def test_a_pickle_alone_is_no_model(sharded: Path) -> None:
    for file in sharded.glob("*safetensors*"):
        file.unlink()
    with refused(DataError, sharded, "model.safetensors", key="model.path", code="data.missing"):
        load(str(sharded))


def test_settings_cannot_name_other_weights(sharded: Path) -> None:
    edit(sharded / "config.json", transformers_weights="pytorch_model.bin")
    for reader in (load, describe):
        with refused(
            DataError, "'pytorch_model.bin'", "transformers_weights", key="model.path", code="data.unfit_model"
        ):
            reader(str(sharded))


@pytest.mark.parametrize("alone", [False, True], ids=["beside a model", "alone"])
def test_an_adapter_is_not_taken_for_a_model(sharded: Path, alone: bool) -> None:
    """transformers would add it to the weights, from a pickle where it has no safetensors."""
    (sharded / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "owner/base"}))
    torch.save({}, sharded / "adapter_model.bin")
    if alone:
        (sharded / "config.json").unlink()
    for reader in (describe, load):
        with refused(DataError, sharded, "adapter_config.json", key="model.path", code="data.unfit_model"):
            reader(str(sharded))


def test_code_beside_a_model_is_not_run(folder: Path, tmp_path: Path) -> None:
    """transformers' own code is used for its families; a family that only the folder's code defines is refused."""
    shutil.copy(BUNDLED / "model.safetensors", folder)
    (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    classes = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model", "AutoTokenizer": ["own.T", "own.T"]}
    for file in ("config.json", "tokenizer_config.json"):
        edit(folder / file, auto_map=classes)
    assert load(str(folder)).model.config.model_type == "qwen2"
    edit(folder / "config.json", model_type="own")
    with refused(DataError, "config.json", key="model.path", code="data.unreadable"):
        load(str(folder))
    assert not (tmp_path / "ran").exists()


def test_settings_cannot_name_an_attention_of_their_own(folder: Path) -> None:
    """transformers would bring its code from the hub."""
    for key in ("attn_implementation", "_attn_implementation"):
        edit(folder / "config.json", **{key: "owner/kernel"})
    assert meta_model(str(folder), dtype="float32", adaptable=True).config._attn_implementation == "sdpa"
    shutil.copy(BUNDLED / "model.safetensors", folder)
    assert load(str(folder)).model.config._attn_implementation == "sdpa"


def test_the_context_of_longrope_ends_where_its_frequencies_change(folder: Path) -> None:
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 48, "long_factor": [2.0] * 48}
    settings = Phi3Config(max_position_embeddings=131072, original_max_position_embeddings=4096, rope_parameters=rope)
    settings.save_pretrained(folder)
    assert describe(str(folder)).context == 4096


# As published ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("qwen2.5", ["<|endoftext|>"]),
        ("qwen2.5-instruct", ["<|endoftext|>", "<|im_end|>"]),
        ("qwen2.5-math", ["<|endoftext|>"]),
        ("qwen3", ["<|endoftext|>", "<|im_end|>"]),
        ("llama-3.2", ["<|end_of_text|>"]),
        ("llama-3.2-instruct", ["<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"]),
    ],
)
def test_published_models_stop(tmp_path: Path, name: str, ends: list[str]) -> None:
    loaded = load(str(make(name, tmp_path)))
    assert loaded.tokenizer.convert_ids_to_tokens(loaded.stop_tokens) == ends
    assert loaded.tokenizer.tokenize("</answer>\n")[-1] == ">Ċ"
    assert (
        loaded.tokenizer.decode(loaded.tokenizer("so , it is .", add_special_tokens=False)["input_ids"])
        == "so , it is ."
    )


@pytest.mark.parametrize("path", ["bundled:calculator", "bundled:guess_number"])
def test_the_policy_of_an_environment_has_the_tokenizer_of_the_bundled_one(path: str) -> None:
    loaded = load(path)
    assert loaded.tokenizer.get_vocab() == TOKENIZER.get_vocab()
    assert loaded.tokenizer.chat_template == TOKENIZER.chat_template
    assert describe(path) == describe("bundled")


def test_an_unknown_policy_of_the_package_is_refused() -> None:
    with refused(DataError, "'bundled:chess'", key="model.path", code="data.missing"):
        load("bundled:chess")


def test_settings_are_checked_before_the_weights(folder: Path, tmp_path: Path) -> None:
    (folder / "generation_config.json").write_text("{")
    with refused(DataError, folder, "generation_config.json", key="model.path", code="data.unreadable"):
        load(str(folder))
    shutil.copy(BUNDLED / "generation_config.json", folder)
    (tmp_path / "vocab.txt").write_text("x")
    (folder / "vocab.txt").symlink_to(tmp_path / "vocab.txt")
    with refused(DataError, folder / "vocab.txt", key="model.path", code="data.unreadable"):
        load(str(folder))


def test_the_vocabulary_is_that_of_the_text_part(folder: Path) -> None:
    Gemma3Config(text_config={"vocab_size": 512}).save_pretrained(folder)
    assert describe(str(folder)).vocabulary == 512
    assert model_stop_tokens(str(folder), TOKENIZER) == (1,)


def test_a_special_token_that_nothing_writes_needs_no_embedding(folder: Path) -> None:
    shutil.copy(BUNDLED / "model.safetensors", folder)
    tokenizer = load_tokenizer(str(folder))
    tokenizer.add_tokens(["<image>"], special_tokens=True)
    assert load(str(folder), tokenizer=tokenizer).stop_tokens == (1,)
    tokenizer.chat_template += "<image>"
    with refused(DataError, 513, 512, key="model.path", code="data.unfit_model"):
        load(str(folder), tokenizer=tokenizer)
