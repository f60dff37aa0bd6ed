"""Ranks that each read a share of the files have the bits of a process that reads all, and write the same files."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ranked import Group

from winnow.config_file import validate
from winnow.learner.learner import make_learner
from winnow.models.adapter import add_lora
from winnow.models.load import load
from winnow.models.save import write_model_folder
from winnow.training.resolve import resolve_members

CASE = "loading_cases:loaded"
LORA: dict[str, Any] = {"rank": 4, "alpha": 8.0}
KL: dict[str, Any] = {"terms": [{"use": "kl", "coefficient": 0.05}]}
ODD = 511  # rows of the vocabulary: the first of two ranks has 256 of them, the other 255


@pytest.fixture(scope="module")
def odd_folder(model_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untied policy with an odd vocabulary, its weights in float32 that bfloat16 has not, in two files."""
    folder = tmp_path_factory.mktemp("odd")
    loaded = load(str(model_folder("untied")))
    model = copy.deepcopy(loaded.model)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model.resize_token_embeddings(max(ODD, len(loaded.tokenizer) | 1))
        model.save_pretrained(folder, max_shard_size="40KB")
    loaded.tokenizer.save_pretrained(folder)
    assert len({*json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"].values()}) > 1
    return folder


def settings(folder: Path, **model: Any) -> dict[str, Any]:
    return {
        "model": {"path": str(folder), **model},
        "task": {"use": "arithmetic", "size": 8},
        "device": "cpu",
        "ranks": {"learner": "sharded"},
    }


def files(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def wholes(loaded: Any, model: Any) -> dict[str, tuple[str, np.ndarray]]:
    exact = {**dict(model.named_parameters()), **loaded.masters}
    return {name: (str(t.dtype), t.detach().to(torch.float64).numpy()) for name, t in exact.items()}


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "adapter"])
def test_shares_have_the_bits_of_the_files(
    kind: str, two_ranks: Group, model_folder: Callable[[str], Path], odd_folder: Path, tmp_path: Path
) -> None:
    """In bfloat16 they are masters: the float32 numbers of the files, which a folder has rounded."""
    folder = model_folder("qwen2") if kind == "adapter" else odd_folder
    own: dict[str, Any] = {"dtype": "float32" if kind == "float32" else "bfloat16"}
    config = settings(folder, **own, **({"lora": LORA} if kind == "adapter" else {})) | KL
    found = two_ranks.run(CASE, config, tmp_path / "shares")
    loaded = load(str(folder), dtype=own["dtype"], masters=kind == "bfloat16")
    model: Any = loaded.model
    if kind == "adapter":
        model = add_lora(model, **LORA, targets="all-linear", seed=0)
    expected = wholes(loaded, model)
    for of_rank in found:
        assert of_rank.whole.keys() == expected.keys()
        for name, (dtype, numbers) in expected.items():
            assert of_rank.whole[name][0] == dtype, name
            assert np.array_equal(of_rank.whole[name][1], numbers), name
        rounded = {name: p.detach().to(torch.float64).numpy() for name, p in model.named_parameters()}
        assert of_rank.engine.keys() == rounded.keys()
        assert all(np.array_equal(of_rank.engine[name], numbers) for name, numbers in rounded.items())
        assert of_rank.reference.keys() == (set() if kind == "adapter" else set(rounded))
        assert all(np.array_equal(numbers, rounded[name]) for name, numbers in of_rank.reference.items())
    for name, (_, numbers) in expected.items():
        first = -(-len(numbers) // 2)
        assert [of_rank.rows[name] for of_rank in found] == [first, len(numbers) - first]
    write_model_folder(model, loaded.files, tmp_path / "whole")
    assert files(tmp_path / "shares") == files(tmp_path / "whole")


@pytest.mark.parametrize("grid", [torch.bfloat16, torch.float16])
def test_shares_of_masters_are_offset_like_whole_masters(
    grid: torch.dtype, two_ranks: Group, odd_folder: Path, tmp_path: Path
) -> None:
    """To the bit, and so is the sample of their start. Rounded again, they are the weights of the files."""
    loaded = load(str(odd_folder))
    loaded.model.to(grid).save_pretrained(tmp_path)
    loaded.tokenizer.save_pretrained(tmp_path)
    config = settings(tmp_path, dtype="bfloat16") | {"optimizer": {"master_offset": True}}
    members = resolve_members(validate(config), Path.cwd())
    whole = load(str(tmp_path), dtype="bfloat16", masters=True)
    before = {name: master.clone() for name, master in whole.masters.items()}
    learner = make_learner(members.config, whole, needs=members.needs, resumed=False)
    expected = {name: tensor.to(torch.float64).numpy() for name, tensor in learner.state().items()}
    assert {name.rpartition("/")[2] for name in expected} == {"master", "start"}
    for of_rank in two_ranks.run("loading_cases:masters", config):
        assert of_rank.keys() == expected.keys()
        assert all(np.array_equal(of_rank[name], numbers) for name, numbers in expected.items())
    for name, file in before.items():
        master = learner.state()[f"{name}/master"]
        assert torch.equal(master.bfloat16(), file.bfloat16())
        assert torch.equal(master[file == 0], file[file == 0])
        assert (master != file)[file != 0].float().mean() > 0.9 or not file.any()  # an offset may be 0


def test_a_policy_with_scaled_logits_is_refused_by_all(two_ranks: Group, tmp_path: Path) -> None:
    """It has numbers only once the shares are read, and then the head is tested."""
    from transformers import CohereConfig, CohereForCausalLM

    from winnow.models.load import load_tokenizer

    tokenizer = load_tokenizer("bundled")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    made = CohereForCausalLM(CohereConfig(vocab_size=len(tokenizer), logit_scale=0.5, **sizes))
    made.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert two_ranks.run("loading_cases:refused", settings(tmp_path)) == ["0: model.path", "1: model.path"]


def test_a_rank_that_cannot_read_ends_the_others(two_ranks: Group, model_folder: Callable[[str], Path]) -> None:
    """They do not wait for it in the pass that follows."""
    config = settings(model_folder("qwen2"))
    assert two_ranks.run("loading_cases:cut_off", config) == ["RankError", "DataError"]
