"""GGUF files of small models, with the names, the order of rows and the fields that llama.cpp's converter writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
RULES = {"qwen2": "qwen2", "qwen3": "qwen2", "llama": "llama-bpe"}


def write_gguf(
    source: Path, file: Path, *, kind: str = "Q8_0", tensors: Mapping[str, Any] | None = None, **fields: Any
) -> dict[str, torch.Tensor]:
    """Write the model folder `source` as a GGUF file whose matrices have the type `kind`. `tensors` are added, and
    `fields` replace fields of the file (general__architecture for general.architecture; None removes one).

    Returns the numbers in the file, by their names there.
    """
    import gguf

    config = json.loads((source / "config.json").read_text())
    writer = gguf.GGUFWriter(file, config["model_type"])
    changed = {name.replace("__", "."): value for name, value in fields.items()}
    for name, value in {**_settings(config), **_tokenizer(source, config), **changed}.items():
        _add(writer, name, value)
    written = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        weight = tensor.float().numpy()
        if name.endswith(("q_proj.weight", "k_proj.weight")) and config["model_type"] == "llama":
            heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
            weight = _interleaved(weight, heads)
        matrix = weight.ndim == 2 and kind != "F32"
        stored = gguf.quants.quantize(weight, gguf.GGMLQuantizationType[kind]) if matrix else weight
        writer.add_tensor(_name(name), stored, raw_dtype=gguf.GGMLQuantizationType[kind] if matrix else None)
        numbers = gguf.quants.dequantize(stored, gguf.GGMLQuantizationType[kind]) if matrix else weight
        written[_name(name)] = torch.from_numpy(numbers.copy())
    for name, extra in (tensors or {}).items():
        writer.add_tensor(name, extra)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return written


def _interleaved(weight: Any, heads: int) -> Any:
    """Rows of a head in llama.cpp's order: the two halves that a rotation pairs alternate."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def _name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem in NAMES:
        return f"{NAMES[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{NAMES[part]}.{kind}"


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    arch, head = config["model_type"], config.get("head_dim")
    settings = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "rope.freq_base": float(config["rope_theta"]),
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "vocab_size": config["vocab_size"],
    }
    lengths = {"attention.key_length": head, "attention.value_length": head} if head else {}
    return {f"{arch}.{name}": value for name, value in (settings | lengths).items()} | {
        "general.name": "A small model",
        "general.license": "apache-2.0",
    }


def _tokenizer(source: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    read = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    settings = json.loads((source / "tokenizer_config.json").read_text(encoding="utf-8"))
    by_id = {i: (token, 1) for token, i in read["model"]["vocab"].items()}
    by_id |= {one["id"]: (one["content"], 3 if one["special"] else 4) for one in read["added_tokens"]}
    rows = [by_id.get(i, (f"[PAD{i}]", 5)) for i in range(config["vocab_size"])]
    ids = {token: i for i, (token, _) in enumerate(rows)}
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in read["model"]["merges"]]
    roles = {"bos": "bos_token", "eos": "eos_token", "padding": "pad_token"}
    named = {f"tokenizer.ggml.{key}_token_id": ids.get(settings.get(role)) for key, role in roles.items()}
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": RULES[config["model_type"]],
        "tokenizer.ggml.tokens": [token for token, _ in rows],
        "tokenizer.ggml.token_type": [kind for _, kind in rows],
        "tokenizer.ggml.merges": merges,
        **named,
        "tokenizer.ggml.add_bos_token": config["model_type"] == "llama",
        "tokenizer.chat_template": settings.get("chat_template"),
    }


def _add(writer: Any, name: str, value: Any) -> None:
    """One field, with GGUF's type for a Python value."""
    if value is None:
        return
    if isinstance(value, bool):
        writer.add_bool(name, value)
    elif isinstance(value, int):
        writer.add_uint32(name, value)
    elif isinstance(value, float):
        writer.add_float32(name, value)
    elif isinstance(value, str):
        writer.add_string(name, value)
    else:
        writer.add_array(name, value)
