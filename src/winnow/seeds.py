"""Random numbers that depend on identity, never on position or history.

Every random number of a run is a pure function of names: (run seed, purpose, step, prompt id, rollout index ...).
There is no shared stream. So a resumed run, a different batch limit or another order of the same rollouts gets the same
numbers, and neighbouring seeds have none in common.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

SeedName = str | int
_UNIT = 2.0**-53
_SEPARATOR = "\x1f"


def derive(*names: SeedName) -> int:
    """A 128-bit key from names; the types count, so `derive(1, "2")` and `derive("1", 2)` differ."""
    return int.from_bytes(_hashed(names).digest(), "little")


def generator(*names: SeedName) -> np.random.Generator:
    """A counter-based generator (Philox) keyed by names."""
    return np.random.Generator(np.random.Philox(key=derive(*names)))


def uniforms(keys: Iterable[tuple[SeedName, ...]], count: int) -> npt.NDArray[np.float64]:
    """[keys, count] numbers in [0, 1). Each row equals `generator(*key).random(count)`.

    One generator is set to each key in turn, which takes a third of the time of a generator per key. Names that a key
    shares with the one before it, all but its last, are hashed once.
    """
    philox = np.random.Philox(key=0)
    fresh, stream = philox.state, np.random.Generator(philox)
    words = np.frombuffer(b"".join(_digests(keys)), dtype="<u8").reshape(-1, 2)
    rows = np.empty((len(words), count))
    for row, key in zip(rows, words, strict=True):
        fresh["state"]["key"][:] = key
        philox.state = fresh
        stream.random(out=row)
    return rows


def uniform(*names: SeedName) -> float:
    """One number in [0, 1) keyed by names."""
    return (derive(*names) >> 75) * _UNIT


def words(*names: SeedName, first: int, count: int) -> npt.NDArray[np.uint16]:
    """[count] uniform 16-bit numbers: those from place `first` on of the stream keyed by names.

    A number depends on its place alone, so parts of the stream can be drawn separately.
    """
    at_once = 16  # numbers of 16 bits for each count of Philox
    philox, skipped = np.random.Philox(key=derive(*names)).advance(first // at_once), first % at_once
    drawn = philox.random_raw(-(-(skipped + count) // 4))  # of 64 bits
    return drawn.astype("<u8").view("<u2")[skipped : skipped + count]


@dataclass(frozen=True, slots=True)
class Rng:
    """The random numbers of a selector: one uniform per rollout id, whatever the order of the rollouts."""

    key: tuple[SeedName, ...]

    def uniforms(self, ids: Sequence[str]) -> npt.NDArray[np.float64]:
        """[N] numbers in [0, 1), one per id: `uniform(*key, id)`; the common prefix is hashed once."""
        digests = _digests((*self.key, name) for name in ids)
        high = np.frombuffer(b"".join(digests), dtype="<u8")[1::2]
        return np.asarray((high >> 11) * _UNIT, dtype=np.float64)


def _digests(keys: Iterable[tuple[SeedName, ...]]) -> Iterator[bytes]:
    """The 16 bytes of `derive` for each key. Names are shared if they are the same objects: 1 equals True."""
    known, shared = list[SeedName](), _hashed([])
    for *first, last in keys:
        if len(first) != len(known) or not all(map(operator.is_, first, known)):
            known, shared = first, _hashed(first)
            if first:
                shared.update(_bytes(_SEPARATOR))
        own = shared.copy()
        own.update(_bytes(_name(last)))
        yield own.digest()


def _hashed(names: Iterable[SeedName]) -> hashlib.blake2b:
    return hashlib.blake2b(_bytes(_SEPARATOR.join(map(_name, names))), digest_size=16)


def _name(name: SeedName) -> str:
    return f"{type(name).__name__}:{name}"


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
