"""Memory as it will be: what training a model takes, from its shapes alone, so a module on the meta device will do.

Masters, gradients and moments are exact. What a micro-batch holds is an estimate for decoders like Llama's and Qwen2's
(norm, attention, norm, gated MLP) whose attention kernel never holds a [tokens, tokens] matrix; another architecture
has another factor before its largest matrices, and is estimated all the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Self

import torch
from torch import nn

from winnow.models.adapter import down_projections, plain_model, plain_names
from winnow.models.bnb import LEAST_8BIT, MOMENT_BLOCK

Checkpointing = Literal["none", "selective", "full"]  # model.gradient_checkpointing

CHUNK_TOKENS = 4096  # whose logits exist at once, at most
CHUNK_LOGITS = 2**26  # that exist at once: 441 tokens of a vocabulary of 151,936
EXACT_BYTES = 4  # of float32, in which 16-bit weights are trained
PACKED = torch.uint8  # two numbers of 4 bits
ROUNDING_COPIES = 5  # of a parameter, while its update is rounded at random
STEP_BYTES = 4  # AdamW counts its updates per parameter, in float32
LOGIT_COPIES = 3  # at once in a chunk's backward: log-probs, their gradient, and the logits' own
ENTROPY_COPIES = 5  # with p and p log p
FORWARD_COPIES = 2  # without gradients: logits and log-probs


def chunk_tokens(model: nn.Module) -> int:
    """Whose logits exist at once, when log-probs or gradient norms are computed."""
    return max(1, min(CHUNK_TOKENS, CHUNK_LOGITS // head(model).shape[0]))


def parameter_bytes(model: nn.Module) -> int:
    """Of every parameter, in its own precision, or, of 4 bits, in that it computes in; tied ones count once."""
    item: int = 2 * plain_model(model).dtype.itemsize
    return sum(p.numel() * (item if p.dtype == PACKED else p.element_size()) for p in model.parameters())


def unpacked_bytes(model: nn.Module) -> int:
    """Of the largest matrix of 4 bits, in the precision it computes in: one at a time exists in it."""
    item: int = 2 * plain_model(model).dtype.itemsize
    return item * max((p.numel() for p in model.parameters() if p.dtype == PACKED), default=0)


def gradient_bytes(model: nn.Module) -> int:
    """One number per trained one, in its precision, in float32 at least."""
    return sum(p.numel() * max(EXACT_BYTES, p.element_size()) for p in model.parameters() if p.requires_grad)


def master_bytes(model: nn.Module) -> int:
    """A float32 copy of every trained parameter of 16 bits."""
    return sum(p.numel() * EXACT_BYTES for p in _trained_in_16_bits(model))


def exact_bytes(model: nn.Module) -> int:
    """Of every trained parameter, in float32."""
    return sum(p.numel() * EXACT_BYTES for p in model.parameters() if p.requires_grad)


def optimizer_bytes(model: nn.Module, *, eight_bit: bool = False) -> int:
    """AdamW's two moments: as exact as the gradients, or, in tensors large enough, of 8 bits and a scale per block."""
    trained = [p for p in model.parameters() if p.requires_grad]
    if not eight_bit:
        return 2 * gradient_bytes(model) + STEP_BYTES * len(trained)
    return sum(2 * _moment_bytes(p.numel()) + STEP_BYTES for p in trained)


def unsummed_bytes(model: nn.Module) -> int:
    """The gradient of the largest trained parameter of 16 bits, before it is added to its float32 sum."""
    return max((p.numel() * p.element_size() for p in _trained_in_16_bits(model)), default=0)


def rounding_bytes(model: nn.Module) -> int:
    """The largest trained parameter of 16 bits in float32 and, of as many bytes, noise, sums and comparisons."""
    return ROUNDING_COPIES * max((p.numel() * EXACT_BYTES for p in _trained_in_16_bits(model)), default=0)


def saved_bytes(model: nn.Module, *, masters: bool, eight_bit: bool = False) -> int:
    """On the disk: every parameter once, with an adapter also merged, the optimizer's moments, and `masters`."""
    saved = parameter_bytes(model) + optimizer_bytes(model, eight_bit=eight_bit)
    return saved + (master_bytes(model) if masters else 0)


def activation_bytes(model: nn.Module, tokens: int, *, checkpointing: Checkpointing, frozen: bool = False) -> int:
    """What forward saves for backward in a micro-batch of `tokens`, padding included, up to the last hidden states;
    the most it can be, as rows that share their prompt save less. With checkpointing, what a layer keeps: all of it,
    its input and what its matrices and attention gave, or its input alone. `frozen`: backward ends at the embeddings.
    """
    sizes = _Sizes.of(model)
    if frozen:
        sizes = replace(sizes, trained=False)
    last = _norm_bytes(sizes) + sizes.hidden * sizes.item
    return round(tokens * (sizes.layers * _kept_bytes(model, sizes, checkpointing, frozen=frozen) + last))


def layer_backward_bytes(model: nn.Module, tokens: int, *, checkpointing: Checkpointing) -> int:
    """What comes on top while backward is in a layer: gradients of the widest activations, and what checkpointing
    computes again. Never while there are logits.
    """
    sizes = _Sizes.of(model)
    whole, kept = (_kept_bytes(model, sizes, how, frozen=False) for how in ("none", checkpointing))
    return forward_bytes(model, tokens) + round(tokens * max(0.0, whole - kept))


