"""bitsandbytes, an optional package: sizes of its 8-bit moments, and its 4-bit weights.

The weights are QLoRA's (Dettmers et al. 2023, arXiv 2305.14314, section 3): nf4 in blocks of 64 numbers with a scale
each, and the scales themselves in 8 bits.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from winnow.errors import unsupported

LEAST_8BIT = 4096  # minimum size of a tensor with 8-bit moments; smaller ones keep float32
MOMENT_BLOCK = 256  # numbers of an 8-bit moment per float32 scale
BLOCK, SCALES_BLOCK = 64, 256  # 4-bit numbers per 8-bit scale; 8-bit scales per float32 scale

# Tensors beside a 4-bit weight in a state dict, whose names start with the weight's name.
SCALES = ("absmax", "quant_map", "nested_absmax", "nested_quant_map", "quant_state.bitsandbytes__nf4")


# It logs a recommendation to load a kernel from the hub (see `without_hub_kernels`).
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)


def bitsandbytes() -> Any:
    """The package, imported late because importing it takes seconds."""
    with without_hub_kernels():
        import bitsandbytes

    return bitsandbytes


@contextlib.contextmanager
def without_hub_kernels() -> Iterator[None]:
    """A context for importing bitsandbytes, which peft does too. On some CPUs it would download a kernel from the hub
    and load it, where the package `kernels` is installed. winnow downloads nothing that was not requested, and no code.
    """
    missing = "kernels" not in sys.modules
    if missing:
        sys.modules["kernels"] = None  # type: ignore[assignment]  # importing it raises ImportError
    try:
        yield
    finally:
        if missing:
            del sys.modules["kernels"]


def load_in_nf4(dtype: torch.dtype, device: str) -> dict[str, Any]:
    """Options of `from_pretrained`: load every linear layer but the output layer in 4 bits, and compute in `dtype`."""
    from transformers import BitsAndBytesConfig

    bitsandbytes()
    settings = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype
    )
    return {"quantization_config": settings, "device_map": {"": device}}


def as_plain_model(model: Any) -> None:
    """Make a 4-bit model compute the same in every pass, and remove its quantization settings, as it is saved
    dequantized.

    On some CPUs a layer would convert its scales to bfloat16 for good in the first pass without gradients. Later
    passes, and those of a resumed run, would then use other weights.
    """
    for module in model.modules():
        if isinstance(module, bitsandbytes().nn.Linear4bit):
            module.support_avx512bf16_for_cpu = False
    model.hf_quantizer = None
    del model.config.quantization_config


def is_4bit(weight: Tensor) -> bool:
    """Whether a weight is a packed matrix, with two numbers per byte."""
    return getattr(weight, "quant_state", None) is not None


def is_scale(name: str) -> bool:
    """Whether a state dict's tensor is part of the quantization state of a 4-bit weight."""
    return name.endswith(tuple(f".weight.{scale}" for scale in SCALES))


def dequantized(weight: Tensor) -> Tensor:
    """A matrix as it is, or dequantized to float32 where it is 4-bit."""
    if not is_4bit(weight):
        return weight
    state = copy.copy(weight.quant_state)  # type: ignore[attr-defined]
    state.dtype = torch.float32
    numbers: Tensor = bitsandbytes().functional.dequantize_4bit(weight.data, state)
    return numbers


def dequantized_shape(weight: Tensor) -> Tensor:
    """Shape and dtype of a 4-bit matrix once dequantized, on the meta device."""
    shape: torch.Size = weight.quant_state.shape  # type: ignore[attr-defined]
    return torch.empty(shape, dtype=dtype_of(weight), device="meta")


def dtype_of(weight: Tensor) -> torch.dtype:
    """dtype of a matrix; for a 4-bit one, the dtype that it was rounded from and computes in."""
    dtype: torch.dtype = weight.quant_state.dtype if is_4bit(weight) else weight.dtype  # type: ignore[attr-defined]
    return dtype


def to_4bit_shapes(model: Any) -> None:
    """Give the linear layers of a model on the meta device, except the output layer, the shapes of 4-bit weights.

    Raises ConfigError for layers with transposed matrices, such as GPT-2's, which cannot be saved in 4 bits.
    """
    from transformers.pytorch_utils import Conv1D

    head = model.get_output_embeddings()
    for name, module in model.named_modules():
        if isinstance(module, Conv1D):
            raise unsupported(
                f"model.quantization: {name!r} is a Conv1D, which cannot be saved in 4 bits",
                remedy="remove the key",
                key="model.quantization",
            )
        if isinstance(module, nn.Linear) and module is not head:
            scales = -(-module.weight.numel() // BLOCK)
            packed = torch.empty(-(-module.weight.numel() // 2), 1, dtype=torch.uint8, device="meta")
            module.weight = nn.Parameter(packed, requires_grad=False)
            module.register_buffer("scales", torch.empty(scales, dtype=torch.uint8, device="meta"))
            of_scales = -(-scales // SCALES_BLOCK) + 1  # and the mean that is subtracted from the scales
            module.register_buffer("scales_of_scales", torch.empty(of_scales, device="meta"))
