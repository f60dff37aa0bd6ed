"""Memory of a rank of a policy that is sharded by FSDP2: its shares of all parameters, and shares that it gathers.

See Zhao et al. 2023 (arXiv 2304.11277), sections 3.2 and 3.3, and torch's `fully_shard`. Parameters are gathered and
scattered in groups: one per layer, and one of all others (embedding, last norm, output layer), which stays gathered for
a whole pass. A share is a number of rows, rounded up, so the first rank has most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import nn

from winnow.memory import footprint
from winnow.memory.footprint import EXACT_BYTES
from winnow.models.adapter import plain_model

BUCKET = 2**25  # numbers that replicated learners sum at once; gradients of several parameters are copied for it
AT_ONCE = 2  # layers gathered at a time: the one that computes, and the next


def bucket_bytes(model: nn.Module) -> int:
    """Bytes of the largest flat copy in which the gradients of replicated learners are summed, one bucket at a time."""
    most = parts = numbers = 0
    for parameter in _trained(model.parameters()):
        if numbers + parameter.numel() > BUCKET:
            parts = numbers = 0
        parts, numbers = parts + 1, numbers + parameter.numel()
        most = max(most, numbers * _exact(parameter) if parts > 1 else 0)
    return most


def share_bytes(model: nn.Module, ranks: int) -> int:
    """Bytes of the parameters' share, trained ones in float32 or float64, frozen ones as they are; and of all buffers,
    whole.
    """
    tables = sum(b.numel() * b.element_size() for b in model.buffers())
    return tables + _sum(model.parameters(), ranks, lambda p: _exact(p) if p.requires_grad else p.element_size())


def frozen_share_bytes(model: nn.Module, ranks: int) -> int:
    """Bytes of the share of a second policy that is not trained, each parameter in its own precision."""
    return _sum(model.parameters(), ranks, lambda p: p.element_size())


def gradient_share_bytes(model: nn.Module, ranks: int) -> int:
    """Bytes of the share's gradients: one number per trained number, in float32 or float64."""
    return _sum(_trained(model.parameters()), ranks, _exact)


def moment_share_bytes(model: nn.Module, ranks: int) -> int:
    """Bytes of AdamW's two moments of the share, and of its update counts per parameter."""
    counts = footprint.STEP_BYTES * len(_trained(model.parameters()))
    return 2 * gradient_share_bytes(model, ranks) + counts


def gathered_bytes(model: nn.Module, ranks: int) -> int:
    """Bytes of the gathered parameters: those outside the layers, and the AT_ONCE largest layers, in the computing
    precision.
    """
    root, layers = _groups(model)
    whole = sorted((_whole(layer, ranks, lambda p: p.element_size()) for layer in layers), reverse=True)
    return _whole(root, ranks, lambda p: p.element_size()) + sum(whole[:AT_ONCE])


def gathered_root_bytes(model: nn.Module, ranks: int) -> int:
    """Bytes of the gathered parameters outside the layers."""
    return _whole(_groups(model)[0], ranks, lambda p: p.element_size())


def unscattered_bytes(model: nn.Module, ranks: int) -> int:
    """Bytes of the largest layer's gradients while backward is in it, as computed and as summed."""
    _, layers = _groups(model)
    return max((_scattered(layer, ranks) for layer in layers), default=0)


def waiting_bytes(model: nn.Module) -> int:
    """Bytes of the output layer's gradient as computed, which is kept until the embedding's is computed too."""
    head = footprint.head(model)
    return head.numel() * head.element_size() if head.requires_grad else 0


def unscattered_root_bytes(model: nn.Module, ranks: int) -> int:
    """Bytes, at the end of backward, of the gradients of parameters outside the layers, as computed and as summed."""
    return _scattered(_groups(model)[0], ranks)


def _scattered(group: Iterable[nn.Parameter], ranks: int) -> int:
    """Bytes of a group's gradients in the computing precision, of all of them in the precision of the sums, and of the
    share.
    """
    trained = _trained(group)
    computed = sum(p.numel() * p.element_size() for p in trained)
    return computed + _whole(trained, ranks, _exact) + _sum(trained, ranks, _exact)


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
    return sum(_share(p, ranks) * item(p) for p in parameters)


def _whole(parameters: Iterable[nn.Parameter], ranks: int, item: Callable[[nn.Parameter], int]) -> int:
    """Bytes of `ranks` shares: the rows that rounding up adds are gathered too."""
    return ranks * _sum(parameters, ranks, item)


def _share(parameter: nn.Parameter, ranks: int) -> int:
    """Number of a parameter's numbers that the first rank has."""
    rows = parameter.shape[0] if parameter.ndim else 1
    return -(-rows // ranks) * (parameter.numel() // max(1, rows))
