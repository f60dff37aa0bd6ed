"""The decoding pass of plain Llama, Qwen2 and Qwen3 models, written out without their modules.

Small models spend much of a token's time in Python between operators. So this pass has few of both: queries, keys and
values are one product, as are gate and up, and a norm is one function. Any other model is decoded by its modules, which
are the tests' reference for this pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from winnow.engines.native.linear import MIN_NUMEL, PackedLinear

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from winnow.engines.native.cache import KVCache

Product = Callable[[Tensor], Tensor]

MODELS = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # the norms of a module in float64 are computed in float32
FIXED_FREQUENCIES = ("default", "linear", "llama3", "yarn")  # rotations that do not depend on the text's length


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer: products with its matrices, and the weights of its norms."""

    attention_norm: Tensor  # [H]
    query_key_value: Product  # [R, H] -> [R, (heads + 2 key-value heads) x D]
    query_key_norm: Tensor | None  # [heads + key-value heads, D], of Qwen3's norms per head
    output: Product
    mlp_norm: Tensor  # [H]
    gate_up: Product  # [R, H] -> [R, 2 I]
    down: Product


@dataclass(frozen=True, slots=True)
class PlainWeights:
    """The weights of a model in the form in which `decode` multiplies. Small matrices are copied, so an update of the
    model does not reach them.
    """

    embedding: Tensor  # [V, H]
    layers: tuple[LayerWeights, ...]
    norm: Tensor  # [H]
    head: Product  # [R, H] -> [R, V]
    frequencies: Tensor  # [D / 2] of the rotation, in radians per token
    amplitude: float  # of the rotation: 1 except for YaRN
    heads: int
    key_value_heads: int
    width: int  # D, numbers per head
    scaling: float  # of queries
    epsilon: float  # of norms


