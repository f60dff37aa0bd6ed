"""Memory that training a model needs, computed from its shapes alone; a module on the meta device is enough.

Masters, gradients and moments are exact. The memory of a micro-batch is an estimate for decoders like Llama's and
Qwen2's (norm, attention, norm, gated MLP) whose attention kernel never allocates a [tokens, tokens] matrix. Other
architectures have another factor before their largest matrices, and get the same estimate.

With a number of `ranks`, the memory is that of a rank of a model that is sharded by FSDP2: its shares of all
parameters, and shares that it gathers. See Zhao et al. 2023 (arXiv 2304.11277), sections 3.2 and 3.3, and torch's
`fully_shard`. Parameters are gathered and scattered in groups: one per layer, and one of all others (embedding, last
norm, output layer), which stays gathered for a whole pass. A share is a number of rows, rounded up, so the first rank
has most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal, Self

import torch
from torch import nn

from winnow.models.adapter import adapted_weights, plain_model, plain_names, projections
from winnow.models.bnb import LEAST_8BIT, MOMENT_BLOCK

Checkpointing = Literal["none", "selective", "full"]  # model.gradient_checkpointing
NARROW = 8  # "selective" recomputes a product [T, K] x [K, N] with K < N / 8, such as most of an adapter's B

EXACT_BYTES = 4  # per float32 number: the precision of masters, gradient sums and logits
WIDTHS = ("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner")  # a configuration's names of an MLP's width
PACKED = torch.uint8  # contains two 4-bit numbers
ROUNDING_COPIES = 5  # float32 copies of a parameter during stochastic rounding
SAMPLED = 64  # numbers of a row of which one is compared with its start (learner/move.py)
STEP_BYTES = 4  # AdamW counts updates per parameter, in float32
LOGIT_COPIES = 3  # in a chunk's backward: log-probs, their gradient, and the logits' gradient
ENTROPY_COPIES = 5  # as LOGIT_COPIES, with p and p log p
PIECE = 2**19  # numbers of the logits that head_on_cpu.py computes with at a time, in 16 bits on a CPU
PIECE_COPIES = 2  # in float32: as they are, and less the largest one
FORWARD_COPIES = 2  # without backward: logits and log-probs
AT_ONCE = 2  # copies of a layer's weights at a time: as gathered, and unpacked, in which form it computes


def parameter_bytes(model: nn.Module) -> int:
    """Bytes of all parameters. 4-bit ones count in the precision that they compute in; tied ones count once."""
    item: int = 2 * plain_model(model).dtype.itemsize  # of the two numbers in a byte
    return sum(p.numel() * (item if p.dtype == PACKED else p.element_size()) for p in model.parameters())


def unpacked_bytes(model: nn.Module) -> int:
    """Bytes of the largest 4-bit matrix in the precision that it computes in. Only one is unpacked at a time."""
    item: int = 2 * plain_model(model).dtype.itemsize
    return item * max((p.numel() for p in model.parameters() if p.dtype == PACKED), default=0)


def gradient_bytes(model: nn.Module, ranks: int = 1) -> int:
    """Bytes of all gradients, or of those of a share: one number per trained number, in float32 or float64."""
    return _sum(_trained(model.parameters()), ranks, _exact)


def master_bytes(model: nn.Module) -> int:
    """Bytes of the float32 masters of a model that has some: one of every trained parameter, in 16 bits or not."""
    return sum(p.numel() * EXACT_BYTES for p in _trained(model.parameters()))


def bucket_bytes(model: nn.Module, bucket: int) -> int:
    """Bytes of the largest flat copy in which the gradients of replicated learners are summed, at most `bucket` numbers
    of several gradients at a time.
    """
    most = parts = numbers = 0
    for parameter in _trained(model.parameters()):
        if numbers + parameter.numel() > bucket:
            parts = numbers = 0
        parts, numbers = parts + 1, numbers + parameter.numel()
        most = max(most, numbers * _exact(parameter) if parts > 1 else 0)
    return most


def optimizer_bytes(model: nn.Module, *, eight_bit: bool = False, ranks: int = 1) -> int:
    """Bytes of AdamW's two moments, or of those of a share, in the gradients' precision, and of its update count per
    parameter.

    With `eight_bit`, moments have 8 bits and a scale per block; those of small tensors stay float32.
    """
    trained = _trained(model.parameters())
    if not eight_bit:
        return 2 * gradient_bytes(model, ranks) + STEP_BYTES * len(trained)
    return sum(2 * _moment_bytes(p.numel()) + STEP_BYTES for p in trained)


def sample_shape(shape: torch.Size) -> torch.Size:
    """[R, ceil(C / 64)], the shape of the sample of a parameter of R rows of C numbers. A vector has rows of one
    number, and is sampled whole.

    Every row has equally many samples. So ranks that hold rows of a parameter hold rows of its sample.
    """
    rows, columns = (shape[0], math.prod(shape[1:])) if shape else (1, 1)
    return torch.Size([rows, -(-columns // SAMPLED)])


def sample_bytes(model: nn.Module, *, masters: bool, ranks: int = 1) -> int:
    """Bytes of the samples of trained 16-bit parameters: their masters at the start of the run, or the parameters at
    the start and the sums of their exact steps.
    """
    item = EXACT_BYTES if masters else EXACT_BYTES + EXACT_BYTES // 2
    shapes = [sample_shape(p.shape) for p in _trained_in_16_bits(model)]
    return sum(-(-rows // ranks) * columns * item for rows, columns in shapes)


def unsummed_bytes(model: nn.Module) -> int:
    """Bytes of the largest gradient of a trained 16-bit parameter, before it is added to its float32 sum."""
    return max((p.numel() * p.element_size() for p in _trained_in_16_bits(model)), default=0)


def rounding_bytes(model: nn.Module) -> int:
    """Bytes for stochastic rounding of the largest trained 16-bit parameter: float32 copy, noise, sums, comparisons."""
    return ROUNDING_COPIES * max((p.numel() * EXACT_BYTES for p in _trained_in_16_bits(model)), default=0)


def activation_bytes(
    model: nn.Module, tokens: int, *, checkpointing: Checkpointing, frozen: bool = False, output: bool = True
) -> int:
    """Bytes that forward saves for backward in a micro-batch of `tokens`, padding included, up to the last hidden
    states.

    This is an upper bound: rows that share their prompt save less. With checkpointing it counts what a layer keeps.
    "none" is everything, "selective" its input and the results of matrices and attention, "full" its input. With
    `frozen`, backward ends at the embeddings and no parameter gets a gradient. Without `output`, a copy of the last
    hidden states is kept in their place.
    """
    sizes = _Sizes.of(model)
    if frozen:
        sizes = replace(sizes, trained=False)
    last = _norm_bytes(sizes) + output * sizes.hidden * sizes.item
    return round(tokens * (sizes.layers * _kept_bytes(model, sizes, checkpointing, frozen=frozen) + last))


def layer_backward_bytes(model: nn.Module, tokens: int, *, checkpointing: Checkpointing, frozen: bool = False) -> int:
    """Further bytes while backward is in a layer: gradients of the widest activations, and recomputed activations.

    The logits do not exist at that time. Without gradients of weights (`frozen`, or an adapter) these are as in a
    forward pass. With them, the input of the MLP's last matrix, which was saved for its gradient, is freed before, and
    torch's memory tracker counts a single state.
    """
    sizes = _Sizes.of(model)
    whole, kept = (_kept_bytes(model, sizes, how, frozen=False) for how in ("none", checkpointing))
    branches, states = (2, 1) if sizes.trained and not frozen else (3, 4)
    widest = tokens * (branches * sizes.intermediate + states * sizes.hidden) * sizes.item
    return widest + round(tokens * max(0.0, whole - kept))


def head_gradient_bytes(model: nn.Module) -> int:
    """Bytes of the head's gradient, in float32 or float64."""
    return head(model).numel() * _exact(head(model))


