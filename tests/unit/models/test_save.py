"""A model's folder is what transformers would have written, whichever way its weights are held."""

from __future__ import annotations

import hashlib
import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MixtralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
)

from winnow.models import save
from winnow.models.adapter import adapter_off, adapter_on, add_lora, save_adapter, set_frozen_adapter
from winnow.models.save import write_model_folder

SIZES: dict[str, Any] = {
    "vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 32, "bos_token_id": 0, "eos_token_id": 1,
}  # fmt: skip
EXPERTS: dict[str, Any] = {
    "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8
}  # fmt: skip
CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SIZES),
    "llama tied": LlamaConfig(**SIZES, tie_word_embeddings=True),
    "qwen2": Qwen2Config(**SIZES),
    "qwen3": Qwen3Config(**SIZES, head_dim=8),
    "mixtral": MixtralConfig(**SIZES, num_local_experts=3),
    "qwen2_moe": Qwen2MoeConfig(**SIZES, **EXPERTS),
}


NO_FILES: dict[str, bytes] = {}  # published with a model; not what is tested here


def model(name: str, dtype: torch.dtype = torch.float32) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(CONFIGS[name]).to(dtype)


def folder_of(path: Path) -> dict[str, bytes]:
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_folder_is_that_of_save_pretrained_and_loads_bit_by_bit(
    tmp_path: Path, name: str, dtype: torch.dtype
) -> None:
    made = model(name, dtype)
    digests = write_model_folder(made, NO_FILES, tmp_path / "ours")
    made.save_pretrained(tmp_path / "theirs")
    ours = folder_of(tmp_path / "ours")
    assert ours == folder_of(tmp_path / "theirs")
    assert digests == {"model.safetensors": hashlib.sha256(ours["model.safetensors"]).hexdigest()}
    loaded, report = AutoModelForCausalLM.from_pretrained(tmp_path / "ours", dtype=dtype, output_loading_info=True)
    assert not any(report.values())
    expected = made.state_dict()
    assert loaded.state_dict().keys() == expected.keys()
    assert all(torch.equal(tensor, expected[key]) for key, tensor in loaded.state_dict().items())
    write_model_folder(loaded, NO_FILES, tmp_path / "again")
    assert (
        load_file(tmp_path / "again" / "model.safetensors").keys()
        == load_file(tmp_path / "ours" / "model.safetensors").keys()
    ), "published names, whichever way a model came to be"


def test_where_a_published_tensor_is_made_of_several_all_are_converted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in architectures whose modules hold apart what is published as one."""

    def joined(plain: Any, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        parts = {key: state[key] for key in state if "k_proj" in key or "v_proj" in key}
        out = {key: tensor for key, tensor in state.items() if key not in parts}
        for key in parts:
            if "k_proj" in key and (other := key.replace("k_proj", "v_proj")) in parts:
                out[key.replace("k_proj", "kv_proj")] = torch.cat([parts[key], parts[other]])
        return out

    monkeypatch.setattr(save, "revert_weight_conversion", joined)
    made = model("llama")
    write_model_folder(made, NO_FILES, tmp_path)
    written, state = load_file(tmp_path / "model.safetensors"), made.state_dict()
    assert written.keys() == joined(made, state).keys()
    attention = "model.layers.1.self_attn"
    both = torch.cat([state[f"{attention}.k_proj.weight"], state[f"{attention}.v_proj.weight"]])
    assert torch.equal(written[f"{attention}.kv_proj.weight"], both)


def taught(name: str) -> Any:
    """With an adapter that changes something."""
    made = add_lora(model(name), rank=2, alpha=6.0, targets=("q_proj", "up_proj"), seed=4)
    with torch.no_grad():
        for key, parameter in made.named_parameters():
            if ".lora_B." in key:
                parameter.normal_(generator=torch.Generator().manual_seed(1))
    return made


def test_an_adapter_s_files_are_peft_s(tmp_path: Path) -> None:
    made = taught("llama")
    digest = save_adapter(made, tmp_path / "ours")
    made.save_pretrained(tmp_path / "theirs")
    ours, theirs = folder_of(tmp_path / "ours"), folder_of(tmp_path / "theirs")
    assert ours["adapter_model.safetensors"] == theirs["adapter_model.safetensors"]
    assert json.loads(ours["adapter_config.json"]) == json.loads(theirs["adapter_config.json"])
    assert digest == hashlib.sha256(ours["adapter_model.safetensors"]).hexdigest()


@pytest.mark.parametrize("other", ["frozen", "off"])
def test_which_adapter_is_on_does_not_matter(tmp_path: Path, other: str) -> None:
    """A thread saves while a reference's log-probs are computed with another adapter, or none."""
    made = taught("qwen2")
    write_model_folder(made, NO_FILES, tmp_path / "before")
    with torch.no_grad():
        set_frozen_adapter(made, "reference", {key: p for key, p in made.named_parameters() if p.requires_grad})
        frozen = {key: p for key, p in made.named_parameters() if ".reference." in key}
        for parameter in frozen.values():
            parameter.normal_(generator=torch.Generator().manual_seed(2))
    arguments = (made, NO_FILES, tmp_path / "meanwhile")
    with adapter_on(made, "reference") if other == "frozen" else adapter_off(made):
        thread = threading.Thread(target=write_model_folder, args=arguments)
        thread.start()
        thread.join()
    assert folder_of(tmp_path / "meanwhile") == folder_of(tmp_path / "before")