def decode(weights: PlainWeights, cache: KVCache, tokens: Tensor, positions: Tensor) -> Tensor:
    """Logits [R, V] after the newest tokens [R] at their positions [R]; writes their keys and values to the cache."""
    heads, width, epsilon = weights.heads, weights.width, weights.epsilon
    turned = heads + weights.key_value_heads
    hidden = functional.embedding(tokens, weights.embedding)  # [R, H]
    rows, size = hidden.shape
    angles = positions[:, None].to(weights.frequencies.dtype) * weights.frequencies
    cosine, sine = angles.cos() * weights.amplitude, angles.sin() * weights.amplitude
    # Numbers i and i + D / 2 of a head are the coordinates of a point, which is rotated: x cos - y sin, y cos + x sin
    cosine = torch.cat([cosine, cosine], dim=-1).to(hidden.dtype)[:, None]
    sine = torch.cat([-sine, sine], dim=-1).to(hidden.dtype)[:, None]
    for number, layer in enumerate(weights.layers):
        states = functional.rms_norm(hidden, (size,), layer.attention_norm, epsilon)
        joined = layer.query_key_value(states).view(rows, -1, width)  # [R, heads + 2 key-value heads, D]
        query_key = joined[:, :turned]
        if layer.query_key_norm is not None:
            query_key = functional.rms_norm(query_key, (width,), None, epsilon) * layer.query_key_norm
        query_key = (query_key * cosine).add_(query_key.roll(width // 2, dims=-1).mul_(sine))
        cache.write(number, query_key[:, heads:], joined[:, turned:])
        attended = cache.attend(number, query_key[:, :heads] * weights.scaling)
        hidden = layer.output(attended.view(rows, heads * width)).add_(hidden)
        states = functional.rms_norm(hidden, (size,), layer.mlp_norm, epsilon)
        gate, up = layer.gate_up(states).chunk(2, dim=-1)
        hidden = layer.down(functional.silu(gate).mul_(up)).add_(hidden)
    return weights.head(functional.rms_norm(hidden, (size,), weights.norm, epsilon))


def is_plain(model: PreTrainedModel) -> bool:
    """Whether the model is on a CPU and one that `decode` computes, in its classes, its layers and its configuration.

    Adapters and quantization change the class of linear layers. A module with a hook or a replaced `forward` is not
    plain, because `decode` would skip that.
    """
    if model.device.type != "cpu" or model.dtype not in DTYPES or type(model).__name__ not in MODELS:
        return False
    config: Any = model.config
    rotation = getattr(config, "rope_parameters", None) or {}
    if config.hidden_act not in ("silu", "swish") or rotation.get("rope_type", "default") not in FIXED_FREQUENCIES:
        return False
    if any(_is_changed(module, model.dtype) for module in model.modules()):
        return False
    products = (module for name, module in model.named_modules() if name.endswith(("_proj", "lm_head")))
    return all(type(module) is nn.Linear for module in products)


def _is_changed(module: nn.Module, dtype: torch.dtype) -> bool:
    """Whether a module computes something else than its class, or in another precision than the model."""
    own = vars(module)
    forward = own.get("forward")
    replaced = not (forward is None or isinstance(forward, PackedLinear))
    hooks = own["_forward_hooks"] or own["_forward_pre_hooks"]
    return replaced or bool(hooks) or any(p is not None and p.dtype != dtype for p in own["_parameters"].values())


def plain_weights(model: PreTrainedModel) -> PlainWeights:
    """The weights of a model that `is_plain`, as they are now. Large matrices are multiplied by their packed copies, if
    there are some.
    """
    backbone, config = model.model, model.config
    first = backbone.layers[0].self_attn
    return PlainWeights(
        embedding=backbone.embed_tokens.weight.detach(),
        layers=tuple(_layer_weights(layer, config) for layer in backbone.layers),
        norm=backbone.norm.weight.detach(),
        head=_product(model.lm_head),
        frequencies=backbone.rotary_emb.inv_freq.float(),
        amplitude=backbone.rotary_emb.attention_scaling,
        heads=config.num_attention_heads,
        key_value_heads=config.num_key_value_heads,
        width=first.head_dim,
        scaling=first.scaling,
        epsilon=config.rms_norm_eps,
    )


def _layer_weights(layer: Any, config: Any) -> LayerWeights:
    attention, mlp = layer.self_attn, layer.mlp
    norms = None
    if hasattr(attention, "q_norm"):
        norms = torch.cat(
            [
                attention.q_norm.weight.detach().expand(config.num_attention_heads, -1),
                attention.k_norm.weight.detach().expand(config.num_key_value_heads, -1),
            ]
        )
    return LayerWeights(
        attention_norm=layer.input_layernorm.weight.detach(),
        query_key_value=_joined_product([attention.q_proj, attention.k_proj, attention.v_proj]),
        query_key_norm=norms,
        output=_product(attention.o_proj),
        mlp_norm=layer.post_attention_layernorm.weight.detach(),
        gate_up=_joined_product([mlp.gate_proj, mlp.up_proj]),
        down=_product(mlp.down_proj),
    )


def _product(layer: nn.Linear) -> Product:
    """The function of a linear layer, with its packed weight if it has one."""
    return vars(layer).get("forward") or _linear(layer.weight, layer.bias)


def _joined_product(layers: Sequence[nn.Linear]) -> Product:
    """The outputs of linear layers side by side.

    If all matrices are small, they are one product with a copy of their weights: launching their products takes as long
    as computing them. Larger ones are packed, each by itself (linear.py), for prompts as for decoding.
    """
    if all(layer.weight.numel() <= MIN_NUMEL for layer in layers):
        weight = torch.cat([layer.weight.detach() for layer in layers])
        bias = None if layers[0].bias is None else torch.cat([layer.bias.detach() for layer in layers])
        return _linear(weight, bias)
    products = [_product(layer) for layer in layers]
    return lambda states: torch.cat([product(states) for product in products], dim=-1)


def _linear(weight: Tensor, bias: Tensor | None) -> Product:
    weight, bias = weight.detach(), None if bias is None else bias.detach()
    return lambda states: functional.linear(states, weight, bias)
