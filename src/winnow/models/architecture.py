"""Small randomly initialised models of the families that winnow is tested with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

from winnow.errors import ConfigError, near_miss

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CONFIGS = {"qwen2": Qwen2Config, "llama": LlamaConfig}


def architecture(
    arch: str,
    tokenizer: Any,
    *,
    hidden: int = 128,
    layers: int = 3,
    heads: int = 4,
    kv_heads: int = 2,
    intermediate: int = 256,
    context: int = 2048,
    seed: int = 0,
) -> PreTrainedModel:
    """A randomly initialised float32 model in eval mode with the vocabulary and special tokens of the tokenizer.

    The weights are a function of the arguments; torch's global random state is neither read nor changed. `context` is
    the maximum number of tokens of a prompt with its rollout. Raises ConfigError for an unknown `arch`.
    """
    if arch not in CONFIGS:
        raise ConfigError(f"there is no architecture {arch!r}", remedy=near_miss(arch, CONFIGS), code="config.value")
    config = CONFIGS[arch](
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=intermediate,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation="sdpa"
        )
    return model.eval()
