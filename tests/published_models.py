"""Folders as the hub has them: Qwen2.5 (base, Instruct and Math), Qwen3 and Llama 3.2 (base and Instruct) with the
special tokens and the settings that were published, at a tiny width and with random weights. Their tokenizers split
text by the published rules and learn their merges here, so that ">" and a line break become one token, as they do in
the real ones. Chat templates are written anew, with the same layout of tokens.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModelForCausalLM

TEMPLATES = Path(__file__).parent / "fixtures" / "chat_templates"
NAMES = ("qwen2.5", "qwen2.5-instruct", "qwen2.5-math", "qwen3", "llama-3.2", "llama-3.2-instruct")

_TEXT = [
    "<think>\nNatalia sold 48 / 2 = 24 clips in May.\n</think>\n<answer>\n72\n</answer>\n",
    "<think> 2 + 3 = 5 </think> <answer> 5 </answer>\nThe answer is 5.\n#### 5\nso \\boxed{5}.\n",
    "A User asks, an Assistant replies. How many eggs does she sell at the market, at 2 dollars per egg?\n",
] * 4
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_MERGES = 200

_QWEN_SPECIAL = ("endoftext", "im_start", "im_end", "object_ref_start", "object_ref_end", "box_start", "box_end",
                 "quad_start", "quad_end", "vision_start", "vision_end", "vision_pad", "image_pad",
                 "video_pad")  # fmt: skip
_QWEN_ADDED = ("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
               "<|repo_name|>", "<|file_sep|>")  # fmt: skip
_LLAMA_SPECIAL = ("begin_of_text", "end_of_text", "reserved_special_token_0", "reserved_special_token_1",
                  "finetune_right_pad_id", "reserved_special_token_2", "start_header_id", "end_header_id", "eom_id",
                  "eot_id", "python_tag", *(f"reserved_special_token_{i}" for i in range(3, 248)))  # fmt: skip


# What differs from one to the next. Qwen2.5-Math as at 7B, whose head is its own (at 1.5B it is the embedding).
_QWEN: dict[str, dict[str, Any]] = {
    "qwen2.5": {"template": "qwen2_5", "chat": False},
    "qwen2.5-instruct": {
        "template": "qwen2_5",
        "chat": True,
        "sampled": {"repetition_penalty": 1.1, "temperature": 0.7, "top_p": 0.8, "top_k": 20},
    },
    "qwen2.5-math": {
        "template": "qwen2_5_math",
        "chat": False,
        "max_position_embeddings": 4096,
        "rope_theta": 10000,
        "sliding_window": 4096,
        "tie_word_embeddings": False,
    },
    "qwen3": {
        "template": "qwen3",
        "chat": True,
        "added": (*_QWEN_ADDED, "<tool_response>", "</tool_response>", "<think>", "</think>"),
        "sampled": {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "head_dim": 32,  # four of them are wider than the hidden size
        "max_position_embeddings": 40960,
        "model_type": "qwen3",
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
    },
}


def make(name: str, folder: Path) -> Path:
    """Write the model called `name` (one of `NAMES`) into a folder that exists; the folder."""
    if name.startswith("llama"):
        _llama(folder, instruct=name.endswith("instruct"))
    else:
        _qwen(folder, **_QWEN[name])
    return folder


def _qwen(folder: Path, *, template: str, chat: bool, added: Sequence[str] = _QWEN_ADDED, **differs: Any) -> None:
    """`chat`: it was taught to end its turns; `differs`: from the settings of Qwen2.5."""
    tokenizer = _trained(rf"{_WORDS}|\p{{N}}|{_REST}", normalizers.NFC(), ignore_merges=False)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    special = [f"<|{token}|>" for token in _QWEN_SPECIAL]
    _add(tokenizer, special, special=True)
    _add(tokenizer, added, special=False)
    end, turn = tokenizer.token_to_id("<|endoftext|>"), tokenizer.token_to_id("<|im_end|>")
    settings = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": _added(tokenizer),
        "additional_special_tokens": special[1:],
        "bos_token": None,
        "chat_template": (TEMPLATES / f"{template}.jinja").read_text(encoding="utf-8"),
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>" if chat else "<|endoftext|>",
        "errors": "replace",
        "model_max_length": 131072,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    sampled = differs.pop("sampled", {})
    ends = {"do_sample": True, "eos_token_id": [turn, end], "pad_token_id": end, **sampled}
    generation = {
        "bos_token_id": end,
        **(ends if chat else {"do_sample": False, "eos_token_id": end, "max_new_tokens": 2048}),
        "transformers_version": "4.37.0",
    }
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "attention_dropout": 0.0,
        "bos_token_id": end,
        "eos_token_id": turn if chat else end,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "max_position_embeddings": 32768 if chat else 131072,
        "max_window_layers": 2,
        "model_type": "qwen2",
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "sliding_window": 32768 if chat else 131072,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_mrope": False,
        "use_sliding_window": False,
        "vocab_size": 1024,  # wider than the tokenizer, as 151,936 is than 151,665
    }
    _write(folder, tokenizer, settings, generation, config | differs)
    tokenizer.model.save(str(folder))  # vocab.json and merges.txt


def _llama(folder: Path, *, instruct: bool) -> None:
    tokenizer = _trained(rf"{_WORDS}|\p{{N}}{{1,3}}|{_REST}", None, ignore_merges=True)
    special = [f"<|{token}|>" for token in _LLAMA_SPECIAL]
    _add(tokenizer, special, special=True)
    ids = {token: tokenizer.token_to_id(f"<|{token}|>") for token in _LLAMA_SPECIAL}
    bos = ("<|begin_of_text|>", ids["begin_of_text"])
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=True),
            processors.TemplateProcessing(
                single=f"{bos[0]} $A", pair=f"{bos[0]} $A {bos[0]}:1 $B:1", special_tokens=[bos]
            ),
        ]
    )
    template = {"chat_template": (TEMPLATES / "llama3_2.jinja").read_text(encoding="utf-8")}
    settings = {
        "added_tokens_decoder": _added(tokenizer),
        "bos_token": bos[0],
        **(template if instruct else {}),
        "clean_up_tokenization_spaces": True,
        "eos_token": "<|eot_id|>" if instruct else "<|end_of_text|>",
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": 131072,
        "tokenizer_class": "PreTrainedTokenizerFast",  # and no pad token
    }
    ends = [ids["end_of_text"], ids["eom_id"], ids["eot_id"]] if instruct else ids["end_of_text"]
    generation = {"bos_token_id": bos[1], "do_sample": True, "eos_token_id": ends, "temperature": 0.6, "top_p": 0.9}
    generation["transformers_version"] = "4.45.0.dev0"
    config = {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": bos[1],
        "eos_token_id": ends,
        "head_dim": 16,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "max_position_embeddings": 131072,
        "mlp_bias": False,
        "model_type": "llama",
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "factor": 32.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": tokenizer.get_vocab_size(),
    }
    _write(folder, tokenizer, settings, generation, config)
    whole = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    named = {name: {"content": settings[name], **whole} for name in ("bos_token", "eos_token")}
    _json(folder / "special_tokens_map.json", named)


def _trained(split: str, normalizer: Any, *, ignore_merges: bool) -> Tokenizer:
    """A byte-level BPE whose merges come from a few lines."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=256 + _MERGES, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator(_TEXT, trainer)
    return tokenizer


def _add(tokenizer: Tokenizer, tokens: Any, *, special: bool) -> None:
    add = tokenizer.add_special_tokens if special else tokenizer.add_tokens
    add([AddedToken(token, normalized=False, special=special) for token in tokens])


def _added(tokenizer: Tokenizer) -> dict[str, dict[str, Any]]:
    fields = ("content", "lstrip", "normalized", "rstrip", "single_word", "special")
    known = sorted(tokenizer.get_added_tokens_decoder().items())
    return {str(i): {field: getattr(token, field) for field in fields} for i, token in known}


def _write(folder: Path, tokenizer: Tokenizer, settings: dict, generation: dict, config: dict) -> None:
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
    }
    _json(folder / "config.json", config | sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.bfloat16)
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    _json(folder / "tokenizer_config.json", settings)
    _json(folder / "generation_config.json", generation)  # over what transformers makes of the settings
    _json(folder / "config.json", config | sizes)


def _json(file: Path, data: dict) -> None:
    file.write_text(json.dumps(data, indent=2), encoding="utf-8")
