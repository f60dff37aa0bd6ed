"""What a rank holds of a policy that is sharded by FSDP2: its share of every parameter, and what of the others' shares
is gathered for a moment (Zhao et al. 2023, arXiv 2304.11277, sections 3.2 and 3.3; torch's `fully_shard`).

A group of parameters is gathered and scattered as one: each layer, and what stands in none of them (embedding, last
norm, output layer), which stays gathered for a whole pass. Shares are of a parameter's rows, rounded up: the first rank
has most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import nn

from winnow.memory import footprint
from winnow.memory.footprint import EXACT_BYTES
from winnow.models.adapter import plain_model

BUCKET = 2**25  # numbers that replicated learners sum at once, in a copy unless they are of one parameter
AT_ONCE = 2  # layers that are gathered together: the one that computes, and the next


def bucket_bytes(model: nn.Module) -> int:
    """Of the flat copy in which the gradients of replicated learners are summed, one bucket at a time: the largest."""
    most = parts = numbers = 0
    for parameter in _trained(model.parameters()):
        if numbers + parameter.numel() > BUCKET:
            parts = numbers = 0
        parts, numbers = parts + 1, numbers + parameter.numel()
        most = max(most, numbers * _exact(parameter) if parts > 1 else 0)
    return most


def share_bytes(model: nn.Module, ranks: int) -> int:
    """Of the parameters, trained ones in float32 at least, frozen ones as they are; and of every table, whole."""
    tables = sum(b.numel() * b.element_size() for b in model.buffers())
    return tables + _sum(model.parameters(), ranks, lambda p: _exact(p) if p.requires_grad else p.element_size())


def frozen_share_bytes(model: nn.Module, ranks: int) -> int:
    """Of a second policy that is not trained, every parameter in its own precision."""
    return _sum(model.parameters(), ranks, lambda p: p.element_size())


def gradient_share_bytes(model: nn.Module, ranks: int) -> int:
    """One number per trained one of the share, in float32 at least."""
    return _sum(_trained(model.parameters()), ranks, _exact)


def moment_share_bytes(model: nn.Module, ranks: int) -> int:
    """AdamW's two moments of the share, and its count of updates per parameter."""
    counts = footprint.STEP_BYTES * len(_trained(model.parameters()))
    return 2 * gradient_share_bytes(model, ranks) + counts


def gathered_bytes(model: nn.Module, ranks: int) -> int:
    """Of the parameters that no layer has, and of the largest layers as many as are gathered at once, in the precision
    that computes.
    """
    root, layers = _groups(model)
    whole = sorted((_whole(layer, ranks, lambda p: p.element_size()) for layer in layers), reverse=True)
    return _whole(root, ranks, lambda p: p.element_size()) + sum(whole[:AT_ONCE])


def gathered_root_bytes(model: nn.Module, ranks: int) -> int:
    """Of the parameters that no layer has."""
    return _whole(_groups(model)[0], ranks, lambda p: p.element_size())


def unscattered_bytes(model: nn.Module, ranks: int) -> int:
    """While backward is in the layers: the gradients of one, as computed and as they are summed."""
    _, layers = _groups(model)
    return max((_scattered(layer, ranks) for layer in layers), default=0)


def waiting_bytes(model: nn.Module) -> int:
    """Meanwhile: the output layer's gradient as computed, which waits for the embedding's."""
    head = footprint.head(model)
    return head.numel() * head.element_size() if head.requires_grad else 0


def unscattered_root_bytes(model: nn.Module, ranks: int) -> int:
    """At the end of backward: the gradients of the parameters that no layer has, as computed and as they are summed."""
    return _scattered(_groups(model)[0], ranks)


def _scattered(group: Iterable[nn.Parameter], ranks: int) -> int:
    """Gradients of a group in the precision that computes, all of them in that of the sums, and the rank's share."""
    trained = _trained(group)
    computed = sum(p.numel() * p.element_size() for p in trained)
    return computed + _whole(trained, ranks, _exact) + _sum(trained, ranks, _exact)


def _groups(model: nn.Module) -> tuple[list[nn.Parameter], list[list[nn.Parameter]]]:
    """The parameters that no layer has, and those of each layer; one that several parts share is there once."""
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
    return sum(_share(p, ranks) * item(p) for p in parameters)


def _whole(parameters: Iterable[nn.Parameter], ranks: int, item: Callable[[nn.Parameter], int]) -> int:
    """As many shares as there are ranks: rows that are rounded up are gathered with the others."""
    return ranks * _sum(parameters, ranks, item)


def _share(parameter: nn.Parameter, ranks: int) -> int:
    """Numbers of a parameter that the first rank has."""
    rows = parameter.shape[0] if parameter.ndim else 1
    return -(-rows // ranks) * (parameter.numel() // max(1, rows))
