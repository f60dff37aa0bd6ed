"""How a model folder becomes a policy: tokenizer and settings are checked before any weight is read.

`path` is everywhere "bundled" (the tiny policy inside the package), a folder in Hugging Face format, or a hub id. No
code from a folder is run and no pickle is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from winnow.errors import ConfigError, DataError, did_you_mean

T = TypeVar("T")

BUNDLED = Path(__file__).parent / "bundled"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A policy's parts."""

    model: PreTrainedModel  # eval mode, no dropout in either mode, on its device
    tokenizer: Any
    stop_tokens: tuple[int, ...]  # ids that end a rollout, ascending


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What a model's config.json says about it."""

    family: str  # "qwen2", "llama" ...
    context: int  # the most tokens a prompt and its rollout may have together
    vocabulary: int


def describe(path: str) -> Description:
    """Read the settings alone. Raises DataError where there are none."""
    config = read_config(path)
    text = config.get_text_config()
    try:
        return Description(family=config.model_type, context=text.max_position_embeddings, vocabulary=text.vocab_size)
    except AttributeError as error:
        raise DataError(
            f"model.path: {path!r} is no causal language model with a bounded context ({error}); choose another"
        ) from error


def load(path: str, *, dtype: str = "float32", device: str = "cpu") -> Loaded:
    """Tokenizer, weights and stop tokens, checked in that order. Raises DataError or ConfigError naming the remedy."""
    if dtype not in DTYPES:
        raise ConfigError(f"model.dtype: there is no dtype {dtype!r}{did_you_mean(dtype, DTYPES)}")
    tokenizer = load_tokenizer(path)
    config = read_config(path)
    if len(tokenizer) > config.vocab_size:
        raise DataError(
            f"{path}: the tokenizer has {len(tokenizer)} tokens but the model only {config.vocab_size}: they do not "
            f"belong together; copy the tokenizer files of the same model into the folder"
        )
    model = _weights(path, config, DTYPES[dtype]).to(device).eval()
    return Loaded(model=model, tokenizer=tokenizer, stop_tokens=stop_tokens(tokenizer, model.generation_config))


def load_tokenizer(path: str) -> Any:
    """The tokenizer, with distinct pad and end-of-sequence tokens. Raises DataError naming the remedy."""
    source, local = _source(path)
    if local and not any((Path(source) / name).is_file() for name in TOKENIZER_FILES):
        # transformers would invent an empty tokenizer of the model's family
        raise DataError(f"model.path: {path!r} has no tokenizer; copy tokenizer.json and tokenizer_config.json into it")
    # AutoTokenizer puts the family's own rules in place of those in tokenizer.json; the file is what was trained with
    as_written = local and (Path(source) / "tokenizer.json").is_file()
    tokenizer = _read(path, "tokenizer", (PreTrainedTokenizerFast if as_written else AutoTokenizer).from_pretrained)
    check_tokenizer(tokenizer, path)
    return tokenizer


def check_tokenizer(tokenizer: Any, path: str) -> None:
    """Raise DataError unless the tokenizer can both end a text and pad a batch, with different tokens."""
    where = f"in {path}/tokenizer_config.json to a token of the vocabulary"
    if tokenizer.eos_token_id is None:
        raise DataError(
            f'{path}: the tokenizer has no eos token, so no rollout could ever stop; set "eos_token" {where}'
        )
    if tokenizer.pad_token_id is None:
        raise DataError(
            f"{path}: the tokenizer has no pad token, so rollouts of different lengths cannot share a batch; "
            f'set "pad_token" {where}{_spare(tokenizer)}'
        )
    if tokenizer.pad_token_id == tokenizer.eos_token_id:
        raise DataError(
            f"{path}: the tokenizer pads with its eos token {tokenizer.eos_token!r}. winnow masks by position and "
            f"would train it correctly, but a warm start, or any other tool that masks padding by its value, then "
            f'never teaches the policy to stop; set "pad_token" {where} that is not the eos token{_spare(tokenizer)}'
        )


def stop_tokens(tokenizer: Any, generation: GenerationConfig | None = None) -> tuple[int, ...]:
    """Every id that ends a text, ascending: the tokenizer's eos and those of the model's generation settings."""
    more = None if generation is None else generation.eos_token_id
    listed: Iterable[int] = more if isinstance(more, list) else [] if more is None else [more]
    return tuple(sorted({tokenizer.eos_token_id, *listed}))


def _weights(path: str, config: Any, dtype: torch.dtype) -> Any:
    model, report = _read(
        path,
        "weights",
        AutoModelForCausalLM.from_pretrained,
        config=_without_dropout(config),
        dtype=dtype,
        attn_implementation="sdpa",
        use_safetensors=True,
        output_loading_info=True,
    )
    if missing := sorted(report["missing_keys"]):
        raise DataError(
            f"{path}: {len(missing)} weights are not in the files and would be random, {missing[0]!r} among them; "
            f"copy every *.safetensors file of the model into the folder"
        )
    return model


def read_config(path: str) -> Any:
    """The model's settings. Raises DataError where there are none."""
    return _read(path, "config.json", AutoConfig.from_pretrained)


def _read(path: str, what: str, reader: Callable[..., T], **options: Any) -> T:
    source, local = _source(path)
    try:
        return reader(source, local_files_only=local, trust_remote_code=False, **options)
    except Exception as error:  # the readers raise what their parsers raise
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        where = "the folder" if local else "the hub (is there a network, and is the id right?)"
        raise DataError(
            f"model.path: no usable {what} of {path!r} in {where}; a model folder holds config.json, tokenizer.json, "
            f"tokenizer_config.json and *.safetensors. The reader said: {reason}"
        ) from error


def _source(path: str) -> tuple[str, bool]:
    """What transformers should open, and whether it is on this machine."""
    folder = BUNDLED if path == "bundled" else Path(path).expanduser()
    if folder.is_dir():
        return str(folder), True
    if path.count("/") == 1 and not path.startswith((".", "/", "~")):
        return path, False
    raise DataError(
        f'model.path: there is no folder {path!r}; give "bundled", a model folder, or a hub id "owner/name"'
    )


def _without_dropout(config: Any) -> Any:
    """Dropout would make the trained policy another one than the sampled policy."""
    for name, value in vars(config).items():
        if "dropout" in name and isinstance(value, float):
            setattr(config, name, 0.0)
    return config


def _spare(tokenizer: Any) -> str:
    """A hint: a token the vocabulary already has for padding or for no purpose yet."""
    names = (str(token) for token in tokenizer.added_tokens_decoder.values() if str(token) != tokenizer.eos_token)
    spare = next((name for name in names if "pad" in name or "reserved" in name), None)
    return "" if spare is None else f" (it has {spare!r})"
