"""bitsandbytes, an extra: what is known of its 8-bit moments, and of its weights of 4 bits.

Those are QLoRA's (Dettmers et al. 2023, arXiv 2305.14314, section 3): nf4 in blocks of 64 numbers with a scale each,
and the scales in 8 bits themselves.
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

from winnow.errors import ConfigError

LEAST_8BIT = 4096  # numbers of a tensor that gets 8-bit moments; smaller ones keep float32
MOMENT_BLOCK = 256  # numbers of an 8-bit moment that share a float32 scale
BLOCK, SCALES_BLOCK = 64, 256  # numbers of 4 bits that share a scale; scales of 8 bits that share one of float32

# What a state dict has beside a weight of 4 bits, under the weight's name.
SCALES = ("absmax", "quant_map", "nested_absmax", "nested_quant_map", "quant_state.bitsandbytes__nf4")


# It says that it would rather have a kernel from the hub (see `without_hub_kernels`).
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)


def bitsandbytes() -> Any:
    """The package. It is imported late, as it takes seconds."""
    with without_hub_kernels():
        import bitsandbytes

    return bitsandbytes


@contextlib.contextmanager
def without_hub_kernels() -> Iterator[None]:
    """While bitsandbytes is imported, which peft does too: on some CPUs it would have the package `kernels`, where that
    is installed, bring a kernel from the hub and load it. Nothing is brought that was not asked for, and no code.
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
    """For `from_pretrained`: every linear layer but the output layer in 4 bits, computing in `dtype`."""
    from transformers import BitsAndBytesConfig

    bitsandbytes()
    asked = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )
    return {"quantization_config": asked, "device_map": {"": device}}


def as_plain_model(model: Any) -> None:
    """Make a model in 4 bits compute in one way, and call itself a plain one, which is what is saved of it.

    On some CPUs a layer would turn its scales into bfloat16, for good, in the first pass without gradients: later
    passes, and a resumed run's, would be of other weights. Raises ConfigError for layers that keep their matrices on
    their side, as GPT-2's: what is saved would not be.
    """
    for name, module in model.named_modules():
        if isinstance(module, bitsandbytes().nn.Linear4bit):
            if module.source_cls is not nn.Linear:
                raise ConfigError(
                    f"model.quantization: {name!r} is a {module.source_cls.__name__}, which cannot be saved in 4 bits",
                    remedy="remove the key",
                    key="model.quantization",
                    code="config.unsupported",
                )
            module.support_avx512bf16_for_cpu = False
    model.hf_quantizer = None
    del model.config.quantization_config


def is_4bit(weight: Tensor) -> bool:
    """Whether it is a packed matrix, two numbers a byte."""
    return getattr(weight, "quant_state", None) is not None


def is_scale(name: str) -> bool:
    """Whether a state dict's tensor says what a weight of 4 bits means."""
    return name.endswith(tuple(f".weight.{scale}" for scale in SCALES))


def dequantized(weight: Tensor) -> Tensor:
    """A matrix as it is, or, of 4 bits, what they mean, in float32."""
    if not is_4bit(weight):
        return weight
    meaning = copy.copy(weight.quant_state)  # type: ignore[attr-defined]
    meaning.dtype = torch.float32
    numbers: Tensor = bitsandbytes().functional.dequantize_4bit(weight.data, meaning)
    return numbers


def dequantized_shape(weight: Tensor) -> Tensor:
    """What a matrix of 4 bits means, as a shape and a precision on the meta device."""
    shape: torch.Size = weight.quant_state.shape  # type: ignore[attr-defined]
    return torch.empty(shape, dtype=dtype_of(weight), device="meta")


def dtype_of(weight: Tensor) -> torch.dtype:
    """That of a matrix, or, of 4 bits, the one that it was rounded from and computes in."""
    dtype: torch.dtype = weight.quant_state.dtype if is_4bit(weight) else weight.dtype  # type: ignore[attr-defined]
    return dtype


def to_4bit_shapes(model: Any) -> None:
    """Give a model on the meta device the shapes that its linear layers, but the output layer, have in 4 bits."""
    head = model.get_output_embeddings()
    for module in model.modules():
        if isinstance(module, nn.Linear) and module is not head:
            scales = -(-module.weight.numel() // BLOCK)
            packed = torch.empty(-(-module.weight.numel() // 2), 1, dtype=torch.uint8, device="meta")
            module.weight = nn.Parameter(packed, requires_grad=False)
            module.register_buffer("scales", torch.empty(scales, dtype=torch.uint8, device="meta"))
            of_scales = -(-scales // SCALES_BLOCK) + 1  # and the mean they are measured from
            module.register_buffer("scales_of_scales", torch.empty(of_scales, device="meta"))
