"""Exchanges of tensors as the recorder sees them, and mistakes that are planted in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from recorder import ExchangeError, watched
from torch import Tensor
from update_cases import _update, learner_of, sequences

from winnow import ranks
from winnow.config_file import validate
from winnow.errors import RankError
from winnow.learner import gradient_sums
from winnow.records import Batch
from winnow.training.resolve import resolve_members


def debug_level() -> str:
    return dist.get_debug_level().name


def other_order(which: int) -> list[str]:
    """Two exchanges, which one rank makes in the other order. The errors, by exchange."""
    steps: list[Callable[[], Any]] = [lambda: dist.all_reduce(torch.ones(2)), lambda: dist.broadcast(torch.ones(2), 0)]
    return [error_of(step) for step in (reversed(steps) if ranks.rank() == which else steps)]


def other_shape(which: int) -> str:
    return error_of(lambda: dist.all_reduce(torch.ones(3 if ranks.rank() == which else 2)))


def other_buckets(config: Mapping[str, Any], which: int) -> str:
    """An update in which one rank sums its gradients in other pieces."""
    members = resolve_members(validate(config), Path.cwd())
    learner, batch = learner_of(members), Batch(epoch=0, sequences=sequences((3, 2), 9))
    whole = gradient_sums.BUCKET
    try:
        gradient_sums.BUCKET = 8 if ranks.rank() == which else whole
        return error_of(lambda: _update(learner, members, batch))
    finally:
        gradient_sums.BUCKET = whole


def host_tensor() -> tuple[str, str, int]:
    """A flag that the host has made, and then a tensor of the device, over the group for device tensors."""
    of_device = torch.ones(2)
    with watched() as seen:
        of_host = error_of(lambda: dist.all_reduce(torch.tensor([1.0])))
        return of_host, error_of(lambda: dist.all_reduce(of_device)), len(seen.exchanges)


def read_before_wait() -> tuple[str, str, float]:
    """The sum of a result, before and after it is awaited."""
    numbers = torch.ones(2)
    with watched():
        work = dist.all_reduce(numbers, async_op=True)
        before = error_of(lambda: numbers.sum())
        work.wait()
        return before, error_of(lambda: numbers.sum()), float(numbers.sum())


def read_a_view_before_wait() -> str:
    """Of gathered pieces, one is read too early."""
    mine, whole = torch.ones(2), torch.zeros(2 * ranks.count())
    with watched():
        work = dist.all_gather_into_tensor(whole, mine, async_op=True)
        error = error_of(lambda: whole[:2] + 1)
        work.wait()
        return error


def update(config: Mapping[str, Any], counts: Sequence[int]) -> tuple[list[tuple[str, Any]], int, list[str]]:
    """The exchanges of an update's tensors, the number of its passes, and the operations that a device refuses."""
    members = resolve_members(validate(config), Path.cwd())
    learner, batch = learner_of(members), Batch(epoch=0, sequences=sequences(counts, 9))
    (filled,) = learner.compute_logprobs([batch], members.needs)
    with watched() as seen:
        _, _, passes, _ = _update(learner, members, filled)
        weights = learner.weights()
        total = sum(weights[name].sum() for name in weights)
    assert isinstance(total, Tensor)
    assert total.isfinite()
    assert not seen.pending
    mixed = [finding.operator for finding in seen.device.of("mixed")]
    return [(found.method, found.shapes) for found in seen.exchanges], passes, mixed


def error_of(act: Callable[[], Any]) -> str:
    """The kind of error that is raised; empty without one."""
    try:
        act()
    except (ExchangeError, RankError, RuntimeError) as error:
        return type(error).__name__
    return ""
