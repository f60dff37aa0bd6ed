"""Memory that a run will take, part by part: printed in a few lines, and refused where a device has less."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from winnow.errors import ConfigError
from winnow.memory.sizes import readable
from winnow.memory.usage import free_bytes

Phase = Literal["always", "update", "sums", "logprobs", "norms", "generate"]
PHASES: dict[Phase, str] = {
    "always": "at all times",
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

    @property
    def adjusted(self) -> int | None:
        """Bytes of the part that takes what the rest leaves, where there is one."""
        return next((part.bytes for part in self.parts if part.takes_rest), None)

    @property
    def devices(self) -> list[str]:
        return list(dict.fromkeys(part.device for part in self.parts))

    def need(self, device: str) -> int:
        """Bytes at the worst moment: what is always there, and the largest of the phases, which never coincide."""
        return self._sum(device, "always") + self._sum(device, self._worst(device))

    def left(self, device: str, free_on: FreeBytes) -> int | None:
        """Bytes of a device that each of its ranks may take; None where that is not known."""
        found = free_on(device)
        return found if found is None or device != "cpu" else found // self.ranks_here

    def lines(self, free_on: FreeBytes = free) -> Iterator[str]:
        """For a person: the jobs, then a block per device."""
        yield f"{'devices':<13}{self.jobs}"
        for device in self.devices:
            left = self.left(device, free_on)
            known = "how much is free there is not known" if left is None else f"{readable(left)} are free"
            each = f" on each of {self.ranks} ranks" if self.ranks > 1 else ""
            shared = " for each" if left is not None and device == "cpu" and self.ranks_here > 1 else ""
            yield f"{'memory':<13}{device}: {readable(self.need(device))} at most{each}; {known}{shared}"
            yield from (f"{'':<13}{text}" for text in self._phases(device))
            yield from (f"{'':<13}{text}" for text in self._held(device))

    def check(self, free_on: FreeBytes = free) -> None:
        """Raise ConfigError where a device has less free than its parts need."""
        for device in self.devices:
            left, need = self.left(device, free_on), self.need(device)
            if left is not None and need > left:
                parts = self._largest(device)
                found = dict.fromkeys(remedy for part in parts for remedy in part.remedies)
                each = f" for each of {self.ranks} ranks" if self.ranks > 1 else ""
                raise ConfigError(
                    f"the run does not fit: at its worst moment {device} needs {readable(need)}{each}, and "
                    f"{readable(left)} are free. Most of it: {_listed(parts)}. What helps: "
                    f"{'; '.join(found) or 'a smaller model'}"
                )

    def _phases(self, device: str) -> Iterator[str]:
        for phase, words in PHASES.items():
            parts = [part for part in self.parts if (part.device, part.phase) == (device, phase)]
            if parts:
                yield f"{words} {readable(self._sum(device, phase))}: {_listed(parts)}"

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
        moment = ("always", self._worst(device))
        parts = [part for part in self.parts if part.device == device and part.phase in moment]
        by_size = sorted(parts, key=lambda part: part.bytes, reverse=True)
        return [part for part in by_size if 10 * part.bytes >= self.need(device)]

    def _worst(self, device: str) -> Phase:
        phases = [phase for phase in PHASES if phase != "always"]
        return max(phases, key=lambda phase: self._sum(device, phase))

    def _sum(self, device: str, phase: Phase) -> int:
        return sum(part.bytes for part in self.parts if (part.device, part.phase) == (device, phase))


def _listed(parts: list[MemoryPart]) -> str:
    return ", ".join(f"{part.name} {readable(part.bytes)}" for part in parts)
