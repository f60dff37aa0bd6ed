"""A log of metrics alone: scalars in the event files of TensorBoard, of a trainer that writes no rollouts to its disk.

An event file is a series of records (8 bytes of length, 4 of a checksum, the record, 4 of a checksum), and a record is
an `Event` of TensorBoard's protocol buffers: step (2), summary (5) > value (1) > tag (1) and simple_value (2). These
fields are read here, so that the package tensorboard is not needed. Checksums are not compared.
"""

from __future__ import annotations

import functools
import math
import re
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from winnow.errors import DataError
from winnow.metrics import distinct
from winnow.state.disk import check_kind, errors_as
from winnow.state.foreign_log import ForeignGroup, ForeignLog, listed, spent
from winnow_lab.logs.reading import malformed, written

EVENTS = "events.out.tfevents.*"
TOGETHER = "all"  # in place of a data source: all of them
RECOGNIZED_BY = 2**16  # bytes of scalars in which the first tags of a file are
SCALAR = 2**12  # bytes of a record, at most; a longer one is a text
HEAD, FOOT = 12, 4  # bytes of a record beside its event: length and checksum, and a checksum
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # kinds of fields
Field = tuple[int, int | bytes]
Scalars = Mapping[int, Mapping[str, float]]  # step -> tag -> value


class MetricsLog(ForeignLog):
    """Event files in a folder. A step of training is a step with the tag `count`."""

    count: ClassVar[str]  # the tag of the number of rollouts
    length: ClassVar[str]  # of their mean number of tokens
    metrics: ClassVar[Mapping[str, str]]  # tag -> winnow's name
    evaluation: ClassVar[re.Pattern[str]]  # the tag of an evaluation's mean reward, with the name of the data source
    known: ClassVar[tuple[str, ...]]  # prefixes of the trainer's other tags, which are not named when they are not read

    @classmethod
    def is_at(cls, path: Path) -> bool:
        return any(cls.count in tags_at_start(file) for file in _files(path))  # a launch may end before its first step

    @classmethod
    def step_of(cls, path: Path) -> int | None:
        return None

    def files(self) -> dict[int, Path]:
        return {}

    def read(self, step: int) -> list[ForeignGroup]:
        raise self.no_rollouts(step)

    def absence(self, step: int | None) -> tuple[str, str]:
        return f"{self.program} writes none to its disk", "read the metrics (winnow plot, compare, report)"

    def measured(self) -> dict[int, dict[str, float]]:
        measured: dict[int, dict[str, float]] = {}
        for step, tags in self.scalars().items():
            if self.count in tags and step > 0:
                own = {new: tags[tag] for tag, new in self.metrics.items() if tag in tags}
                rollouts = tags[self.count]
                own |= {"budget/rollouts": rollouts, "select/kept": rollouts, "select/trained": rollouts}
                if self.length in tags:
                    own["rollout/length_mean"] = tags[self.length]
                    own |= spent(rollouts * tags[self.length], rollouts * tags[self.length])
                measured.setdefault(step - 1, {}).update(own)
            if evaluated := self._evaluated(tags):
                measured.setdefault(step, {}).update(evaluated)
        return measured

    def _evaluated(self, tags: Mapping[str, float]) -> dict[str, float]:
        """The mean rewards of an evaluation by data source; without the name of a source that is the only one."""
        found = {match[1]: value for tag, value in tags.items() if (match := self.evaluation.fullmatch(tag))}
        overall = found.pop(TOGETHER, None)
        if len(found) < 2:
            mean = next(iter(found.values()), None) if overall is None else overall
            return {} if mean is None else {"eval/reward_mean": mean}
        return {f"eval/{task}/reward_mean": found[name] for name, task in zip(found, distinct(found), strict=True)}

    def notes(self) -> list[str]:
        read = {self.count, self.length, *self.metrics}
        tags = dict.fromkeys(tag for row in self.scalars().values() for tag in row)
        unknown = [tag for tag in tags if tag not in read and not tag.startswith(self.known)]
        notes = [
            f"a log of {self.program}: step 0 here is its step 1. It has metrics only, as {self.program} writes no "
            f"rollouts to its disk",
            "tokens are the logged mean length times the logged number of rollouts, and all count as trained on",
        ]
        return [*notes, f"metrics that are not read: {listed(unknown)}"] if unknown else notes

    def restoring(self, step: int) -> str:
        return f"put the event files in {self.path} back as they were"

    def scalars(self) -> Scalars:
        """The scalars of all event files. A launch replaces what earlier ones logged from its first step of training
        on, from which it was resumed.
        """
        merged: dict[int, dict[str, float]] = {}
        for path in _files(self.path):
            own = _scalars(path, written(path))
            began = min((step for step, tag, _ in own if tag == self.count), default=math.inf)
            merged = {step: tags for step, tags in merged.items() if step < began}
            for step, tag, value in own:
                merged.setdefault(step, {})[tag] = value
        return dict(sorted(merged.items()))


