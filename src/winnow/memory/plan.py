"""Memory that a run will take, part by part: said in a few lines, and refused where a device has less."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from winnow.errors import ConfigError
from winnow.memory.usage import room

Phase = Literal["always", "update", "generate"]
PHASES: dict[Phase, str] = {"always": "at all times", "update": "in an update", "generate": "while sampling"}
Room = Callable[[str], int | None]  # bytes that a device has free
UNITS = {"gib": 2**30, "gb": 10**9, "mib": 2**20, "mb": 10**6}


@dataclass(frozen=True)
class Part:
    """Something that takes memory."""

    name: str
    bytes: int
    phase: Phase
    device: str


def free(device: str) -> int | None:
    """Bytes that this machine has left on "cpu", "cuda" or "cuda:1"; None where that is not known."""
    return room(torch.device(device))


def assumed(memory: int, kind: str) -> Room:
    """As if every device of a kind ("cuda") had so many bytes free; of others, what this machine has."""
    return lambda device: memory if device.partition(":")[0] == kind else free(device)


@dataclass(frozen=True)
class MemoryPlan:
    """The parts of a run, on every device that it uses."""

    jobs: str  # who does what
    parts: tuple[Part, ...]
    remedies: Mapping[str, Sequence[str]]  # by the name of a part: what makes it smaller
    checkpoint: int = 0  # bytes of one on the disk, its tokenizer left out

    @property
    def devices(self) -> list[str]:
        return list(dict.fromkeys(part.device for part in self.parts))

    def need(self, device: str) -> int:
        """Bytes at the worst moment: what is always there, and the larger one of the phases, which never coincide."""
        return self._sum(device, "always") + self._sum(device, self._worst(device))

    def lines(self, room: Room = free) -> Iterator[str]:
        """For a person: the jobs, then a block per device."""
        yield f"{'devices':<13}{self.jobs}"
        for device in self.devices:
            left = room(device)
            known = "how much is free there is not known" if left is None else f"{readable(left)} are free"
            yield f"{'memory':<13}{device}: {readable(self.need(device))} at most; {known}"
            yield from (f"{'':<13}{text}" for text in self._phases(device))

    def check(self, room: Room = free) -> None:
        """Raise ConfigError where a device has less free than its parts need."""
        for device in self.devices:
            left, need = room(device), self.need(device)
            if left is not None and need > left:
                parts = self._largest(device)
                listed = ", ".join(f"{part.name} {readable(part.bytes)}" for part in parts)
                found = dict.fromkeys(words for part in parts for words in self.remedies.get(part.name, ()))
                raise ConfigError(
                    f"the run does not fit: at its worst moment {device} needs {readable(need)}, and {readable(left)} "
                    f"are free. Most of it: {listed}. What helps: {'; '.join(found) or 'a smaller model'}"
                )

    def _phases(self, device: str) -> Iterator[str]:
        for phase, words in PHASES.items():
            parts = [part for part in self.parts if (part.device, part.phase) == (device, phase)]
            if parts:
                listed = ", ".join(f"{part.name} {readable(part.bytes)}" for part in parts)
                yield f"{words} {readable(self._sum(device, phase))}: {listed}"

    def _largest(self, device: str) -> list[Part]:
        """Of the worst moment: the parts that are a tenth of it or more, largest first."""
        moment = ("always", self._worst(device))
        parts = [part for part in self.parts if part.device == device and part.phase in moment]
        by_size = sorted(parts, key=lambda part: part.bytes, reverse=True)
        return [part for part in by_size if 10 * part.bytes >= self.need(device)]

    def _worst(self, device: str) -> Phase:
        update, generate = self._sum(device, "update"), self._sum(device, "generate")
        return "update" if update >= generate else "generate"

    def _sum(self, device: str, phase: Phase) -> int:
        return sum(part.bytes for part in self.parts if (part.device, part.phase) == (device, phase))


def readable(size: int) -> str:
    """Bytes for a person: "3.9 MiB", "12.3 GiB"."""
    for unit, of in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= of:
            return f"{size / of:.1f} {unit}" if size < 100 * of else f"{size / of:.0f} {unit}"
    return f"{size} bytes"


def in_bytes(text: str) -> int:
    """A size that a person wrote: "80GiB", "80 GB", "512MiB". Raises ConfigError for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) *([a-z]+)", text.strip().lower(), re.ASCII)
    if match is None or match[2] not in UNITS:
        raise ConfigError(f"{text!r} is no size: write a number and a unit, GiB, GB, MiB or MB, for example 80GiB")
    return int(float(match[1]) * UNITS[match[2]])
