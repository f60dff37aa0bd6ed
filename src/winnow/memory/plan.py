"""The memory plan of a run, part by part: displayed in a few lines, refused where a device has less."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from winnow.errors import ConfigError
from winnow.memory.usage import free_bytes

Phase = Literal["always", "values", "value update", "value sums", "update", "sums", "logprobs", "norms", "generate"]
PHASES: dict[Phase, str] = {
    "always": "at all times",
    "values": "for values",
    "value update": "in an update of the value model",
    "value sums": "at the end of its update",
    "update": "in an update",
    "sums": "at the end of an update",
    "logprobs": "for log-probs",
    "norms": "for gradient norms",
    "generate": "while sampling",
}
FreeBytes = Callable[[str], int | None]  # device ("cpu", "cuda", "cuda:1") -> free bytes; None where unknown


@dataclass(frozen=True)
class MemoryPart:
    """One use of memory: `MemoryPart("gradients", 250_000, "update", "cpu")`."""

    name: str
    bytes: int
    phase: Phase
    device: str
    remedies: tuple[str, ...] = ()  # advice on how to make it smaller
    least: int | None = None  # minimum: the keys and values of one rollout of full length
    wanted: int | None = None  # bytes that it could use, where it gets less
    takes_rest: bool = False  # needs only `least`, and gets the memory that other parts leave
    writer: bool = False  # on rank 0 only, in addition to its `need`


def free_on_device(device: str) -> int | None:
    """Free bytes of "cpu", "cuda" or "cuda:1" on this machine; None where unknown."""
    return free_bytes(torch.device(device))


def assume_free(memory: int, kind: str) -> FreeBytes:
    """A function that reports `memory` free bytes for devices of a kind ("cuda"), and this machine's for others."""
    return lambda device: memory if device.partition(":")[0] == kind else free_on_device(device)


@dataclass(frozen=True)
class MemoryPlan:
    """The parts of a run on all devices that it uses."""

    jobs: str  # description of which device does what
    parts: tuple[MemoryPart, ...]
    checkpoint: int = 0  # bytes of a checkpoint on disk, without its tokenizer
    ranks: int = 1  # of the run, each with these parts
    ranks_here: int = 1  # on this machine, sharing its CPU's memory
    exact_evaluation: bool = True  # memory suffices to evaluate in the policy's training precision

    @property
    def adjusted(self) -> int | None:
        """Bytes of the part that takes the remaining memory, where one exists."""
        return next((part.bytes for part in self.parts if part.takes_rest), None)

    @property
    def devices(self) -> list[str]:
        return list(dict.fromkeys(part.device for part in self.parts))

    def need(self, device: str) -> int:
        """Maximum bytes of a rank: those at all times plus those of the largest phase, as phases never coincide."""
        return sum(self._sum(device, phase) for phase in self._worst(device))

    def need_here(self, device: str) -> int:
        """Bytes of all ranks that share the device (on a CPU, those of this machine), with rank 0's own parts."""
        return self.writer_bytes(device) + self.need(device) * (self.ranks_here if device == "cpu" else 1)

    def writer_bytes(self, device: str) -> int:
        """Bytes that rank 0 needs there besides its `need`."""
        return sum(part.bytes for part in self.parts if part.writer and part.device == device)

    def lines(self, free_on: FreeBytes = free_on_device) -> Iterator[str]:
        """Lines of the display: the jobs, then a block per device."""
        yield f"{'devices':<13}{self.jobs}"
        for device in self.devices:
            available = free_on(device)
            known = "the free memory is unknown" if available is None else f"{format_bytes(available)} are free"
            need = format_bytes(self.need_here(device))
            yield f"{'memory':<13}{device}: {need} at most{self._per_rank(device)}; {known}"
            yield from (f"{'':<13}{text}" for text in self._phases(device))
            yield from (f"{'':<13}{text}" for text in self._cache_notes(device))

    def check(self, free_on: FreeBytes = free_on_device) -> None:
        """Raise ConfigError where a device has less free memory than its parts need."""
        for device in self.devices:
            available, need = free_on(device), self.need_here(device)
            if available is not None and need > available:
                parts = self._largest(device)
                several = device == "cpu" and self.ranks_here > 1
                fewer = [f"start fewer ranks on this machine, now {self.ranks_here}"] if several else []
                remedies = dict.fromkeys([*fewer, *(remedy for part in parts for remedy in part.remedies)])
                raise ConfigError(
                    f"the run does not fit: at its worst moment {device} needs {format_bytes(need)}"
                    f"{self._per_rank(device)}, and {format_bytes(available)} are free. Most of it: {_listed(parts)}",
                    remedy="; ".join(remedies) or "choose a smaller model",
                    code="config.memory",
                )

    def _per_rank(self, device: str) -> str:
        """The ranks that need the memory: " for 2 ranks (1.5 GiB each)"."""
        if self.ranks == 1:
            return ""
        if device != "cpu":
            return f" on each of {self.ranks} ranks"
        if not self.need(device):
            return " for rank 0"
        return f" for {self.ranks_here} ranks ({format_bytes(self.need(device))} each)" if self.ranks_here > 1 else ""

    def _phases(self, device: str) -> Iterator[str]:
        for phase, words in PHASES.items():
            parts = self._parts_in(device, phase)
            if parts:
                yield f"{words} {format_bytes(self._sum(device, phase))}: {_listed(parts)}"
        alone = [part for part in self.parts if part.writer and part.device == device]
        if alone:
            yield f"on rank 0 also {format_bytes(sum(part.bytes for part in alone))}: {_listed(alone)}"

    def _cache_notes(self, device: str) -> Iterator[str]:
        for part in self.parts:
            if part.device == device and part.least and part.wanted:
                fits = part.bytes // part.least
                yield (
                    f"{part.name} could use {format_bytes(part.wanted)}: "
                    f"they hold {fits} rollout{'s' * (fits != 1)} of "
                    f"full length at once, or more that are shorter; others wait"
                )

    def _largest(self, device: str) -> list[MemoryPart]:
        """Parts of the maximum that `need` computes, and rank 0's own, if at least a tenth of it; largest first."""
        alone = [part for part in self.parts if part.writer and part.device == device]
        parts = [part for phase in self._worst(device) for part in self._parts_in(device, phase)] + alone
        by_size = sorted(parts, key=lambda part: part.bytes, reverse=True)
        return [part for part in by_size if 10 * part.bytes >= self.need(device)]

    def _worst(self, device: str) -> tuple[Phase, ...]:
        phases = [phase for phase in PHASES if phase != "always"]
        return ("always", max(phases, key=lambda phase: self._sum(device, phase)))

    def _parts_in(self, device: str, phase: Phase) -> list[MemoryPart]:
        return [part for part in self.parts if (part.device, part.phase) == (device, phase) and not part.writer]

    def _sum(self, device: str, phase: Phase) -> int:
        return sum(part.bytes for part in self._parts_in(device, phase))


def _listed(parts: list[MemoryPart]) -> str:
    return ", ".join(f"{part.name} {format_bytes(part.bytes)}" for part in parts)


def format_bytes(size: int) -> str:
    """A size in a readable unit: "3.9 MiB", "12.3 GiB"."""
    for unit, of in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= of:
            return f"{size / of:.1f} {unit}" if size < 100 * of else f"{size / of:.0f} {unit}"
    return f"{size} bytes"