def sums_head_gradient(tokens: int, *, chunk: int, hidden: int) -> bool:
    """Whether the norm of the head's gradient, of a rollout of so many completion tokens, is taken of that gradient
    itself: where it takes fewer multiplications than inner products of any two chunks do, by the V of both.
    """
    chunks = -(-tokens // chunk)
    own, other = min(tokens, chunk) ** 2, chunk * (hidden + chunk)
    return tokens * hidden < chunks * own + chunks * (chunks - 1) // 2 * other


def head_gradient_bytes(model: nn.Module) -> int:
    """Of the head's gradient, in float32 at least."""
    weight = head(model)
    return weight.numel() * max(weight.element_size(), EXACT_BYTES)


def logits_bytes(model: nn.Module, tokens: int, *, entropy: bool) -> int:
    """What comes on top while the output layer's logits of `tokens` (one chunk of them) are turned into gradients,
    and while that layer's own gradient, where it is trained, is summed over the chunks, in float32 at least.
    """
    weight = head(model)
    copies = ENTROPY_COPIES if entropy else LOGIT_COPIES
    exact = max(weight.element_size(), EXACT_BYTES)
    summed = weight.numel() * (exact + weight.element_size()) if weight.requires_grad else 0
    return chunk_bytes(model, tokens, copies=copies) + summed


def chunk_bytes(model: nn.Module, tokens: int, *, copies: int) -> int:
    """Of the logits of `tokens`, so many times, in float32 at least."""
    weight = head(model)
    return tokens * weight.shape[0] * max(weight.element_size(), EXACT_BYTES) * copies


def key_value_bytes(model: nn.Module, tokens: int) -> int:
    """Keys and values of every layer, which a pass over shared prompts holds."""
    sizes = _Sizes.of(model)
    return 2 * sizes.layers * sizes.keys * sizes.item * tokens


def forward_bytes(model: nn.Module, tokens: int) -> int:
    """What a forward pass without gradients holds at its widest, in an MLP: its three branches, and four states."""
    sizes = _Sizes.of(model)
    return tokens * (3 * sizes.intermediate + 4 * sizes.hidden) * sizes.item


def value_input_bytes(model: nn.Module, tokens: int) -> int:
    """The copy of hidden states that a value head reads, of a model of 16 bits: it multiplies in float32 at least."""
    sizes = _Sizes.of(model)
    return tokens * sizes.hidden * EXACT_BYTES if sizes.item < EXACT_BYTES else 0


def head(model: nn.Module) -> nn.Parameter:
    """[V, H] of the output layer."""
    weight: nn.Parameter = plain_model(model).get_output_embeddings().weight
    return weight


def _trained_in_16_bits(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad and p.element_size() < EXACT_BYTES]


def _moment_bytes(numbers: int) -> int:
    """Of an 8-bit moment of a tensor."""
    return EXACT_BYTES * numbers if numbers < LEAST_8BIT else numbers + EXACT_BYTES * -(-numbers // MOMENT_BLOCK)


@dataclass(frozen=True)
class _Sizes:
    """Of a decoder, in numbers; `item` are the bytes of one of its weights."""

    layers: int
    hidden: int
    intermediate: int
    queries: int  # all heads together
    keys: int  # and as many values
    item: int
    trained: bool  # the base weights, not an adapter

    @classmethod
    def of(cls, model: nn.Module) -> Self:
        causal = plain_model(model)
        config = causal.config.get_text_config()
        heads = config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // heads
        return cls(
            layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            intermediate=config.intermediate_size,
            queries=heads * width,
            keys=(getattr(config, "num_key_value_heads", None) or heads) * width,
            item=causal.dtype.itemsize,
            trained=any(p.requires_grad for _, p in plain_names(causal.named_parameters())),
        )


def _kept_bytes(model: nn.Module, sizes: _Sizes, checkpointing: Checkpointing, *, frozen: bool) -> float:
    """Per token and layer, between forward and backward."""
    state = sizes.hidden * sizes.item
    if checkpointing == "full":
        return state
    if checkpointing == "selective":  # also what q, k, v, attention, o, gate, up and down gave
        low = 0.0 if frozen else _low_bytes(model, sizes)
        return 3 * state + (2 * sizes.queries + 2 * sizes.keys + 2 * sizes.intermediate) * sizes.item + low
    return _layer_bytes(sizes) + (0.0 if frozen else _given_bytes(model, sizes))


def _layer_bytes(sizes: _Sizes) -> int:
    """Per token: two norms; queries, keys, values and attention's result; the MLP's gate, that activated, and its other
    branch.
    """
    return 2 * _norm_bytes(sizes) + (2 * sizes.queries + 2 * sizes.keys + 3 * sizes.intermediate) * sizes.item


def _norm_bytes(sizes: _Sizes) -> int:
    """Per token: a norm's input, which it makes float32, and, where its weight is trained, that normalised."""
    return sizes.hidden * (4 + sizes.trained * sizes.item)


def _given_bytes(model: nn.Module, sizes: _Sizes) -> float:
    """Per token and layer: the inputs of matrices that nothing else keeps. Adapters in more precision than the weights
    keep a copy each instead, and every adapter what its A makes of it.
    """
    down = down_projections(model)  # each [rank, width]
    copies = sum(p.shape[1] * p.element_size() for p in down if p.element_size() != sizes.item) / sizes.layers
    return _low_bytes(model, sizes) + (copies or (2 * sizes.hidden + sizes.intermediate) * sizes.item)


def _low_bytes(model: nn.Module, sizes: _Sizes) -> float:
    """Per token and layer: what the A of adapters make of their inputs."""
    return sum(p.shape[0] * p.element_size() for p in down_projections(model)) / sizes.layers
