"""A GGUF file becomes the model folder that it was made from, rounded; other layouts are refused before any weight."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import winnow.models.gguf
from gguf_files import write_gguf
from published_models import make
from refusals import refused
from winnow.commands.fetch import fetch_model
from winnow.errors import DataError
from winnow.models.gguf import check, describe, quantized
from winnow.models.load import load, load_tokenizer

pytest.importorskip("gguf", reason="needs the extra winnow-rl[gguf]")

TEXTS = [
    "What is 471 + 8.5?  7\n\n  12 apples\t<think>",
    "She'll say: IT'S FINE, isn't it?!...  ",
    "e\u0301 ﬁ 日本 👍🏽 \u00a0x",
    "<|im_start|>user\nHi<|im_end|><|eot_id|>",
]


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """name -> a model folder as it was published."""
    made = {}

    def source(name):
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            make(name, folder)
            if name.startswith("llama"):  # a file of these has scaled positions; see the test of the refusals
                config = json.loads((folder / "config.json").read_text())
                del config["rope_scaling"]
                (folder / "config.json").write_text(json.dumps(config))
            made[name] = folder
        return made[name]

    return source


@pytest.mark.parametrize(
    ("name", "kind"),
    [("qwen2.5-instruct", "Q8_0"), ("qwen2.5-math", "F16"), ("qwen3", "Q4_1"), ("llama-3.2-instruct", "Q4_0")],
)
def test_a_file_becomes_the_folder_that_it_was_made_from(name, kind, sources, tmp_path):
    source, file = sources(name), tmp_path / "small.gguf"
    written = write_gguf(source, file, kind=kind)
    (tmp_path / "LICENSE").write_text("of the model")

    lines = fetch_model(str(file), tmp_path / "model")

    made, before = load(str(tmp_path / "model")), load(str(source))
    counts = sum(tensor.ndim == 2 for tensor in written.values())
    assert lines[0].startswith(f"{0 if kind == 'F16' else counts} of {len(written)} tensors were quantized (")
    assert f"{counts} in {kind}" in lines[0]
    assert {path.name for path in (tmp_path / "model").iterdir()} >= {"LICENSE", "README.md", "model.safetensors"}
    weights = load_file(tmp_path / "model" / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
    assert weights.keys() == load_file(source / "model.safetensors").keys()
    expected = written["blk.1.ffn_down.weight"].to(torch.bfloat16)  # no rows of it are moved
    assert torch.equal(weights["model.layers.1.mlp.down_proj.weight"], expected)
    for key in ("vocab_size", "hidden_size", "rms_norm_eps", "tie_word_embeddings", "eos_token_id"):
        if not (key == "eos_token_id" and name.startswith("llama")):  # the file names one of three
            assert getattr(made.model.config, key) == getattr(before.model.config, key), key
    tokens = torch.arange(24).reshape(1, -1) % 200
    with torch.no_grad():
        near, far = (one.model(tokens).logits for one in (made, before))
    assert (near - far).abs().max() < 0.2 * far.abs().max()  # a wrong order of rows moves them by their own size


@pytest.mark.parametrize("name", ["qwen2.5-instruct", "qwen3", "llama-3.2-instruct"])
def test_the_tokenizer_is_the_published_one(name, sources, tmp_path):
    source, file = sources(name), tmp_path / "small.gguf"
    write_gguf(source, file)
    fetch_model(str(file), tmp_path / "model")

    made, before = load_tokenizer(str(tmp_path / "model")), load_tokenizer(str(source))
    for text in TEXTS:
        assert made(text).input_ids == before(text).input_ids, text
        assert made.decode(made(text).input_ids) == before.decode(before(text).input_ids)
    assert made.chat_template == before.chat_template
    assert (made.eos_token_id, made.bos_token_id, made.pad_token_id) == (
        before.eos_token_id,
        before.bos_token_id,
        before.pad_token_id,
    )
    assert len(made) == len(before), "rows that only fill the embedding are no tokens"


def test_digits_are_split_before_the_spaces_around_them_in_smollm(sources, tmp_path):
    """transformers reads this name as gpt-2's rules, with which the two spaces are not one piece."""
    write_gguf(sources("qwen2.5"), tmp_path / "small.gguf", tokenizer__ggml__pre="smollm")
    fetch_model(str(tmp_path / "small.gguf"), tmp_path / "model")
    split = load_tokenizer(str(tmp_path / "model")).backend_tokenizer.pre_tokenizer.pre_tokenize_str("a  47")
    assert [piece for piece, _ in split] == ["a", "ĠĠ", "4", "7"]


