"""A model on the meta device and its weights in files: read part by part, it is the model that is loaded whole."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_save import CONFIGS, folder_of
from test_save import model as made_model
from torch import nn

from published_models import NAMES, make
from refusals import refused
from winnow.errors import DataError
from winnow.models.adapter import adapter_weights, add_lora, with_numbers
from winnow.models.load import Loaded, load, load_tokenizer
from winnow.models.meta import shapes_of
from winnow.models.save import write_model_folder

LORA: dict[str, Any] = {"rank": 2, "alpha": 4.0, "targets": ["q_proj"], "seed": 3}
FILES: dict[str, bytes] = {}


def state(model: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def assert_same(found: nn.Module, expected: nn.Module) -> None:
    ours, theirs = state(found), state(expected)
    assert list(ours) == list(theirs)
    for name, tensor in theirs.items():
        assert (ours[name].dtype, ours[name].requires_grad) == (tensor.dtype, tensor.requires_grad), name
        assert torch.equal(ours[name], tensor), name


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[str], str]:
    """The folder of a model of `test_save`, with the bundled tokenizer's files."""

    def written(name: str) -> str:
        made, tokenizer = made_model(name), load_tokenizer("bundled")
        made.resize_token_embeddings(len(tokenizer))
        made.save_pretrained(tmp_path / "model")
        tokenizer.save_pretrained(tmp_path / "model")
        return str(tmp_path / "model")

    return written


def both(path: str, **options: Any) -> tuple[Loaded, Loaded]:
    return load(path, **options), load(path, later=True, **options)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_copy_has_the_bits_of_the_whole_model(folder: Callable[[str], str], name: str) -> None:
    """The experts of a mixture are one tensor in the module and several in the files, so they are read whole."""
    whole, later = both(folder(name), dtype="bfloat16")
    assert later.saved is not None
    assert all(parameter.is_meta for parameter in later.model.parameters())
    assert bool(later.saved.whole) == (name in ("mixtral", "qwen2_moe"))
    assert_same(later.saved.copy_of(later.model), whole.model)
    assert later.model.config.to_dict() == whole.model.config.to_dict()
    assert not later.model.training


@pytest.mark.parametrize("name", NAMES)
def test_buffers_of_published_settings_are_those_of_the_loader(name: str, tmp_path: Path) -> None:
    whole, later = both(str(make(name, tmp_path)))
    assert {n: b.tolist() for n, b in later.model.named_buffers()} == {
        n: b.tolist() for n, b in whole.model.named_buffers()
    }


def test_rows_are_those_of_the_file_in_its_precision() -> None:
    """What the float32 masters of 16-bit weights are made of."""
    whole, later = both("bundled", dtype="bfloat16", masters=True)
    assert later.masters == {}
    assert later.saved is not None
    name = "model.layers.1.mlp.up_proj.weight"
    exact = whole.masters[name]
    assert torch.equal(later.saved.read(name, slice(3, 7)), exact[3:7])
    assert torch.equal(later.saved.read(name), exact)
    assert later.saved.read_like(name, later.model.get_parameter(name)).dtype == torch.bfloat16


def test_a_copy_in_another_precision_is_rounded_twice() -> None:
    """As where a module in bfloat16 is copied in float16."""
    whole, later = both("bundled", dtype="bfloat16")
    assert later.saved is not None
    found = later.saved.copy_of(later.model, torch.float16)
    for name, parameter in whole.model.named_parameters():
        assert torch.equal(found.get_parameter(name), parameter.to(torch.float16))


def test_an_adapter_on_the_meta_device_has_the_numbers_of_another() -> None:
    whole, later = both("bundled", dtype="bfloat16")
    expected = add_lora(whole.model, **LORA)
    with with_numbers(later.model):
        found = add_lora(later.model, **LORA)
    weights = adapter_weights(expected)
    assert any(weight.any() for weight in weights.values())
    for name, weight in adapter_weights(found).items():
        assert torch.equal(weight, weights[name])
    assert later.saved is not None
    assert_same(later.saved.copy_of(found), expected)  # type: ignore[arg-type]


@pytest.mark.parametrize("adapted", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_folder_written_from_shapes_is_that_of_the_model(name: str, adapted: bool, tmp_path: Path) -> None:
    """Each parameter is read, rounded from float32 to the model's precision, and is not kept."""
    model: Any = made_model(name, torch.bfloat16)
    if adapted:
        model = add_lora(model, **LORA)
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                if ".lora_B." in key:
                    parameter.normal_()
    numbers, read = dict(model.named_parameters()), list[str]()

    def whole(key: str) -> torch.Tensor:
        read.append(key)
        return numbers[key].detach().float()

    write_model_folder(model, FILES, tmp_path / "model")
    digests = write_model_folder(shapes_of(model), FILES, tmp_path / "shapes", whole)
    found = folder_of(tmp_path / "shapes")
    assert found == folder_of(tmp_path / "model")
    assert digests["model.safetensors"] == hashlib.sha256(found["model.safetensors"]).hexdigest()
    assert set(read) == set(numbers)


def test_shapes_have_no_numbers_and_keep_ties() -> None:
    model = made_model("llama tied")
    shapes: Any = shapes_of(model)
    assert all(parameter.is_meta for parameter in shapes.parameters())
    assert shapes.get_output_embeddings().weight is shapes.get_input_embeddings().weight
    assert [n for n, _ in shapes.named_parameters()] == [n for n, _ in model.named_parameters()]


def test_a_tied_matrix_is_read_under_either_name(folder: Callable[[str], str]) -> None:
    path = folder("llama tied")
    file = Path(path) / "model.safetensors"
    tensors = load_file(file)
    expected = tensors.pop("model.embed_tokens.weight")
    save_file({**tensors, "lm_head.weight": expected}, file, metadata={"format": "pt"})
    saved = load(path, later=True).saved
    assert saved is not None
    assert torch.equal(saved.read("model.embed_tokens.weight"), expected)


def test_weights_in_several_files_are_read_from_each(folder: Callable[[str], str], tmp_path: Path) -> None:
    path = folder("qwen2")
    model = load(path).model
    model.save_pretrained(tmp_path / "several", max_shard_size="2KB")
    assert len(json.loads((tmp_path / "several" / "model.safetensors.index.json").read_text())["weight_map"]) > 1
    for file in Path(path).glob("token*"):
        (tmp_path / "several" / file.name).write_bytes(file.read_bytes())
    whole, later = both(str(tmp_path / "several"))
    assert later.saved is not None
    assert_same(later.saved.copy_of(later.model), whole.model)


def test_a_missing_weight_and_a_damaged_file_are_refused(folder: Callable[[str], str]) -> None:
    path = folder("qwen2")
    file = Path(path) / "model.safetensors"
    saved = load(path, later=True).saved
    assert saved is not None
    tensors = load_file(file)
    del tensors["model.norm.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    with refused(DataError, code="data.missing"):
        load(path, later=True)
    file.write_bytes(b"12345678")
    with refused(DataError, code="data.unreadable"):
        saved.read("model.norm.weight")
    with refused(DataError, code="data.unreadable"):
        load(path, later=True)