def logits_bytes(model: nn.Module, tokens: int, *, entropy: bool, cpu: bool = False) -> int:
    """Further bytes while the output layer turns the logits of `tokens` (one chunk) into gradients.

    Where that layer is trained, its gradient is summed over the chunks in float32 or float64. Then the larger of two
    moments counts: the logits' gradient is computed, or the chunk's gradient of the layer from it.

    In 16 bits on a `cpu`, logits without entropy exist once, and their gradient replaces them (head_on_cpu.py).
    """
    weight = head(model)
    replaced = cpu and not entropy and weight.element_size() < EXACT_BYTES
    if replaced:
        at_logits = forward_logits_bytes(model, tokens, cpu=True)
    else:
        at_logits = chunk_bytes(model, tokens, copies=ENTROPY_COPIES if entropy else LOGIT_COPIES)
    if not weight.requires_grad:
        return at_logits
    rounded = tokens * weight.shape[0] * weight.element_size() if weight.element_size() < EXACT_BYTES else 0
    exact_logits = 0 if replaced else chunk_bytes(model, tokens, copies=1)
    at_product = exact_logits + rounded + weight.numel() * weight.element_size()
    return head_gradient_bytes(model) + max(at_logits, at_product)


def chunk_bytes(model: nn.Module, tokens: int, *, copies: int) -> int:
    """Bytes of `copies` copies of the logits of `tokens`, in float32 or float64."""
    return tokens * head(model).shape[0] * _exact(head(model)) * copies


