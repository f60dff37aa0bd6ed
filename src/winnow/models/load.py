"""Load a model folder as a policy. Tokenizer and settings are checked before any weight is read.

No code from a folder is run and no pickle is opened. folder.py documents the forms of `path`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast

from winnow.errors import ConfigError, near_miss
from winnow.models.bnb import as_plain_model, load_in_nf4
from winnow.models.folder import published_files, refused, settings_folder, weights_folder
from winnow.models.saved_weights import SavedWeights, emptied, read_later

if TYPE_CHECKING:
    from transformers import PreTrainedModel  # imports all modelling code, which takes seconds

T = TypeVar("T")

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
NO_CODE = {"trust_remote_code": False}  # code in a model folder is not run
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The parts of a policy."""

    model: PreTrainedModel  # eval mode, no dropout in either mode, on its device
    tokenizer: Any
    stop_tokens: tuple[int, ...]  # ids that end a rollout, ascending
    files: Mapping[str, bytes]  # tokenizer and generation settings as published, for checkpoints
    # Float32 values that 16-bit parameters were rounded from
    masters: Mapping[str, Tensor] = field(default_factory=dict)
    saved: SavedWeights | None = None  # where the model is on the meta device: its weights, to be read part by part


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """Properties of a model from its config.json."""

    family: str  # "qwen2", "llama" ...
    context: int  # maximum number of tokens of a prompt with its rollout
    vocabulary: int


def describe(path: str) -> Description:
    """Read the settings alone. Raises DataError if they do not exist."""
    config = read_config(path)
    text = config.get_text_config()
    rope = getattr(text, "rope_parameters", None) or {}
    try:
        # longrope turns every position otherwise once one text of a pass is longer: log-probs would depend on the batch
        own = rope["original_max_position_embeddings"] if rope.get("rope_type") == "longrope" else None
        context = own or text.max_position_embeddings
        return Description(family=config.model_type, context=context, vocabulary=text.vocab_size)
    except AttributeError as error:
        raise refused(
            f"model.path: {path!r} is no causal language model with a bounded context ({error})", "choose another model"
        ) from error


def load(
    path: str,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    tokenizer: Any = None,
    masters: bool = False,
    quantization: Literal["nf4"] | None = None,
    later: bool = False,
) -> Loaded:
    """Load tokenizer, settings and weights, checked in that order. Raises DataError or ConfigError with the remedy.

    `tokenizer` is that of this path, where it has been loaded already. With `masters`, the parameters are also kept in
    float32, as in the files, and those of the model are rounded to `dtype`. With `quantization`, linear layers except
    the output layer are rounded from `dtype` to 4 bits. With `later`, the model is on the meta device, and the caller
    reads its weights from `Loaded.saved`, which has them in the precision of the files.
    """
    if dtype not in DTYPES:
        raise ConfigError(
            f"model.dtype: there is no dtype {dtype!r}",
            remedy=near_miss(dtype, DTYPES),
            key="model.dtype",
            code="config.value",
        )
    tokenizer = load_tokenizer(path) if tokenizer is None else tokenizer
    config = read_config(path)
    vocabulary = config.get_text_config().vocab_size
    if _writes_beyond(tokenizer, vocabulary):
        raise refused(
            f"{path}: the tokenizer has {len(tokenizer)} tokens but the model only {vocabulary}: they do not "
            f"belong together",
            "copy the tokenizer files of the same model into the folder",
        )
    files, stops = published_files(settings_folder(path)), model_stop_tokens(path, tokenizer)
    saved = None
    if later:
        model, saved = _shapes(path, config, DTYPES[dtype], torch.device(device), exact=masters)
    elif quantization is None:
        model = _weights(path, config, torch.float32 if masters else DTYPES[dtype]).to(device).eval()
    else:
        model = _weights(path, config, DTYPES[dtype], **load_in_nf4(DTYPES[dtype], device)).eval()
        as_plain_model(model)
    exact = _rounded(model, DTYPES[dtype]) if masters and not later else {}
    return Loaded(model=model, tokenizer=tokenizer, stop_tokens=stops, files=files, masters=exact, saved=saved)


def load_tokenizer(path: str) -> Any:
    """The tokenizer, which has an end-of-sequence token. Raises DataError with the remedy."""
    folder = settings_folder(path)
    if not has_tokenizer(folder):  # transformers would invent an empty tokenizer of the model's family
        raise refused(
            f"model.path: {path!r} has no tokenizer",
            "copy tokenizer.json and tokenizer_config.json into it",
            "data.missing",
        )
    # AutoTokenizer would replace the rules in tokenizer.json by the family's; the model was trained with the file's
    reader = PreTrainedTokenizerFast if (folder / "tokenizer.json").is_file() else AutoTokenizer
    tokenizer = _read(path, "tokenizer", folder, reader.from_pretrained, **NO_CODE, clean_up_tokenization_spaces=False)
    if tokenizer.eos_token_id is None:
        raise refused(
            f"{path}: the tokenizer has no eos token, so no rollout could ever stop",
            f'set "eos_token" in {folder / "tokenizer_config.json"} to a token of the vocabulary',
        )
    return tokenizer


