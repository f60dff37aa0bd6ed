"""Write the model in a GGUF file, such as llama.cpp uses, as a folder in Hugging Face format with bfloat16 weights.

Quantized weights become numbers again, each rounded to the nearest one of bfloat16. They are not the weights that were
published: the file has only their rounded values, and the model card lists which tensors had how many
bits. The layout and the tokenizer are checked before any weight is read.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from winnow.errors import DataError
from winnow.installed import is_installed
from winnow.models.gguf_tokenizer import check_tokenizer, special_ids, tokenizer_files
from winnow.models.save import write_model_folder

CARD = "README.md"
EXACT = ("F32", "F16", "BF16")  # types of tensors that are not quantized

_SHARED = r"token_embd|output_norm|output|blk\.\d+\.(attn_(norm|[qkv]|output)|ffn_(norm|gate|up|down))"
LAYOUTS: Mapping[str, re.Pattern[str]] = MappingProxyType(  # architecture -> the names of its tensors
    {
        "llama": re.compile(rf"({_SHARED})\.weight"),
        "qwen2": re.compile(rf"({_SHARED})\.weight|blk\.\d+\.attn_[qkv]\.bias"),
        "qwen3": re.compile(rf"({_SHARED}|blk\.\d+\.attn_[qk]_norm)\.weight"),
    }
)


@dataclass(frozen=True, kw_only=True)
class GgufFile:
    """A GGUF file without its weights."""

    metadata: Mapping[str, Any]
    tensors: Mapping[str, str]  # name -> type, such as "Q4_1"


def write_gguf_model(file: Path, folder: Path) -> list[str]:
    """Write the model of a GGUF file into `folder`: config.json, bfloat16 weights, tokenizer, generation settings, the
    licence beside the file, and a model card. Returns lines that describe what was quantized.

    Raises DataError for a file that cannot be read, and before the weights are read for a layout or a tokenizer that
    winnow does not load.
    """
    found = describe(file)
    check(found)
    model = _plain_model(file, found)
    context = int(model.config.max_position_embeddings)
    write_model_folder(model, tokenizer_files(found.metadata, context=context), folder)
    for licence in filter(Path.is_file, sorted(file.parent.glob("LICENSE*"))):
        (folder / licence.name).write_bytes(licence.read_bytes())
    lines = quantized(found.tensors)
    (folder / CARD).write_text(_card(file, found.metadata, lines), encoding="utf-8")
    return lines


def describe(file: Path) -> GgufFile:
    """Read the fields of a GGUF file and the types of its tensors. Raises DataError."""
    if not is_installed("gguf"):
        raise DataError(
            "reading a GGUF file needs the package 'gguf', which is not installed here",
            remedy="pip install 'winnow-rl[gguf]'",
            code="data.not_installed",
        )
    import gguf

    if not file.is_file():
        raise DataError(f"there is no file {file}", remedy="check the path", code="data.missing")
    try:
        reader = gguf.GGUFReader(file)
        metadata = {name: field.contents() for name, field in reader.fields.items()}
        return GgufFile(metadata=metadata, tensors={one.name: one.tensor_type.name for one in reader.tensors})
    except Exception as error:  # its reader's errors have no common base
        raise DataError(
            f"{file} cannot be read as a GGUF file ({type(error).__name__}: {str(error).partition(chr(10))[0]})",
            remedy="download it again",
            code="data.malformed",
        ) from error


def check(found: GgufFile) -> None:
    """Raise DataError unless winnow loads the layout and can rebuild the tokenizer."""
    architecture = str(found.metadata.get("general.architecture"))
    if architecture not in LAYOUTS:
        raise _unfit(f"its layout is {architecture!r}, and winnow reads {', '.join(LAYOUTS)} from GGUF")
    scaled = found.metadata.get(f"{architecture}.rope.scaling.type", "none")
    if scaled != "none" or "rope_freqs.weight" in found.tensors:
        raise _unfit("its positions are scaled, and a GGUF file does not have all settings of that")
    if found.metadata.get("split.count", 1) > 1:
        raise _unfit("it is one part of several")
    if other := [name for name in found.tensors if not LAYOUTS[architecture].fullmatch(name)]:
        raise _unfit(f"winnow does not know the tensor {other[0]!r} of a {architecture} model")
    check_tokenizer(found.metadata)


def quantized(tensors: Mapping[str, str]) -> list[str]:
    """A line about the types of the tensors, and one about what they became."""
    counts = Counter(tensors.values())
    rounded = sum(count for kind, count in counts.items() if kind not in EXACT)
    kinds = ", ".join(f"{count} in {kind}" for kind, count in counts.most_common())
    return [
        f"{rounded} of {len(tensors)} tensors were quantized ({kinds})",
        "their rounded values are now in bfloat16: these are not the weights that were published"
        if rounded
        else "all are now in bfloat16",
    ]


def _plain_model(file: Path, found: GgufFile) -> Any:
    """The model in bfloat16. transformers refuses to save a model that it read from GGUF, so its tensors are moved into
    a model without that mark.
    """
    transformers_logging.disable_progress_bar()
    try:
        with redirect_stderr(io.StringIO()):  # of a second progress bar, which has no setting
            place = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
            model, report = AutoModelForCausalLM.from_pretrained(
                **place,
                config=_config(place, found.metadata),
                dtype=torch.float32,  # rounded once: some quantized types would be computed in bfloat16
                local_files_only=True,
                output_loading_info=True,
            )
    except Exception as error:  # its errors have no common base
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise _unfit(f"transformers cannot read its weights ({reason})") from error
    if absent := sorted(report["missing_keys"]):
        raise _unfit(f"it lacks {len(absent)} tensors of the model, {absent[0]!r} among them")
    config = type(model.config)(**_settings(model.config.to_dict(), found.metadata))
    with torch.device("meta"):
        plain = type(model)(config).to(torch.bfloat16)
    state = {name: tensor.to(torch.bfloat16) for name, tensor in model.state_dict().items()}
    plain.load_state_dict(state, assign=True)
    plain.tie_weights()
    return plain


def _config(place: Mapping[str, str], metadata: Mapping[str, Any]) -> Any:
    """The settings as transformers reads them, with the size of a head, which it omits for some layouts."""
    config = AutoConfig.from_pretrained(**place)
    if head := metadata.get(f"{config.model_type}.attention.key_length"):
        config.head_dim = head
    return config


def _settings(read: Mapping[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that transformers read, with the special tokens of the file, and without what is only of GGUF.

    Numbers are float32 in GGUF: each is written as the shortest decimal of that float32 (1e-05, not 9.99999974e-06).
    """
    kept = {key: value for key, value in read.items() if not key.startswith("_") and key != "quantization_config"}
    return {**_shortest(kept), "dtype": "bfloat16", **special_ids(metadata)}


def _shortest(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _shortest(inner) for key, inner in value.items()}
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _card(file: Path, metadata: Mapping[str, Any], lines: Iterable[str]) -> str:
    """A model card: origin, licence, and what was done to the weights."""
    with file.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    name, organization, licence = (
        metadata.get(f"general.{field}", "not stated in the file") for field in ("name", "organization", "license")
    )
    return "\n".join(
        [
            f"# {name}",
            "",
            f"- organization: {organization}",
            f"- licence: {licence}",
            f"- made from: {file.name}, {file.stat().st_size:,} bytes, SHA-256 {digest}",
            *(f"- {line}" for line in lines),
            "",
        ]
    )


def _unfit(problem: str) -> DataError:
    return DataError(problem, remedy="fetch the published model by its hub id", code="data.unfit_model")