def forward_logits_bytes(model: nn.Module, tokens: int, *, cpu: bool) -> int:
    """Further bytes while the output layer computes the log-probs of `tokens` (one chunk), without backward."""
    weight = head(model)
    if not cpu or weight.element_size() >= EXACT_BYTES:
        return chunk_bytes(model, tokens, copies=FORWARD_COPIES)
    numbers = tokens * weight.shape[0]
    return numbers * weight.element_size() + PIECE_COPIES * EXACT_BYTES * min(numbers, PIECE)


def key_value_bytes(model: nn.Module, tokens: int) -> int:
    """Bytes of the keys and values of every layer, for a pass over shared prompts."""
    sizes = _Sizes.of(model)
    return 2 * sizes.layers * sizes.keys * sizes.item * tokens


def forward_bytes(model: nn.Module, tokens: int) -> int:
    """Bytes of a forward pass without gradients at its widest point, in an MLP: its three branches, and four states.

    An adapter of the MLP adds its result, in its own precision, to that of the matrix, so both and their sum exist.
    """
    sizes = _Sizes.of(model)
    widest = max((p.element_size() for p in projections(model, "B") if p.shape[0] == sizes.intermediate), default=0)
    branches = 2 * sizes.item + max(sizes.item, 2 * widest)
    return tokens * (branches * sizes.intermediate + 4 * sizes.hidden * sizes.item)


def value_input_bytes(model: nn.Module, tokens: int) -> int:
    """Bytes of the float32 copy of hidden states that a value head reads, of a 16-bit model; else 0."""
    sizes = _Sizes.of(model)
    return tokens * sizes.hidden * EXACT_BYTES if sizes.item < EXACT_BYTES else 0


def share_bytes(model: nn.Module, ranks: int) -> int:
    """Bytes of the parameters' share, trained in float32 or float64, frozen as they are; and of all buffers, whole."""
    tables = sum(b.numel() * b.element_size() for b in model.buffers())
    return tables + _sum(model.parameters(), ranks, lambda p: _exact(p) if p.requires_grad else p.element_size())


def frozen_share_bytes(model: nn.Module, ranks: int) -> int:
    """Bytes of the share of a second policy that is not trained, each parameter in its own precision."""
    return _sum(model.parameters(), ranks, lambda p: p.element_size())


def written_bytes(model: nn.Module) -> int:
    """Bytes of the largest tensor that the writer of a checkpoint gathers: in float32 or float64, beside the same in
    the model's precision. An adapter's matrix is merged in float32: W, B A, and their sum.
    """
    rounded = [p.element_size() if p.element_size() < EXACT_BYTES else 0 for p in model.parameters()]
    whole = [p.numel() * (_exact(p) + item) for p, item in zip(model.parameters(), rounded, strict=True)]
    return max(*whole, *(p.numel() * (p.element_size() + 3 * _exact(p)) for p in adapted_weights(model)))


