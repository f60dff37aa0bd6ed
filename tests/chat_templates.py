"""Tokenizers of bytes with the chat templates in tests/fixtures/chat_templates, which behave as published ones do."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from winnow.tasks import chat

FOLDER = Path(__file__).parent / "fixtures" / "chat_templates"
CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
LIKE = {  # name: special tokens, of which the last ends a turn of the policy
    "qwen2_5": CHATML,
    "qwen2_5_math": CHATML,
    "qwen3": CHATML,
    "smollm2": CHATML,
    "llama3_2": ("<|begin_of_text|>", "<|python_tag|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    "gemma3": ("<bos>", "<start_of_turn>", "<end_of_turn>"),
    "mistral": ("<s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[ARGS]", "</s>"),
    "phi": ("<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
}


def of_bytes(template: str, special: Sequence[str]) -> PreTrainedTokenizerFast:
    """A tokenizer of bytes with these special tokens, the first of which begins a text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={character: place for place, character in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(token, special=True) for token in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token=special[0], eos_token=special[-1], chat_template=template
    )


def like(name: str) -> PreTrainedTokenizerFast:
    """The tokenizer with the template of this name."""
    return of_bytes((FOLDER / f"{name}.jinja").read_text(encoding="utf-8"), LIKE[name])


def render_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Templates are rendered in this process, without limits, and not in a fork of it, which takes a twentieth of a
    second. `monkeypatch.undo()` in a test is for forks again.
    """

    def written(texts: Iterator[str]) -> tuple[bytes, int]:
        pipe = io.BytesIO()
        chat._write_texts(pipe, texts)
        return pipe.getvalue(), 0

    monkeypatch.setattr(chat, "_in_child", written)
    monkeypatch.setattr(chat, "limit_resource", lambda what, most: None)
