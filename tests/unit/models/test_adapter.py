from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

import winnow
from refusals import refused
from winnow.errors import ConfigError, RunFolderError
from winnow.models.adapter import (
    adapter_off,
    adapter_on,
    adapter_weights,
    add_lora,
    frozen_adapter,
    has_adapter,
    load_adapter,
    merges,
    plain_model,
    plain_names,
    save_adapter,
    set_frozen_adapter,
)

SOURCE = Path(winnow.__file__).parent


def base(dtype: torch.dtype = torch.float64, *, tied: bool = False) -> nn.Module:
    config = LlamaConfig(
        vocab_size=13,
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=32,
        tie_word_embeddings=tied,
    )
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return LlamaForCausalLM(config).to(dtype).eval()


def adapters(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}


def test_at_first_nothing_changes_and_only_adapters_train() -> None:
    tokens = torch.tensor([[1, 2, 3]])
    before = base()(input_ids=tokens).logits
    model = add_lora(base(), rank=2, alpha=6.0, targets=("q_proj", "v_proj"), seed=4)
    assert torch.equal(model(input_ids=tokens).logits, before)
    assert len(adapters(model)) == 2 * 2 * 2
    assert all(".lora_A." in name or ".lora_B." in name for name in adapters(model))


def test_the_seed_decides_the_start_and_the_global_stream_is_unchanged() -> None:
    def start(seed: int) -> dict[str, Tensor]:
        return adapters(add_lora(base(), rank=2, alpha=6.0, targets="all-linear", seed=seed))

    before = torch.random.get_rng_state()
    one, same, other = start(4), start(4), start(5)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert len(one) == 2 * 7 * 2, "every linear layer but the output layer"
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not any(torch.equal(one[name], other[name]) for name in one if "lora_A" in name)


