"""In which precision a run computes, and what its weights are kept in; torch is told here."""

from __future__ import annotations

import torch

from winnow.config import Config


def keeps_masters(config: Config) -> bool:
    """Whether float32 masters of the weights are trained. An adapter is float32 on a base of 16 bits, and has none."""
    return config.model.dtype == "bfloat16" and config.model.lora is None and config.optimizer.master_weights


def set_matrix_products(*, tf32: bool) -> None:
    """Whether float32 matrix products on a GPU may use TF32. torch's own default for them is false, for convolutions
    true, and a program that winnow is called from may have changed either; on a CPU it says nothing.
    """
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32


def in_words(config: Config, device: str) -> str:
    """For a person: what is computed, kept and summed in which precision."""
    dtype, few = config.model.dtype, config.optimizer.moments == "8bit"
    base = "" if config.model.quantization is None else " on a base of 4 bits (nf4)"
    if dtype != "bfloat16":
        products = f" with TF32 {'on' if config.model.tf32 else 'off'}"
        shown = products if device.startswith("cuda") and dtype == "float32" else ""
        return f"{dtype}{shown}{base}{'; moments in 8 bits' if few else ''}"
    if config.model.lora is not None:
        return f"bfloat16{base}, the adapter in float32{', its moments in 8 bits' if few else ''}"
    kept = "float32 masters" if config.optimizer.master_weights else "updates rounded at random"
    return f"bfloat16, {kept}; gradients{' in float32, moments in 8 bits' if few else ' and moments in float32'}"
