"""A model without weights: every shape that its config.json implies, on the meta device, and its size in bytes.

The parameters of common decoders follow from their settings alone: transformers takes seconds to import modelling code,
which planning memory does not need. Other families are built by transformers on the meta device.

A model on the meta device cannot be trained. `without_numbers` makes one of torch's fake tensors, which can: they have
shapes, devices and gradients, and no memory (commands/check/rehearsal.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from winnow.models.bnb import to_4bit_shapes
from winnow.models.folder import refused
from winnow.models.load import DTYPES, read_config
from winnow.models.saved_weights import on_meta_device, with_tensors

if TYPE_CHECKING:
    from transformers import PreTrainedModel


MODEL_TYPES = ("llama", "qwen2", "qwen3")
ROTARY = ("default", "llama3")  # position embeddings with one table entry for two numbers of a head


class Skeleton(nn.Module):
    """The parameters, buffers and settings of a Llama, Qwen2 or Qwen3 on the meta device. It cannot compute."""

    def __init__(self, config: Any, dtype: torch.dtype) -> None:
        super().__init__()
        self.config, self.dtype = config, dtype
        self.model = nn.Module()
        self.model.embed_tokens = _part(config.vocab_size, config.hidden_size)
        self.model.layers = nn.ModuleList(_layer(config) for _ in range(config.num_hidden_layers))
        self.model.norm = _part(config.hidden_size)
        self.model.rotary_emb = nn.Module()
        for name in ("inv_freq", "original_inv_freq"):  # the frequencies stay float32 in any precision of the weights
            self.model.rotary_emb.register_buffer(name, torch.empty(_head_size(config) // 2), persistent=False)
        self.lm_head = _part(config.vocab_size, config.hidden_size)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    @property
    def device(self) -> torch.device:
        return torch.device("meta")

    def get_output_embeddings(self) -> nn.Module:
        """The output layer, under transformers' method name."""
        return self.lm_head

    def set_output_embeddings(self, layer: nn.Module) -> None:
        """Replace the output layer, under transformers' method name."""
        self.lm_head = layer


def skeleton(config: Any, dtype: torch.dtype) -> Skeleton | None:
    """The skeleton of a supported family; None for any other family, and for settings that this file does not support.

    Those include settings that transformers refuses, because its message is better.
    """
    if config.model_type not in MODEL_TYPES or not _is_common(config):
        return None
    with torch.device("meta"):
        model = Skeleton(config, dtype)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model


def _is_common(config: Any) -> bool:
    rope, pad, heads = config.rope_parameters, config.pad_token_id, config.num_attention_heads
    return (
        getattr(config, "quantization_config", None) is None
        and config.hidden_act == "silu"
        and rope["rope_type"] in ROTARY
        and "partial_rotary_factor" not in rope
        and min(config.hidden_size, heads, config.num_key_value_heads) > 0
        and config.hidden_size % heads == 0
        and (pad is None or 0 <= pad < config.vocab_size)
    )


def _layer(config: Any) -> nn.Module:
    hidden, head = config.hidden_size, _head_size(config)
    queries, keys = config.num_attention_heads * head, config.num_key_value_heads * head
    bias = config.model_type == "qwen2" or getattr(config, "attention_bias", False)
    layer, attention, mlp = nn.Module(), nn.Module(), nn.Module()
    attention.q_proj = _part(queries, hidden, bias=bias)
    attention.k_proj = _part(keys, hidden, bias=bias)
    attention.v_proj = _part(keys, hidden, bias=bias)
    attention.o_proj = _part(hidden, queries, bias=bias and config.model_type != "qwen2")
    if config.model_type == "qwen3":
        attention.q_norm, attention.k_norm = _part(head), _part(head)
    widened = getattr(config, "mlp_bias", False)
    mlp.gate_proj = _part(config.intermediate_size, hidden, bias=widened)
    mlp.up_proj = _part(config.intermediate_size, hidden, bias=widened)
    mlp.down_proj = _part(hidden, config.intermediate_size, bias=widened)
    layer.self_attn, layer.mlp = attention, mlp
    layer.input_layernorm, layer.post_attention_layernorm = _part(hidden), _part(hidden)
    return layer


def _head_size(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _part(*shape: int, bias: bool = False) -> nn.Module:
    """A linear layer, an embedding or a norm. torch's own layers draw random numbers, which imports a compiler on the
    meta device.
    """
    part = nn.Module()
    part.weight = nn.Parameter(torch.empty(shape))
    if bias:
        part.bias = nn.Parameter(torch.empty(shape[0]))
    return part


if TYPE_CHECKING:
    MetaModel: TypeAlias = PreTrainedModel | Skeleton  # parameters, buffers, settings, and an output layer


def meta_model(
    path: str, *, dtype: str, adaptable: bool = False, quantization: Literal["nf4"] | None = None
) -> MetaModel:
    """The model on the meta device: it has shapes and uses no memory.

    With `adaptable`, it consists of transformers' own modules, which an adapter needs and `quantization` too. Importing
    them takes seconds, so otherwise they are used only for a family that `skeleton` does not support. Raises DataError
    where there are no settings, or none of a causal language model.
    """
    config = read_config(path)
    try:
        model = None if adaptable else skeleton(config, DTYPES[dtype])
        model = on_meta_device(config, DTYPES[dtype]) if model is None else model
    except Exception as error:  # exceptions of the families' code have no common base
        raise refused(
            f"model.path: transformers makes no causal language model from the config.json of {path!r} "
            f"({type(error).__name__}: {str(error).partition(chr(10))[0]})",
            "choose another model, or correct its config.json",
        ) from error
    if quantization is not None:
        to_4bit_shapes(model)
    return model


def weight_bytes(model: nn.Module, dtype: torch.dtype | None = None) -> int:
    """Bytes of all parameters and buffers, as they are or in another precision; tied ones count once."""
    return sum(t.numel() * (dtype or t.dtype).itemsize for t in (*model.parameters(), *model.buffers()))


def without_numbers(model: MetaModel) -> PreTrainedModel:
    """A copy of a model on the meta device that can compute: its tensors are fake ones of the CPU.

    Call it in torch's FakeTensorMode. Parameters that the model shares stay shared.
    """

    def fake(tensor: Tensor) -> Tensor:
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")

    return cast("PreTrainedModel", with_tensors(model, fake, fake))


def shapes_of(model: nn.Module) -> nn.Module:
    """A copy of a model with all parameters on the meta device. It has the same buffers."""
    return with_tensors(model, lambda p: torch.empty(p.shape, dtype=p.dtype, device="meta"), lambda buffer: buffer)


def has_numbers(tensor: Tensor) -> bool:
    """Whether a tensor has numbers; a fake tensor, and one on the meta device, have only a shape."""
    return not (isinstance(tensor, FakeTensor) or tensor.is_meta)


def number_of(scalar: Tensor, *, unknown: float) -> float:
    """The number of a scalar tensor, or `unknown` of one without numbers."""
    return float(scalar.item()) if has_numbers(scalar) else unknown