def taught(model: nn.Module, seed: int = 0) -> nn.Module:
    """With adapters that change something."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data.normal_(generator=generator)
    return model


def test_merged_weights_are_base_plus_delta() -> None:
    model = taught(add_lora(base(), rank=2, alpha=6.0, targets=("q_proj",), seed=4))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    layer = "model.layers.1.self_attn.q_proj"
    a, b = (adapters(model)[f"base_model.model.{layer}.lora_{x}.default.weight"] for x in "AB")
    merged = {name: make() for name, make in merges(model).items()}
    assert list(merged) == [f"model.layers.{i}.self_attn.q_proj.weight" for i in (0, 1)]
    torch.testing.assert_close(merged[f"{layer}.weight"], base().state_dict()[f"{layer}.weight"] + 3.0 * b @ a)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("targets", ["all-linear", ("q_proj", "embed_tokens")])
def test_the_merge_has_the_bits_that_both_of_its_readers_had(dtype: torch.dtype, targets: object) -> None:
    """An engine added and rounded where the weights are, a checkpoint on the way to the CPU. A bfloat16 model's adapter
    is float32.
    """
    model = taught(add_lora(base(dtype), rank=2, alpha=5.0, targets=targets, seed=4))
    merged = {name: make() for name, make in merges(model).items()}
    for name, module in plain_model(model).named_modules():
        if hasattr(module, "get_delta_weight"):
            weight, delta = module.get_base_layer().weight.detach(), module.get_delta_weight("default").detach()
            assert delta.dtype == (torch.float32 if dtype == torch.bfloat16 else dtype)
            assert torch.equal(merged[f"{name}.weight"], (weight + delta).to(dtype))
            assert torch.equal(merged.pop(f"{name}.weight"), (weight + sum([delta])).to("cpu", dtype))
    assert not merged


def test_names_are_those_of_the_plain_model() -> None:
    plain = base()
    names = list(dict(plain.named_parameters()))
    model = add_lora(plain, rank=2, alpha=6.0, targets="all-linear", seed=4)
    assert plain_model(model) is plain is plain_model(plain)
    assert (has_adapter(plain_model(base())), has_adapter(model), has_adapter(model, "other")) == (False, True, False)
    assert [name for name, _ in plain_names(plain.named_parameters())] == names


@pytest.mark.parametrize("targets", [("q_proj",), ("q_proj", "embed_tokens")])
def test_an_adapter_goes_by_the_names_in_its_file(targets: tuple[str, ...], tmp_path: Path) -> None:
    model = taught(add_lora(base(), rank=2, alpha=6.0, targets=targets, seed=4))
    save_adapter(model, tmp_path)
    saved, own = load_file(tmp_path / "adapter_model.safetensors"), adapter_weights(model)
    assert own.keys() == saved.keys()
    assert all(torch.equal(own[name], value) for name, value in saved.items())


@pytest.mark.parametrize("targets", [("q_proj",), ("q_proj", "embed_tokens")])
def test_a_frozen_second_adapter_and_the_base_come_and_go(targets: tuple[str, ...]) -> None:
    tokens = torch.tensor([[1, 2, 3]])

    def logits(of: nn.Module) -> Tensor:
        return of(input_ids=tokens).logits

    plain, model = base(), taught(add_lora(base(), rank=2, alpha=6.0, targets=targets, seed=4))
    assert frozen_adapter(model, "second") == {}
    set_frozen_adapter(model, "second", adapters(model))
    first, trained = logits(model), list(adapters(model))
    kept = {name: value.clone() for name, value in frozen_adapter(model, "second").items()}
    assert list(kept) == trained
    taught(model, seed=1)
    now = logits(model)
    assert not torch.allclose(now, first)
    with adapter_on(model, "second"):
        assert torch.equal(logits(model), first)
        assert list(adapters(model)) == trained, "what is trained stays so, whichever is on"
    with adapter_off(model):
        assert torch.equal(logits(model), logits(plain))
    assert torch.equal(logits(model), now)
    assert list(adapters(model)) == trained
    set_frozen_adapter(model, "second", adapters(model))
    with adapter_on(model, "second"):
        assert torch.equal(logits(model), now)
    set_frozen_adapter(model, "second", kept)
    with adapter_on(model, "second"):
        assert torch.equal(logits(model), first)


@pytest.mark.parametrize("target", ["lm_head", "embed_tokens"])
def test_one_role_of_a_shared_matrix_cannot_be_adapted_alone(target: str) -> None:
    add_lora(base(), rank=2, alpha=6.0, targets=("q_proj", target), seed=0)
    with refused(ConfigError, target, key="model.lora.targets", code="config.unsupported"):
        add_lora(base(tied=True), rank=2, alpha=6.0, targets=("q_proj", target), seed=0)


def test_no_other_file_uses_peft() -> None:
    imports = re.compile(
        r"import peft|[\"']\.lora_|lora_[AB]\b|base_layer|get_(base|delta)_|peft_config|active_adapters"
        r"|(disable|set|add)_adapter\("
    )
    files = [*SOURCE.rglob("*.py"), *(SOURCE.parent / "winnow_lab").rglob("*.py")]
    found = {path.as_posix().removeprefix(f"{SOURCE}/") for path in files if imports.search(path.read_text("utf-8"))}
    assert found - {"other_names.py"} == {"models/adapter.py"}  # TRL has a key that is called peft_config


def test_an_unknown_target_is_refused() -> None:
    with refused(ConfigError, "['qq_proj']", key="model.lora.targets", code="config.unsupported") as caught:
        add_lora(base(), rank=2, alpha=6.0, targets=("qq_proj",), seed=0)
    layers = {name.rpartition(".")[2] for name, module in base().named_modules() if isinstance(module, nn.Linear)}
    assert {"q_proj", "down_proj"} < layers
    assert all((name in caught.value.remedy) is (name != "lm_head") for name in layers)


@pytest.mark.parametrize("other", ["vproj", "mlp"])
def test_one_wrong_target_among_several_is_refused(other: str) -> None:
    with refused(ConfigError, other, key="model.lora.targets", code="config.unsupported") as caught:
        add_lora(base(), rank=2, alpha=6.0, targets=("q_proj", other), seed=0)
    assert "v_proj" in caught.value.remedy
    assert "base_layer" not in caught.value.remedy


@pytest.mark.parametrize("targets", ["all-linear", ("q_proj", "down_proj")])
def test_experts_of_a_mixture_are_refused(targets: Any) -> None:
    config = Qwen3MoeConfig(
        vocab_size=13, hidden_size=8, intermediate_size=12, moe_intermediate_size=4, num_experts=2,
        num_experts_per_tok=1, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=4,
    )  # fmt: skip
    with refused(ConfigError, key="model.lora.targets", code="config.unsupported"):
        add_lora(Qwen3MoeForCausalLM(config), rank=2, alpha=6.0, targets=targets, seed=0)


@pytest.mark.parametrize(("rank", "targets"), [(4, ("q_proj",)), (2, ("q_proj", "v_proj"))], ids=["rank", "targets"])
def test_an_adapter_of_another_shape_is_refused(tmp_path: Path, rank: int, targets: tuple[str, ...]) -> None:
    add_lora(base(), rank=2, alpha=6.0, targets=("q_proj",), seed=4).save_pretrained(tmp_path)
    with refused(RunFolderError, tmp_path, key="model.lora", code="run_folder.other_model"):
        load_adapter(add_lora(base(), rank=rank, alpha=6.0, targets=targets, seed=4), tmp_path)


def test_an_adapter_is_read_from_safetensors_and_from_no_pickle(tmp_path: Path) -> None:
    model = add_lora(base(), rank=2, alpha=6.0, targets=("q_proj",), seed=4)
    model.save_pretrained(tmp_path)
    other = add_lora(base(), rank=2, alpha=6.0, targets=("q_proj",), seed=5)
    load_adapter(other, tmp_path)
    assert all(torch.equal(weight, adapters(model)[name]) for name, weight in adapters(other).items())
    (tmp_path / "adapter_model.safetensors").unlink()
    torch.save(adapters(model), tmp_path / "adapter_model.bin")
    with refused(RunFolderError, "adapter_model.safetensors", tmp_path, code="run_folder.incomplete"):
        load_adapter(other, tmp_path)