def has_tokenizer(folder: Path) -> bool:
    """Whether a model folder has a file of a tokenizer."""
    return any((folder / name).is_file() for name in TOKENIZER_FILES)


def stop_tokens(tokenizer: Any, generation: GenerationConfig | None = None) -> tuple[int, ...]:
    """All ids that end a text, ascending: the tokenizer's eos token and those of the model's generation settings."""
    more = None if generation is None else generation.eos_token_id
    listed: Iterable[int] = more if isinstance(more, list) else [] if more is None else [more]
    return tuple(sorted({tokenizer.eos_token_id, *listed}))


def model_stop_tokens(path: str, tokenizer: Any) -> tuple[int, ...]:
    """Stop tokens of the model at `path`, by generation_config.json, or by its config.json without one. Raises
    DataError.

    Ids outside the vocabulary can never be sampled and are omitted.
    """
    folder, config = settings_folder(path), read_config(path)
    if (folder / "generation_config.json").is_file():
        generation = _read(path, "generation_config.json", folder, GenerationConfig.from_pretrained)
    else:
        generation = GenerationConfig.from_model_config(config)
    vocabulary = config.get_text_config().vocab_size
    return tuple(token for token in stop_tokens(tokenizer, generation) if 0 <= token < vocabulary)


def _writes_beyond(tokenizer: Any, vocabulary: int) -> bool:
    """Whether a prompt may contain a token without an embedding. A special token that neither the chat template nor the
    tokenizer writes needs none, such as that of pictures in Gemma 3 1B.
    """
    if len(tokenizer) <= vocabulary:
        return False
    special, written = tokenizer.added_tokens_decoder, f"{tokenizer.chat_template} {tokenizer.bos_token}"
    beyond = ((token, number) for token, number in tokenizer.get_vocab().items() if number >= vocabulary)
    return any(
        number not in special or not special[number].special or token in written or token == tokenizer.eos_token
        for token, number in beyond
    )


def _weights(path: str, config: Any, dtype: torch.dtype, **more: Any) -> Any:
    model, report = _read(
        path,
        "weights",
        weights_folder(path),
        AutoModelForCausalLM.from_pretrained,
        config=_without_dropout(config),
        dtype=dtype,
        attn_implementation="sdpa",
        use_safetensors=True,
        **NO_CODE,
        output_loading_info=True,
        **more,
    )
    if missing := sorted(report["missing_keys"]):
        raise refused(
            f"{path}: {len(missing)} weights are not in the files and would be random, {missing[0]!r} among them",
            "copy every *.safetensors file of the model into the folder",
            "data.missing",
        )
    model.name_or_path = path  # not a folder of the hub's cache, as it becomes the base model's name in an adapter
    return model


def _shapes(
    path: str, config: Any, dtype: torch.dtype, device: torch.device, *, exact: bool
) -> tuple[Any, SavedWeights]:
    """The model on the meta device, in eval mode, and its weights. Where its files have another form than its modules,
    it is first read whole into host memory, in float32 where the weights are needed `exact`.
    """
    found = read_later(_without_dropout(config), weights_folder(path), dtype, device)
    if found is None:
        found = emptied(_weights(path, config, torch.float32 if exact else dtype), dtype, device)
    model, saved = found
    model.name_or_path = path
    return model.eval(), saved


def _rounded(model: Any, dtype: torch.dtype) -> dict[str, Tensor]:
    """Round every parameter in place, and return the values before, by name.

    Buffers keep their precision, as they do where transformers reads a model in `dtype`.
    """
    exact = {name: parameter.data for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    model.config.dtype = dtype
    return exact


def read_config(path: str) -> Any:
    """The model's settings. Raises DataError if they do not exist, name other weight files, or are of quantized
    weights.
    """
    config = _read(path, "config.json", settings_folder(path), AutoConfig.from_pretrained, **NO_CODE)
    if named := getattr(config, "transformers_weights", None):
        raise refused(
            f"{path}: config.json names the weights {named!r} (transformers_weights), and winnow reads only "
            f"model.safetensors and the files in its index",
            "rename the files, and remove transformers_weights from config.json",
        )
    if getattr(config, "quantization_config", None) is not None:
        raise refused(
            f"{path}: the model is quantized already (quantization_config in config.json), and packed weights cannot "
            f"be trained",
            "use the model that it was quantized from, with model.quantization = 'nf4' for 4 bits",
        )
    return config


def _read(path: str, what: str, folder: Path, reader: Callable[..., T], **options: Any) -> T:
    try:
        return reader(str(folder), local_files_only=True, **options)
    except Exception as error:  # the exceptions of the readers' parsers have no common base
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise refused(
            f"model.path: no usable {what} of {path!r} in the folder ({reason})",
            "give it config.json, tokenizer.json, tokenizer_config.json and *.safetensors of one model",
            "data.unreadable",
        ) from error


def _without_dropout(config: Any) -> Any:
    """Remove dropout from the settings: it would make the trained policy differ from the sampled policy."""
    for name, value in vars(config).items():
        if "dropout" in name and isinstance(value, float):
            setattr(config, name, 0.0)
    return config
