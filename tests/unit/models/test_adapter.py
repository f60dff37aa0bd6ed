from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from winnow.errors import ConfigError, RunFolderError
from winnow.models.adapter import add_lora, load_adapter


def base(dtype: torch.dtype = torch.float64) -> nn.Module:
    config = LlamaConfig(
        vocab_size=13,
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=32,
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


def test_the_seed_decides_the_start_and_the_shared_stream_stays_where_it_was() -> None:
    def start(seed: int) -> dict[str, Tensor]:
        return adapters(add_lora(base(), rank=2, alpha=6.0, targets="all-linear", seed=seed))

    before = torch.random.get_rng_state()
    one, same, other = start(4), start(4), start(5)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert len(one) == 2 * 7 * 2, "every linear layer but the output layer"
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not any(torch.equal(one[name], other[name]) for name in one if "lora_A" in name)


def test_merged_weights_are_base_plus_delta() -> None:
    model = add_lora(base(), rank=2, alpha=6.0, targets=("q_proj",), seed=4)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(generator=torch.Generator().manual_seed(0))
    layer = "model.layers.1.self_attn.q_proj"
    a, b = (adapters(model)[f"base_model.model.{layer}.lora_{x}.default.weight"] for x in "AB")
    merged = model.merge_and_unload().state_dict()
    torch.testing.assert_close(merged[f"{layer}.weight"], base().state_dict()[f"{layer}.weight"] + 3.0 * b @ a)
    torch.testing.assert_close(merged["lm_head.weight"], base().state_dict()["lm_head.weight"], rtol=0, atol=0)


def test_an_unknown_target_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model\.lora\.targets = \['qq_proj'\]"):
        add_lora(base(), rank=2, alpha=6.0, targets=("qq_proj",), seed=0)


@pytest.mark.parametrize(("rank", "targets"), [(4, ("q_proj",)), (2, ("q_proj", "v_proj"))], ids=["rank", "targets"])
def test_an_adapter_of_another_shape_is_refused(tmp_path: Path, rank: int, targets: tuple[str, ...]) -> None:
    add_lora(base(), rank=2, alpha=6.0, targets=("q_proj",), seed=4).save_pretrained(tmp_path)
    with pytest.raises(RunFolderError, match=r"does not belong to this model .*q_proj|does not belong .*v_proj"):
        load_adapter(add_lora(base(), rank=rank, alpha=6.0, targets=targets, seed=4), tmp_path)


def test_an_adapter_is_read_from_safetensors_and_from_no_pickle(tmp_path: Path) -> None:
    model = add_lora(base(), rank=2, alpha=6.0, targets=("q_proj",), seed=4)
    model.save_pretrained(tmp_path)
    other = add_lora(base(), rank=2, alpha=6.0, targets=("q_proj",), seed=5)
    load_adapter(other, tmp_path)
    assert all(torch.equal(weight, adapters(model)[name]) for name, weight in adapters(other).items())
    (tmp_path / "adapter_model.safetensors").unlink()
    torch.save(adapters(model), tmp_path / "adapter_model.bin")
    with pytest.raises(RunFolderError, match=r"there is no adapter_model.safetensors in .*another checkpoint"):
        load_adapter(other, tmp_path)