def gathered_bytes(model: nn.Module, ranks: int, *, layers: int = AT_ONCE) -> int:
    """Bytes of the gathered parameters: those outside the layers, and the largest `layers`, in the computing precision.
    A layer that was just gathered counts twice, as gathered and unpacked.
    """
    root, every = _groups(model)
    whole = sorted((_whole(layer, ranks, lambda p: p.element_size()) for layer in every), reverse=True)
    return _whole(root, ranks, lambda p: p.element_size()) + sum(whole[:layers])


def gathered_root_bytes(model: nn.Module, ranks: int) -> int:
    """Bytes of the gathered parameters outside the layers."""
    return _whole(_groups(model)[0], ranks, lambda p: p.element_size())


def sharded_layer_backward_bytes(model: nn.Module, tokens: int, ranks: int, *, checkpointing: Checkpointing) -> int:
    """As `layer_backward_bytes`, with gradients of a sharded layer's weights, at the worse of two moments: in the MLP,
    or at the layer's end, where all of its gradients exist, and few activations do.
    """
    sizes = _Sizes.of(model)
    in_mlp = layer_backward_bytes(model, tokens, checkpointing=checkpointing) + scattering_bytes(model, ranks)
    at_end = unscattered_bytes(model, ranks) + 2 * tokens * sizes.hidden * sizes.item
    return max(in_mlp, at_end)


def scattering_bytes(model: nn.Module, ranks: int) -> int:
    """Bytes of gradients while backward is in an MLP: that of its last matrix, which may be the largest, as computed,
    and those of the layer before as they are summed.
    """
    _, layers = _groups(model)
    summed = max((_whole(_trained(layer), ranks, _exact) for layer in layers), default=0)
    return summed + max((p.numel() * p.element_size() for layer in layers for p in _trained(layer)), default=0)


def unscattered_bytes(model: nn.Module, ranks: int) -> int:
    """Bytes of the largest layer's gradients at the end of its backward, as computed and as summed."""
    _, layers = _groups(model)
    return max((_scattered(layer, ranks) for layer in layers), default=0)


def waiting_bytes(model: nn.Module) -> int:
    """Bytes of the output layer's gradient as computed, which is kept until the embedding's is computed too."""
    weight = head(model)
    return weight.numel() * weight.element_size() if weight.requires_grad else 0


def unscattered_root_bytes(model: nn.Module, ranks: int) -> int:
    """Bytes, at the end of backward, of the gradients of parameters outside the layers, as computed and as summed."""
    return _scattered(_groups(model)[0], ranks)


def head(model: nn.Module) -> nn.Parameter:
    """[V, H] of the output layer."""
    weight: nn.Parameter = plain_model(model).get_output_embeddings().weight
    return weight


def _scattered(group: Iterable[nn.Parameter], ranks: int) -> int:
    """Bytes of a group's gradients in the precision of the sums, beside those in the computing precision. The latter
    are freed before the share of the sums is made.
    """
    trained = _trained(group)
    computed = sum(p.numel() * p.element_size() for p in trained)
    return _whole(trained, ranks, _exact) + max(computed, _sum(trained, ranks, _exact))


def _groups(model: nn.Module) -> tuple[list[nn.Parameter], list[list[nn.Parameter]]]:
    """The parameters outside the layers, and those of each layer. A parameter that several parts share appears once."""
    count = plain_model(model).config.get_text_config().num_hidden_layers
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module) == count]
    layers = [list(layer.parameters()) for layer in lists[0]] if lists else []
    inside = {id(p) for layer in layers for p in layer}
    return [p for p in model.parameters() if id(p) not in inside], layers


