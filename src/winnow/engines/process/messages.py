"""The messages between a trainer and its engine's process, and the channel that carries them. Every wait has a limit.

    trainer  --MakeEngine-->    engine's process    --Ready | Refused | Crashed-->
             --Generate-->                          --Sampled, Sampled ... Done | Refused | Crashed-->
             --LoadWeights-->                       --Done | Refused | Crashed-->

Messages are pickled, and reading a pickle can run code. Here nobody else can write one: the channel is a socket pair
without a name between a trainer and a process that it started itself, from the same installation and for the same user,
and in that process runs an engine, never a program that a model wrote.
"""

from __future__ import annotations

import pickle
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from winnow.engines.base import Tolerance
from winnow.engines.process.weight_group import SentWeights
from winnow.errors import WinnowError
from winnow.records import Prompt, Rollout, Sampling
from winnow.seeds import SeedName

_LENGTH = struct.Struct("!Q")
_PIECE = 1 << 20  # bytes read at once


@dataclass(frozen=True, slots=True)
class MakeEngine:
    """Make the engine, with the function that `make` names."""

    make: str
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Generate:
    """Sample, with the weights of `version` and no others."""

    prompts: Sequence[Prompt]
    counts: Sequence[int]
    sampling: Sampling
    seed: tuple[SeedName, ...]
    version: int


@dataclass(frozen=True, slots=True)
class LoadWeights:
    """Take the weights, which are sent as they are read."""

    weights: SentWeights
    version: int


@dataclass(frozen=True, slots=True)
class Ready:
    """The engine is made."""

    version: int
    logprob_tolerance: Tolerance


@dataclass(frozen=True, slots=True)
class Sampled:
    """One rollout is finished."""

    prompt_index: int  # of its prompt in the request
    rollout: Rollout

    def __reduce__(self) -> tuple[Any, ...]:
        """Token ids travel as 32 bits each."""
        return _sampled, (self.prompt_index, replace(self.rollout, tokens=self.rollout.tokens.astype(np.int32)))


def _sampled(prompt_index: int, rollout: Rollout) -> Sampled:
    return Sampled(prompt_index, replace(rollout, tokens=rollout.tokens.astype(np.int64)))


@dataclass(frozen=True, slots=True)
class Done:
    """The request is fulfilled."""

    version: int  # of the weights that the engine now has
    memory: Mapping[str, float] = field(default_factory=dict)  # MiB, as winnow.memory.usage.by_state


@dataclass(frozen=True, slots=True)
class Refused:
    """A deliberate error; the engine is as it was."""

    error: WinnowError


@dataclass(frozen=True, slots=True)
class Crashed:
    """Any other exception; the process ends."""

    exception: str


Request = MakeEngine | Generate | LoadWeights
Reply = Ready | Sampled | Done | Refused | Crashed
Message = Request | Reply


class ChannelClosed(Exception):
    """The other end is closed."""


class Channel:
    """One end of a socket pair, carrying whole objects."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._incoming = bytearray()

    def send(self, message: Message, seconds: float | None = None) -> None:
        """Raises TimeoutError where the other end does not take it within `seconds` (None: wait), and ChannelClosed."""
        body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        self._end.settimeout(seconds)
        try:
            self._end.sendall(_LENGTH.pack(len(body)))
            self._end.sendall(body)
        except TimeoutError:
            raise
        except OSError as error:
            raise ChannelClosed from error

    def receive(self, seconds: float | None = None) -> Any:
        """The next message, or None where it has not come whole within `seconds` (None: wait). Raises ChannelClosed."""
        until = None if seconds is None else time.monotonic() + seconds
        while (message := self._whole()) is None:
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                return None
            self._incoming += self._piece(left)
        return message

    def close(self) -> None:
        self._end.close()

    def _piece(self, seconds: float | None) -> bytes:
        self._end.settimeout(seconds)
        try:
            piece = self._end.recv(_PIECE)
        except TimeoutError:
            return b""
        except OSError as error:
            raise ChannelClosed from error
        if not piece:
            raise ChannelClosed
        return piece

    def _whole(self) -> Any:
        """The first message that has come whole, taken out."""
        if len(self._incoming) < _LENGTH.size:
            return None
        end = _LENGTH.size + _LENGTH.unpack_from(self._incoming)[0]
        if len(self._incoming) < end:
            return None
        with memoryview(self._incoming) as incoming, incoming[_LENGTH.size : end] as body:
            message = pickle.loads(body)
        del self._incoming[:end]
        return message
