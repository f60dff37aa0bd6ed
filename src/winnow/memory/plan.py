"""Memory that a run will take, part by part: printed in a few lines, and refused where a device has less."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from winnow.errors import ConfigError
from winnow.memory.sizes import readable
from winnow.memory.usage import free_bytes

Phase = Literal[
    "load", "always", "values", "value update", "value sums", "update", "sums", "logprobs", "norms", "generate"
]
PHASES: dict[Phase, str] = {
    "load": "before it is divided",
    "always": "at all times",
    "values": "for values",
    "value update": "in an update of the value model",
    "value sums": "while its gradients are summed",
    "update": "in an update",
    "sums": "while gradients are summed",
    "logprobs": "for log-probs",
    "norms": "for gradient norms",
    "generate": "while sampling",
}
FreeBytes = Callable[[str], int | None]  # of a device: "cpu", "cuda", "cuda:1"; None where that is not known


@dataclass(frozen=True)
class MemoryPart:
    """Something that takes memory: `MemoryPart("gradients", 250_000, "update", "cpu")`."""

    name: str
    bytes: int
    phase: Phase
    device: str
    remedies: tuple[str, ...] = ()  # what a user can do to make it smaller
    least: int | None = None  # of keys and values: what one rollout of full length takes
    wanted: int | None = None  # where there is room for less than they could use: so much
    takes_rest: bool = False  # makes do with `least`, and takes what the rest leaves
    writer: bool = False  # of rank 0 alone, and beside its `need`


def free(device: str) -> int | None:
    """Bytes that this machine has left on "cpu", "cuda" or "cuda:1"; None where that is not known."""
    return free_bytes(torch.device(device))


def assumed(memory: int, kind: str) -> FreeBytes:
    """As if every device of a kind ("cuda") had so many bytes free; of others, what this machine has."""
    return lambda device: memory if device.partition(":")[0] == kind else free(device)


@dataclass(frozen=True)
class MemoryPlan:
    """The parts of a run, on every device that it uses."""

    jobs: str  # which device does what, in words
    parts: tuple[MemoryPart, ...]
    checkpoint: int = 0  # bytes of one on the disk, its tokenizer left out
    ranks: int = 1  # that compute the run together, all with these parts
    ranks_here: int = 1  # of them on this machine, which share its CPU's memory
    exact_evaluation: bool = True  # there is room to evaluate in the precision that the policy is trained in

    @property
    def adjusted(self) -> int | None:
        """Bytes of the part that takes what the rest leaves, where there is one."""
        return next((part.bytes for part in self.parts if part.takes_rest), None)

    @property
    def devices(self) -> list[str]:
        return list(dict.fromkeys(part.device for part in self.parts))

    def need(self, device: str) -> int:
        """Bytes at a rank's worst moment: what is always there and the largest of the phases, which never coincide; or
        what is there while the policy is loaded.
        """
        return sum(self._sum(device, phase) for phase in self._worst(device))

    def need_here(self, device: str) -> int:
        """Of all ranks that share the device: those of this machine its CPU."""
        return self.writer_bytes(device) + self.need(device) * (self.ranks_here if device == "cpu" else 1)

    def writer_bytes(self, device: str) -> int:
        """What rank 0 has there beside its `need`."""
        return sum(part.bytes for part in self.parts if part.writer and part.device == device)

    def lines(self, free_on: FreeBytes = free) -> Iterator[str]:
        """For a person: the jobs, then a block per device."""
        yield f"{'devices':<13}{self.jobs}"
        for device in self.devices:
            left = free_on(device)
            known = "how much is free there is not known" if left is None else f"{readable(left)} are free"
            yield f"{'memory':<13}{device}: {readable(self.need_here(device))} at most{self._each(device)}; {known}"
            yield from (f"{'':<13}{text}" for text in self._phases(device))
            yield from (f"{'':<13}{text}" for text in self._held(device))

    def check(self, free_on: FreeBytes = free) -> None:
        """Raise ConfigError where a device has less free than its parts need."""
        for device in self.devices:
            left, need = free_on(device), self.need_here(device)
            if left is not None and need > left:
                parts = self._largest(device)
                several = device == "cpu" and self.ranks_here > 1
                fewer = [f"start fewer ranks on this machine, now {self.ranks_here}"] if several else []
                found = dict.fromkeys([*fewer, *(remedy for part in parts for remedy in part.remedies)])
                raise ConfigError(
                    f"the run does not fit: at its worst moment {device} needs {readable(need)}{self._each(device)}, "
                    f"and {readable(left)} are free. Most of it: {_listed(parts)}",
                    remedy="; ".join(found) or "choose a smaller model",
                    code="config.memory",
                )

    def _each(self, device: str) -> str:
        """Which ranks need it: " for 2 ranks (1.5 GiB each)"."""
        if self.ranks == 1:
            return ""
        if device != "cpu":
            return f" on each of {self.ranks} ranks"
        if not self.need(device):
            return " for rank 0"
        return f" for {self.ranks_here} ranks ({readable(self.need(device))} each)" if self.ranks_here > 1 else ""

    def _phases(self, device: str) -> Iterator[str]:
        for phase, words in PHASES.items():
            parts = self._of(device, phase)
            if parts:
                yield f"{words} {readable(self._sum(device, phase))}: {_listed(parts)}"
        alone = [part for part in self.parts if part.writer and part.device == device]
        if alone:
            yield f"on rank 0 also {readable(sum(part.bytes for part in alone))}: {_listed(alone)}"

    def _held(self, device: str) -> Iterator[str]:
        for part in self.parts:
            if part.device == device and part.least and part.wanted:
                fits = part.bytes // part.least
                yield (
                    f"{part.name} could use {readable(part.wanted)}: they hold {fits} rollout{'s' * (fits != 1)} of "
                    f"full length at once, or more that are shorter; others wait"
                )

    def _largest(self, device: str) -> list[MemoryPart]:
        """Of the worst moment: the parts that are a tenth of it or more, largest first."""
        alone = [part for part in self.parts if part.writer and part.device == device]
        parts = [part for phase in self._worst(device) for part in self._of(device, phase)] + alone
        by_size = sorted(parts, key=lambda part: part.bytes, reverse=True)
        return [part for part in by_size if 10 * part.bytes >= self.need(device)]

    def _worst(self, device: str) -> tuple[Phase, ...]:
        phases = [phase for phase in PHASES if phase not in ("always", "load")]
        worst = max(phases, key=lambda phase: self._sum(device, phase))
        running = self._sum(device, "always") + self._sum(device, worst)
        return ("load",) if self._sum(device, "load") > running else ("always", worst)

    def _of(self, device: str, phase: Phase) -> list[MemoryPart]:
        return [part for part in self.parts if (part.device, part.phase) == (device, phase) and not part.writer]

    def _sum(self, device: str, phase: Phase) -> int:
        return sum(part.bytes for part in self._of(device, phase))


def _listed(parts: list[MemoryPart]) -> str:
    return ", ".join(f"{part.name} {readable(part.bytes)}" for part in parts)
