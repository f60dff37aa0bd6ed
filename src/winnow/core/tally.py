"""What a step collects for its metrics while it runs: a clock for its phases, and a tally of its updates.

Means of per-token numbers arrive in parts: one per micro-batch, and one per rank.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Self

import numpy as np
import torch
from torch import Tensor

from winnow import ranks
from winnow.algos.objective import Value
from winnow.core.mismatch import CorrectionEffect, Mismatch, Parity, as_staleness, gap
from winnow.core.protocols import MemoryGauge
from winnow.metrics import VALUE_CLIP, VALUE_LOSS, VALUE_LOSSES
from winnow.records import FloatArray, Metrics, MicroBatch, PolicyOutput, UpdateResult

Reading = tuple[Callable[..., None], Sequence[Tensor]]  # a function, and the tensors whose numbers it gets


@dataclass
class Mean:
    """A running mean and maximum of per-token numbers."""

    total: float = 0.0
    count: int = 0
    largest: float = -np.inf

    def add(self, numbers: FloatArray) -> None:
        if numbers.size:
            self.total += float(numbers.sum())
            self.count += numbers.size
            self.largest = float(np.maximum(self.largest, numbers.max()))  # unlike max(), np.maximum keeps NaN

    def merge(self, other: Self) -> None:
        self.total += other.total
        self.count += other.count
        self.largest = float(np.maximum(self.largest, other.largest))

    @property
    def value(self) -> float:
        return self.total / self.count if self.count else np.nan


def read_together(tensors: Sequence[Tensor]) -> list[FloatArray]:
    """The numbers of each tensor, flat, by a single copy from the device: each copy waits for all of its work."""
    if not tensors:
        return []
    ends = np.cumsum([tensor.numel() for tensor in tensors])
    numbers: FloatArray = torch.cat([tensor.double().flatten() for tensor in tensors]).numpy(force=True)
    return np.split(numbers, ends[:-1])


def merged(of_each: Iterable[Mapping[str, Mean]]) -> dict[str, Mean]:
    """The means by name, over all the mappings."""
    means: dict[str, Mean] = {}
    for of_one in of_each:
        for name, mean in of_one.items():
            means.setdefault(name, Mean()).merge(mean)
    return means


@dataclass
class Clock:
    """Seconds and memory per phase of one step. `announce` is called at the start of each phase."""

    announce: Callable[[str], None]
    gauge: MemoryGauge
    started: float = field(default_factory=time.perf_counter)
    seconds: Metrics = field(default_factory=dict)
    spent: ranks.Spent = field(default_factory=lambda: ranks.spent.copy())  # exchanges with other ranks before the step

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        self.announce(phase)
        begin = time.perf_counter()
        self.gauge.start()
        try:
            yield
        finally:
            self.gauge.read(phase)
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - begin

    def metrics(self) -> Metrics:
        phases = {f"seconds/{phase}": seconds for phase, seconds in self.seconds.items()}
        return {**phases, "seconds/step": time.perf_counter() - self.started, **self.gauge.metrics(), **self._ranks()}

    def _ranks(self) -> Metrics:
        """The cost of exchanges between ranks: seconds and bytes, as means over the ranks. Also the memory of the rank
        with the most, which replaces this rank's.
        """
        if ranks.count() == 1:
            return {}
        mine, own = ranks.spent.since(self.spent), self.gauge.metrics()
        all_spent, step, held = zip(
            *ranks.gather_from_all((mine, time.perf_counter() - self.started, own)), strict=True
        )
        waited = [spent.seconds for spent in all_spent]
        return {
            **{name: max(of_rank.get(name, 0.0) for of_rank in held) for name in sorted(set().union(*held))},
            "ranks/count": float(len(waited)),
            "ranks/seconds_waiting": float(np.mean(waited)),
            "ranks/waiting_share": float(np.mean(waited) / np.mean(step)),
            "ranks/slowest": float(np.argmin(waited)),
            **{f"ranks/bytes_{what}": float(np.mean([s.bytes.get(what, 0) for s in all_spent])) for what in mine.bytes},
        }


@dataclass(kw_only=True)
class UpdateTally:
    """The updates of a model in one step. The measurements of an update stay on the device until it is closed, so that
    its micro-batches follow each other without a wait.
    """

    unread: list[list[Reading]] = field(default_factory=list)  # of each micro-batch of the current update
    diagnostics: dict[str, Mean] = field(default_factory=dict)
    results: list[UpdateResult] = field(default_factory=list)

    def measure(self, value: Value, *more: Reading) -> None:
        """Add one micro-batch of the current update: its diagnostics, and what else is to be read."""
        means = ((self.diagnostics.setdefault(name, Mean()), of) for name, of in value.diagnostics.items())
        self.unread.append([*((mean.add, [of.detach()]) for mean, of in means), *more])

    def close(self, result: UpdateResult) -> None:
        """Add the result of the update that the added micro-batches belong to, and read their measurements."""
        readings = [reading for of_one in self.unread for reading in of_one]
        numbers = iter(read_together([tensor for _, tensors in readings for tensor in tensors]))
        for use, tensors in readings:
            use(*itertools.islice(numbers, len(tensors)))
        self.unread.clear()
        self.results.append(result)


@dataclass
class Tally(UpdateTally):
    """The updates of the policy. The measurements are those of this rank's share until `metrics` combines all ranks."""

    parity: Parity
    stale: bool = False  # the rollouts may be older than the policy, so that no comparison is one of equal versions
    loss: float = 0.0  # sum over the updates taken
    loss_now: float = 0.0  # sum over the micro-batches of the current update, once they are read
    mismatch: Mismatch = field(default_factory=Mismatch)
    correction: CorrectionEffect = field(default_factory=CorrectionEffect)
    idle: int = 0  # empty micro-batches, which make every rank call the policy equally often

    def add(self, value: Value, out: PolicyOutput, mb: MicroBatch) -> None:
        """Add one micro-batch of the current update."""
        self.idle += not mb.trained_tokens
        counts = [sequence.rollout.length for sequence in mb.sequences]
        sequence = np.repeat(np.arange(len(counts)), counts)  # [T] the place of each token's sequence
        rank = np.repeat([s.rollout.rank for s in mb.sequences], counts) if counts else None

        def add_loss(loss: FloatArray) -> None:
            self.loss_now += float(loss[0])

        def compare(difference: FloatArray, advantages: FloatArray) -> None:
            self.parity.add(difference, rank)
            self.mismatch.add(sequence, difference, advantages)

        more: list[Reading] = [(add_loss, [value.total.detach()])]
        if all(r.skipped for r in self.results):  # before any update: parity needs the weights that sampled
            more.append((compare, [gap(out, mb), mb.of_trained(mb.advantages)]))
        if value.importance is not None and value.acted is not None:
            more.append((partial(self.correction.add, sequence), [value.importance, value.acted]))
        self.measure(value, *more)

    def close(self, result: UpdateResult) -> None:
        super().close(result)
        self.loss += 0.0 if result.skipped else self.loss_now
        self.loss_now = 0.0

    def metrics(self) -> Metrics:
        self._merge(ranks.gather_from_all(self, what="metrics"))
        taken = [r for r in self.results if not r.skipped]
        metrics = {
            "policy/skipped_updates": float(len(self.results) - len(taken)),
            "policy/not_finite_updates": float(sum(not math.isfinite(r.grad_norm) for r in self.results)),
            "budget/updates": float(len(taken)),
        }
        if self.results:  # empty while a value model is pretrained
            metrics["policy/learning_rate"] = self.results[-1].learning_rate
        if taken:
            metrics["policy/loss"] = self.loss / len(taken)
            metrics["policy/grad_norm"] = float(np.mean([r.grad_norm for r in taken]))
        if products := [r.products for r in taken if r.products is not None]:
            along, square = np.mean(products, axis=0).tolist()
            metrics |= {"policy/gradient_along": along, "policy/gradient_square": square}
        if ranks.count() > 1:
            metrics["ranks/idle_micro_batches"] = float(self.idle)
        compared = {**self.parity.metrics(), **self.mismatch.metrics()}
        compared = as_staleness(compared) if self.stale else compared
        return {**metrics, **compared, **self.correction.metrics(), **self._diagnostics()}

    def _merge(self, tallies: Sequence[Self]) -> None:
        """Combine the tallies of all ranks, in their order. The results of updates are the same on each rank."""
        self.loss, self.idle = sum(tally.loss for tally in tallies), sum(tally.idle for tally in tallies)
        self.diagnostics = merged([tally.diagnostics for tally in tallies])
        self.parity.merge([tally.parity for tally in tallies])
        self.mismatch.merge([tally.mismatch for tally in tallies])
        self.correction.merge([tally.correction for tally in tallies])

    def _diagnostics(self) -> Metrics:
        metrics: Metrics = {}
        for name, mean in self.diagnostics.items():
            if name == "ratio":
                metrics |= {"policy/ratio_mean": mean.value, "policy/ratio_max": mean.largest}
            elif name == "clip_fraction":
                metrics["policy/clip_fraction"] = mean.value
            elif name not in VALUE_LOSSES:
                metrics[f"loss/{name}"] = mean.value
        return {**metrics, **of_value_loss(self.diagnostics)}


def of_value_loss(seen: Mapping[str, Mean]) -> Metrics:
    """Means of the value loss's diagnostics, by metric name; empty without a value loss."""
    names = {VALUE_LOSS: "critic/loss", VALUE_CLIP: "critic/clip_fraction"}
    return {metric: seen[name].value for name, metric in names.items() if name in seen}