def _trained(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    return [p for p in parameters if p.requires_grad]


def _exact(parameter: nn.Parameter) -> int:
    return max(EXACT_BYTES, parameter.element_size())


def _sum(parameters: Iterable[nn.Parameter], ranks: int, item: Callable[[nn.Parameter], int]) -> int:
    """Bytes of the shares of the first rank, which has most: rows, rounded up."""
    rows = ((p, p.shape[0] if p.ndim else 1) for p in parameters)
    return sum(-(-count // ranks) * (p.numel() // max(1, count)) * item(p) for p, count in rows)


def _whole(parameters: Iterable[nn.Parameter], ranks: int, item: Callable[[nn.Parameter], int]) -> int:
    """Bytes of `ranks` shares: the rows that rounding up adds are gathered too."""
    return ranks * _sum(parameters, ranks, item)


def _trained_in_16_bits(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in _trained(model.parameters()) if p.element_size() < EXACT_BYTES]


def _moment_bytes(numbers: int) -> int:
    """Bytes of an 8-bit moment of a tensor with this many numbers; a small tensor has a float32 moment."""
    return EXACT_BYTES * numbers if numbers < LEAST_8BIT else numbers + EXACT_BYTES * -(-numbers // MOMENT_BLOCK)


@dataclass(frozen=True)
class _Sizes:
    """Sizes of a decoder, as counts of numbers; `item` is the bytes of one weight."""

    layers: int
    hidden: int
    intermediate: int
    queries: int  # of all heads
    keys: int  # of all heads; values have the same size
    item: int
    trained: bool  # whether base weights are trained, and not only an adapter

    @classmethod
    def of(cls, model: nn.Module) -> Self:
        causal = plain_model(model)
        config = causal.config.get_text_config()
        heads = config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // heads
        return cls(
            layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            intermediate=next((n for name in WIDTHS if (n := getattr(config, name, None))), 4 * config.hidden_size),
            queries=heads * width,
            keys=(getattr(config, "num_key_value_heads", None) or heads) * width,
            item=causal.dtype.itemsize,
            trained=any(p.requires_grad for _, p in plain_names(causal.named_parameters())),
        )


def _kept_bytes(model: nn.Module, sizes: _Sizes, checkpointing: Checkpointing, *, frozen: bool) -> float:
    """Bytes per token and layer that are kept between forward and backward."""
    state = sizes.hidden * sizes.item
    if checkpointing == "full":
        return state
    if checkpointing == "selective":  # also the results of q, k, v, attention, o, gate, up and down
        wide = [p for p in projections(model, "B") if NARROW * p.shape[1] >= p.shape[0]]
        low = 0.0 if frozen else _result_bytes(projections(model, "A"), sizes) + _result_bytes(wide, sizes)
        return 3 * state + (2 * sizes.queries + 2 * sizes.keys + 2 * sizes.intermediate) * sizes.item + low
    # Queries, keys, values and attention's result; the MLP's gate before and after activation, and its other branch
    layer = 2 * _norm_bytes(sizes) + (2 * sizes.queries + 2 * sizes.keys + 3 * sizes.intermediate) * sizes.item
    return layer + (0.0 if frozen else _given_bytes(model, sizes))


def _norm_bytes(sizes: _Sizes) -> int:
    """Bytes per token: a norm's input in float32, and its normalised input where the norm's weight is trained."""
    return sizes.hidden * (4 + sizes.trained * sizes.item)


def _given_bytes(model: nn.Module, sizes: _Sizes) -> float:
    """Bytes per token and layer of matrix inputs that no other operation keeps.

    Adapters in a higher precision than the weights keep a copy of their input instead. Every adapter also keeps the
    result of its A.
    """
    down = projections(model, "A")  # each [rank, width]
    copies = sum(p.shape[1] * p.element_size() for p in down if p.element_size() != sizes.item) / sizes.layers
    return _result_bytes(down, sizes) + (copies or (2 * sizes.hidden + sizes.intermediate) * sizes.item)


def _result_bytes(matrices: Iterable[nn.Parameter], sizes: _Sizes) -> float:
    """Bytes per token and layer of the results of matrices of adapters."""
    return sum(p.shape[0] * p.element_size() for p in matrices) / sizes.layers
