"""The settings of a published model, without weights."""

from __future__ import annotations

import json

import pytest

from published_models import make


@pytest.fixture
def qwen(tmp_path):
    """The published settings of Qwen2.5-1.5B, with a small tokenizer and no weights."""
    make("qwen2.5", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    sizes = {
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_attention_heads": 12,
        "num_hidden_layers": 28,
        "vocab_size": 151936,
    }
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **sizes}))
    return tmp_path
