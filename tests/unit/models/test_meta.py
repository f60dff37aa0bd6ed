"""What is planned from settings alone is what transformers makes of them: every name, shape and precision."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, GemmaConfig, LlamaConfig, Qwen2Config, Qwen3Config

from winnow.models.meta import MODEL_TYPES, skeleton

SIZES = dict(
    vocab_size=97, hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=6,
    num_key_value_heads=2, max_position_embeddings=64,
)  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
CONFIGS = [
    Qwen2Config(**SIZES, tie_word_embeddings=True),
    Qwen2Config(**SIZES, tie_word_embeddings=False),
    Qwen3Config(**SIZES, head_dim=16),
    Qwen3Config(**SIZES, head_dim=16, attention_bias=True),
    LlamaConfig(**SIZES, tie_word_embeddings=True),
    LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
    LlamaConfig(**SIZES, head_dim=32),
    LlamaConfig(**SIZES, rope_scaling=LLAMA3, pad_token_id=96),
]


def stored(tensors):
    return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.model_type)
def test_a_skeleton_has_the_parameters_and_tables_of_the_model(config, dtype):
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    found = skeleton(config, dtype)
    assert found is not None
    assert stored(found.named_parameters()) == stored(model.named_parameters())
    assert stored(found.named_buffers()) == stored(model.named_buffers())
    assert found.dtype == model.dtype
    assert found.get_output_embeddings().weight.shape == model.get_output_embeddings().weight.shape
    assert all(tensor.is_meta for tensor in (*found.parameters(), *found.buffers()))


def test_every_family_is_tested_and_another_one_is_left_to_transformers():
    assert {config.model_type for config in CONFIGS} == set(MODEL_TYPES)
    assert skeleton(GemmaConfig(**SIZES), torch.float32) is None


@pytest.mark.parametrize(
    "settings",
    [
        {"hidden_act": "swooh"},  # a mistake that transformers reports
        {"pad_token_id": 97},
        {"num_key_value_heads": 0},
        {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
        {"quantization_config": {"quant_method": "awq"}},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_settings_that_it_does_not_follow_are_left_to_transformers(settings):
    assert skeleton(LlamaConfig(**SIZES | settings), torch.float32) is None
