"""The tokenizer in a GGUF file as files in Hugging Face format.

GGUF has the vocabulary, the merges and the chat template, but of the rules that split text only a name
(`tokenizer.ggml.pre`). The rules of each name in `SPLITS` are those of the published tokenizer.json of its models. For
SmolLM2 the file written here is the published one to the byte. transformers does not read every one of these names: of
`smollm` it omits that digits are split first, so "a  7" becomes other tokens than those of the published tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from winnow.errors import DataError

Metadata = Mapping[str, Any]  # the fields of a GGUF file by name

CONTROL, USER_DEFINED, UNUSED = 3, 4, 5  # of tokenizer.ggml.token_type; UNUSED fills the rows of a wider embedding

_LETTERS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@dataclass(frozen=True, kw_only=True)
class Split:
    """The rules that split text before merges are applied."""

    steps: tuple[Mapping[str, Any], ...]  # pre-tokenizers, as in tokenizer.json
    normalizer: Mapping[str, Any] | None = None
    ignore_merges: bool = False  # whether a piece that is a token is not merged from its bytes


_DIGITS = {"type": "Digits", "individual_digits": True}
_WORDS_IN_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_BYTES = {**_WORDS_IN_BYTES, "use_regex": False}
_ISOLATED = {"behavior": "Isolated", "invert": False}
_EACH_DIGIT = {"type": "Split", "pattern": {"Regex": rf"{_LETTERS}|\p{{N}}|{_REST}"}, **_ISOLATED}
_THREE_DIGITS = {"type": "Split", "pattern": {"Regex": rf"{_LETTERS}|\p{{N}}{{1,3}}|{_REST}"}, **_ISOLATED}
_QWEN2 = Split(steps=(_EACH_DIGIT, _BYTES), normalizer={"type": "NFC"})
SPLITS: Mapping[str, Split] = MappingProxyType(
    {
        "gpt-2": Split(steps=(_WORDS_IN_BYTES,)),
        "smollm": Split(steps=(_DIGITS, _WORDS_IN_BYTES)),
        "qwen2": _QWEN2,
        "deepseek-r1-qwen": _QWEN2,
        "llama-bpe": Split(steps=(_THREE_DIGITS, _BYTES), ignore_merges=True),
    }
)


def check_tokenizer(metadata: Metadata) -> None:
    """Raise DataError for a tokenizer whose rules are not in `SPLITS`, and for one without merges or an end token."""
    kind, rules = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if kind != "gpt2" or rules not in SPLITS:
        raise DataError(
            f"its tokenizer is of the kind {kind!r} with the rules {rules!r}, which winnow cannot rebuild exactly",
            remedy=f"fetch the published model by its hub id (winnow rebuilds 'gpt2' with {', '.join(SPLITS)})",
            code="data.unfit_model",
        )
    for field in ("tokens", "merges", "token_type", "eos_token_id"):
        if f"tokenizer.ggml.{field}" not in metadata:
            raise DataError(
                f"it has no tokenizer.ggml.{field}", remedy="download the file again", code="data.malformed"
            )


def tokenizer_files(metadata: Metadata, *, context: int) -> dict[str, bytes]:
    """tokenizer.json and tokenizer_config.json of a tokenizer that `check_tokenizer` accepts, and the generation
    settings with its end tokens. `context` is the model's maximum number of tokens.
    """
    tokens: Sequence[str] = metadata["tokenizer.ggml.tokens"]
    named = {
        f"{role}_token": tokens[metadata[f"tokenizer.ggml.{key}_token_id"]]
        for role, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown"))
        if f"tokenizer.ggml.{key}_token_id" in metadata
    }
    template = metadata.get("tokenizer.chat_template")
    settings = {
        "added_tokens_decoder": {str(one.pop("id")): one for one in _added(metadata)},
        **named,
        **({} if template is None else {"chat_template": template}),
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
        "tokenizer_class": "PreTrainedTokenizerFast",  # a family's class would replace the rules of tokenizer.json
    }
    return {
        "tokenizer.json": _json(_tokenizer(metadata)),
        "tokenizer_config.json": _json(settings) + b"\n",
        "generation_config.json": _json(special_ids(metadata)) + b"\n",
    }


def special_ids(metadata: Metadata) -> dict[str, Any]:
    """The ids of the special tokens as in generation_config.json. A file may name several tokens that end a turn."""
    by_key = ((key, metadata.get(f"tokenizer.ggml.{key}_token_id")) for key in ("bos", "eos", "eot", "eom", "padding"))
    ids = {key: int(token) for key, token in by_key if token is not None}
    ends = sorted({token for key, token in ids.items() if key in ("eos", "eot", "eom")})
    found = {
        "bos_token_id": ids.get("bos"),
        "eos_token_id": ends[0] if len(ends) == 1 else ends,
        "pad_token_id": ids.get("padding"),
    }
    return {name: value for name, value in found.items() if value is not None}


def _tokenizer(metadata: Metadata) -> dict[str, Any]:
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    split = SPLITS[metadata["tokenizer.ggml.pre"]]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added(metadata),
        "normalizer": split.normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": list(split.steps)},
        "post_processor": _first_token(metadata),
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": split.ignore_merges,
            "vocab": {token: i for i, (token, kind) in enumerate(zip(tokens, types, strict=True)) if kind != UNUSED},
            "merges": list(metadata["tokenizer.ggml.merges"]),
        },
    }


def _added(metadata: Metadata) -> list[dict[str, Any]]:
    """The tokens that are matched whole, as in tokenizer.json."""
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    whole = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [
        {"id": i, "content": token, **whole, "special": kind == CONTROL}
        for i, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in (CONTROL, USER_DEFINED)
    ]


def _first_token(metadata: Metadata) -> dict[str, Any] | None:
    """The step that begins every text with BOS, where the file requests it."""
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    if bos is None or not metadata.get("tokenizer.ggml.add_bos_token", False):
        return None
    token = metadata["tokenizer.ggml.tokens"][bos]
    first = {"SpecialToken": {"id": token, "type_id": 0}}
    text, second = ({"Sequence": {"id": name, "type_id": kind}} for name, kind in (("A", 0), ("B", 1)))
    return {
        "type": "TemplateProcessing",
        "single": [first, text],
        "pair": [first, text, {"SpecialToken": {"id": token, "type_id": 1}}, second],
        "special_tokens": {token: {"id": token, "ids": [bos], "tokens": [token]}},
    }


def _json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, indent=2, ensure_ascii=False).encode()
