"""The messages between a trainer and its engine's process, and their channel. Every wait of the trainer has a limit.

    trainer  --MakeEngine-->    engine's process    --Done | Refused | Crashed-->
             --Generate-->                          --Sampled, Sampled ... Done | Refused | Crashed-->
             --LoadWeights-->                       --Done | Refused | Crashed-->

Messages are pickled, and loading a pickle can run code. Here no third party can write one: the channel is an unnamed
socket pair between a trainer and a process that it started, from the same installation and for the same user. That
process runs an engine, never a program that a model wrote.
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
from winnow.engines.process.broadcast import SentWeights
from winnow.errors import WinnowError
from winnow.records import Prompt, Rollout, Sampling
from winnow.seeds import SeedName

_LENGTH = struct.Struct("!Q")
_PIECE = 1 << 20  # bytes read at once


@dataclass(frozen=True, slots=True)
class MakeEngine:
    """Make the engine with the function named `make`."""

    make: str
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Generate:
    """Sample rollouts with exactly the weights of `version`."""

    prompts: Sequence[Prompt]
    counts: Sequence[int]
    sampling: Sampling
    seed: tuple[SeedName, ...]
    version: int


@dataclass(frozen=True, slots=True)
class LoadWeights:
    """Load weights, each of which is sent when it is read."""

    weights: SentWeights
    version: int


@dataclass(frozen=True, slots=True)
class Sampled:
    """One rollout is finished."""

    prompt_index: int  # of its prompt in the request
    rollout: Rollout

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle token ids as 32 bits each."""
        return _sampled, (self.prompt_index, replace(self.rollout, tokens=self.rollout.tokens.astype(np.int32)))


def _sampled(prompt_index: int, rollout: Rollout) -> Sampled:
    return Sampled(prompt_index, replace(rollout, tokens=rollout.tokens.astype(np.int64)))


@dataclass(frozen=True, slots=True)
class Done:
    """The engine is made, or the request is complete."""

    version: int  # of the weights that the engine now has
    logprob_tolerance: Tolerance
    memory: Mapping[str, float] = field(default_factory=dict)  # MiB, as winnow.memory.usage.memory_by_state


@dataclass(frozen=True, slots=True)
class Refused:
    """A deliberate error (WinnowError). The engine, if it was made, can serve further requests."""

    error: WinnowError


@dataclass(frozen=True, slots=True)
class Crashed:
    """Any other exception; the process exits."""

    exception: str


Request = MakeEngine | Generate | LoadWeights
Reply = Sampled | Done | Refused | Crashed
Message = Request | Reply


class ChannelClosed(Exception):
    """The other end is closed."""


class Channel:
    """One end of a socket pair, for whole messages."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._incoming = bytearray()

    def send(self, message: Message, seconds: float | None = None) -> None:
        """Send a message. Raises TimeoutError after `seconds` (None: no limit), and ChannelClosed."""
        body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        try:
            self._end.settimeout(seconds)
            self._end.sendall(_LENGTH.pack(len(body)))
            self._end.sendall(body)
        except TimeoutError:
            raise
        except OSError as error:
            raise ChannelClosed from error

    def receive(self, seconds: float | None = None) -> Any:
        """The next message, or None if it is incomplete after `seconds` (None: no limit). Raises ChannelClosed."""
        until = None if seconds is None else time.monotonic() + seconds
        while (message := self._pop_message()) is None:
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                return None
            try:
                self._end.settimeout(left)
                piece = self._end.recv(_PIECE)
            except TimeoutError:
                continue
            except OSError as error:
                raise ChannelClosed from error
            if not piece:
                raise ChannelClosed
            self._incoming += piece
        return message

    def close(self) -> None:
        self._end.close()

    def _pop_message(self) -> Any:
        """Remove and return the first message if it is complete, else None."""
        if len(self._incoming) < _LENGTH.size:
            return None
        end = _LENGTH.size + _LENGTH.unpack_from(self._incoming)[0]
        if len(self._incoming) < end:
            return None
        with memoryview(self._incoming) as incoming, incoming[_LENGTH.size : end] as body:
            message = pickle.loads(body)
        del self._incoming[:end]
        return message