def tags_at_start(path: Path) -> set[str]:
    """The first tags of a file, up to a damaged record; none of one that is no event file."""
    tags: set[str] = set()
    with suppress(OSError, DataError):
        check_kind(path, "a file", follow=True)
        with path.open("rb") as file:
            at, left, end = 0, RECOGNIZED_BY, path.stat().st_size
            while left > 0 and at + HEAD <= end:
                file.seek(at)
                (size,) = struct.unpack("<Q", file.read(8))
                if size <= SCALAR:
                    file.seek(at)
                    record = file.read(HEAD + size + FOOT)
                    left -= len(record)
                    tags.update(tag for _, tag, _ in _parsed(path, record))
                at += HEAD + size + FOOT
    return tags


def _files(path: Path) -> list[Path]:
    try:
        return sorted(path.glob(EVENTS))
    except OSError:
        return []


@functools.lru_cache(maxsize=16)
def _scalars(path: Path, when: tuple[int, ...]) -> tuple[tuple[int, str, float], ...]:
    with errors_as(DataError, f"cannot read {path}", "make it readable", code="data.unreadable"):
        check_kind(path, "a file", follow=True)
        return tuple(_parsed(path, path.read_bytes()))


def _parsed(path: Path, data: bytes) -> Iterator[tuple[int, str, float]]:
    """(step, tag, value) of every scalar. A record that is cut at the end is ignored: it is being written."""
    at = 0
    while at + HEAD <= len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        end = at + HEAD + size
        if end + FOOT > len(data):
            return
        try:
            yield from _of_event(data[at + HEAD : end])
        except (ValueError, IndexError, struct.error) as error:
            raise malformed(path, f"has no event of TensorBoard at byte {at} ({error})") from error
        at = end + FOOT


def _of_event(event: bytes) -> Iterator[tuple[int, str, float]]:
    fields = list(_fields(event))
    step = next((value for number, value in fields if number == 2 and isinstance(value, int)), 0)
    for summary in (value for number, value in fields if number == 5 and isinstance(value, bytes)):
        for value in (value for number, value in _fields(summary) if number == 1 and isinstance(value, bytes)):
            own = dict(_fields(value))
            tag, scalar = own.get(1), own.get(2)
            if isinstance(tag, bytes) and isinstance(scalar, bytes) and len(scalar) == 4:
                yield step, tag.decode(), struct.unpack("<f", scalar)[0]


def _fields(message: bytes) -> Iterator[Field]:
    """(number, value) of the fields of a message: an integer, or the bytes of any other kind."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        if kind == _BYTES:
            size, at = _varint(message, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"a field of the kind {kind}")
        if at + size > len(message):
            raise ValueError("a field that is cut")
        yield number, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """(value, place after it): seven bits in a byte, the lowest first."""
    value = 0
    for shift in range(0, 70, 7):
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("a number that is too long")