def test_a_file_names_every_token_that_ends_a_turn(sources, tmp_path):
    write_gguf(sources("qwen2.5-instruct"), tmp_path / "small.gguf", tokenizer__ggml__eot_token_id=7)
    fetch_model(str(tmp_path / "small.gguf"), tmp_path / "model")
    loaded = load(str(tmp_path / "model"))
    assert loaded.stop_tokens == (7, load_tokenizer(str(sources("qwen2.5-instruct"))).eos_token_id)


BAD = {
    "another layout": ({"general__architecture": "gemma2"}, {}),
    "scaled positions": ({"qwen2__rope__scaling__type": "yarn"}, {}),
    "positions in a tensor": ({}, {"rope_freqs.weight": np.zeros(8, np.float32)}),
    "experts": ({}, {"blk.0.ffn_gate_exps.weight": np.zeros((2, 8, 8), np.float32)}),
    "one part of several": ({"split__count": 2}, {}),
    "unknown rules of the tokenizer": ({"tokenizer__ggml__pre": "tekken"}, {}),
    "a tokenizer of sentencepiece": ({"tokenizer__ggml__model": "llama"}, {}),
}


@pytest.mark.parametrize("case", BAD)
def test_a_layout_that_winnow_does_not_load_is_refused_before_the_weights(case, sources, tmp_path, monkeypatch):
    fields, tensors = BAD[case]
    write_gguf(sources("qwen2.5"), tmp_path / "small.gguf", tensors=tensors, **fields)
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", None)  # a call would raise TypeError
    with refused(DataError, "hub", code="data.unfit_model"):
        fetch_model(str(tmp_path / "small.gguf"), tmp_path / "model")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small.gguf"]


def test_a_tensor_that_is_missing_is_refused(sources, tmp_path):
    write_gguf(sources("qwen2.5"), tmp_path / "small.gguf", qwen2__block_count=3)
    with refused(DataError, "hub", code="data.unfit_model"):
        fetch_model(str(tmp_path / "small.gguf"), tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_file_of_something_else_and_no_file_are_refused(tmp_path):
    (tmp_path / "text.gguf").write_text("no GGUF at all")
    with refused(DataError, "text.gguf", code="data.malformed"):
        describe(tmp_path / "text.gguf")
    with refused(DataError, "none.gguf", code="data.missing"):
        fetch_model(str(tmp_path / "none.gguf"), tmp_path / "model")


def test_a_field_that_is_missing_is_named(sources, tmp_path):
    write_gguf(sources("qwen2.5"), tmp_path / "small.gguf", tokenizer__ggml__merges=None)
    with refused(DataError, "merges", code="data.malformed"):
        check(describe(tmp_path / "small.gguf"))


def test_without_the_package_the_remedy_names_its_extra(tmp_path, monkeypatch):
    monkeypatch.setattr(winnow.models.gguf, "is_installed", lambda package: False)
    with refused(DataError, "winnow-rl[gguf]", code="data.not_installed"):
        fetch_model(str(tmp_path / "some.gguf"), tmp_path / "model")


def test_the_types_of_the_tensors_are_counted():
    lines = quantized({"a": "Q4_1", "b": "Q4_1", "c": "F32", "d": "Q8_0"})
    assert lines[0] == "3 of 4 tensors were quantized (2 in Q4_1, 1 in F32, 1 in Q8_0)"
    assert quantized({"a": "F16"})[1] == "all are now in bfloat16"
