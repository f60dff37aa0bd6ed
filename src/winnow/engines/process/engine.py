"""An engine in a separate process, with separate memory, possibly on other devices. It has the interface of any engine.

    engine = SecondProcess(
        "winnow.engines.vllm.sampler:VllmEngine", {"served": served}, environment={"CUDA_VISIBLE_DEVICES": "1"}
    )

Rollouts return over a socket, each as soon as it is finished; weights are sent one by one (broadcast.py). Every
request names the version of the weights, and an engine with another version raises EngineError.
"""

from __future__ import annotations

import copy
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from winnow.engines.base import OnRollout
from winnow.engines.process.broadcast import Backend, GroupBroken, Rendezvous, WeightSender
from winnow.engines.process.lifecycle import EngineProcess
from winnow.engines.process.messages import (
    ChannelClosed,
    Crashed,
    Done,
    Generate,
    LoadWeights,
    MakeEngine,
    Refused,
    Reply,
    Request,
    Sampled,
)
from winnow.errors import ConfigError, EngineError, WinnowError
from winnow.records import Group, Prompt, Rollout, Sampling
from winnow.seeds import SeedName

if TYPE_CHECKING:
    from torch import Tensor

_POLL_SECONDS = 0.1  # between checks of the process: when it exits, a child of it can keep the channel open
_BROKEN_SECONDS = 30.0  # wait for an engine's reply after a failed transfer of weights
_READERS_SECONDS = 0.002  # between two checks whether all readers are ready for weights
_NOTHING: Mapping[str, Any] = {}


class SecondProcess:
    """An engine in a process of its own. Once that has exited, every request raises EngineError with the reason."""

    def __init__(
        self,
        make: str,
        options: Mapping[str, Any] = _NOTHING,
        *,
        timeout_seconds: float = 600.0,
        start_seconds: float = 600.0,
        environment: Mapping[str, str] = _NOTHING,
        readers: int = 1,
        backend: Backend = "gloo",
    ) -> None:
        """Start a process, make the engine `make(**options)` in it, and wait until it is made.

        `make` is "module:function" or "file.py:function" (relative to the working directory). `options` must be
        picklable, and `environment` is added to the trainer's before anything is imported. The process is killed after
        `timeout_seconds` without a reply: no further rollout was finished, or a load did not complete. `readers` is the
        number of processes that read weights: the engine's own process, or the workers that it has started. The
        `backend` "nccl" requires that each reader has a GPU other than the trainer's.

        Raises EngineError when the process exits or is not ready within `start_seconds`, ConfigError for options that
        cannot be pickled, and the error of `make` if that is a WinnowError.
        """
        request = MakeEngine(make, options)
        try:
            pickle.dumps(request)
        except Exception as error:
            raise ConfigError(
                f"the options of {make!r} cannot be sent to a second process: {error}",
                remedy="pass names, numbers and paths, and make other objects inside the engine's function",
                key="rollout.engine",
                code="config.value",
            ) from error
        self._process = EngineProcess(environment=environment)
        file = f"{self._process.folder}/weights"
        rendezvous = Rendezvous(file=file, members=1 + readers, seconds=timeout_seconds, backend=backend)
        self._weights = WeightSender(rendezvous)
        self._timeout_seconds = timeout_seconds
        self._action = "nothing"  # the last request, for error messages
        self._requested = 0.0  # the time of the last request
        self._replied = True  # whether its last reply has arrived
        self._failure: EngineError | None = None  # the reason why every further request fails
        self.memory_mib: dict[str, float] = {}  # by the latest reports: "sampled/cpu/resident" ...
        try:
            ready = self._request(request, "making the engine", start_seconds)
        except WinnowError:  # the process then exits, and `stop` ends its children
            self._process.stop()
            raise
        except BaseException:
            self._process.kill()
            raise
        self.version, self.logprob_tolerance = ready.version, ready.logprob_tolerance

    def generate(
        self,
        prompts: Sequence[Prompt],
        counts: Sequence[int],
        sampling: Sampling,
        *,
        seed: tuple[SeedName, ...],
        on_rollout: OnRollout | None = None,
    ) -> list[Group]:
        """See `Engine`."""
        self._drain()
        received: list[dict[int, Rollout]] = [{} for _ in prompts]

        def keep(prompt_index: int, rollout: Rollout) -> None:
            received[prompt_index][rollout.index] = rollout
            if on_rollout is not None:
                on_rollout(prompts[prompt_index], rollout)

        self._request(
            Generate(tuple(prompts), tuple(counts), sampling, seed, self.version),
            f"sampling {sum(counts)} rollouts with the weights of version {self.version}",
            self._timeout_seconds,
            keep,
        )
        return [_group(*each) for each in zip(prompts, counts, received, strict=True)]

    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        """See `Engine`; each weight is read once, in the order of the mapping, and sent before the next is read."""
        self._drain()
        request = LoadWeights(self._weights.offer(list(weights)), version)
        action = f"loading the weights of version {version}"
        reply = self._request(request, action, self._timeout_seconds, weights=weights)
        if reply.version != version:
            raise EngineError(
                f"stale weights: version {version} was loaded, and the engine has version {reply.version}",
                remedy="set `version` in the engine's `load`",
                code="engine.stale_weights",
            )
        self.version = version

    def close(self) -> None:
        """End the process; garbage collection of this object ends it too. Idempotent."""
        self._failure = self._failure or _failed("the engine's process was closed")
        self._process.stop()

    def _request(
        self,
        request: Request,
        action: str,
        seconds: float,
        keep: Callable[[int, Rollout], None] = lambda prompt_index, rollout: None,
        weights: Mapping[str, Tensor] | None = None,
    ) -> Done:
        """Send a request and read its replies to the last; each may take `seconds`. `weights` are sent once all readers
        wait for them: an engine that refuses a load replies before it reads, and nothing may be sent to it.
        """
        self._send(request, action, seconds)
        while True:
            match self._next_reply(seconds, None if weights is None else self._weights.has_readers):
                case None:
                    assert weights is not None
                    self._send_weights(weights)
                    weights = None
                case Sampled(prompt_index, rollout):
                    keep(prompt_index, rollout)
                case Refused(error):
                    raise error
                case Done() as reply:
                    self.memory_mib |= reply.memory
                    return reply

    def _send(self, request: Request, action: str, seconds: float) -> None:
        self._action, self._requested, self._replied = action, time.monotonic(), False
        try:
            self._process.channel.send(request, seconds)
        except TimeoutError:
            self._fail_by_timeout(seconds)
        except ChannelClosed:
            self._fail_by_exit()

    def _drain(self) -> None:
        """Discard the remaining replies to an interrupted request, as after an exception in `on_rollout`. Raises
        EngineError.
        """
        if self._failure is not None:
            raise copy.copy(self._failure)  # raising the same object again would extend its traceback
        while not self._replied:
            self._next_reply(self._timeout_seconds)

    def _next_reply(self, seconds: float, unless: Callable[[], bool] | None = None) -> Sampled | Done | Refused | None:
        """The next reply, or None once `unless` is true. Raises EngineError after an exit, and after `seconds`."""
        until = time.monotonic() + seconds
        poll = _POLL_SECONDS if unless is None else _READERS_SECONDS
        while (left := until - time.monotonic()) > 0:
            ended = self._process.ended  # before the channel is read: messages sent before the exit may still be in it
            try:
                reply: Reply | None = self._process.channel.receive(min(left, poll))
            except ChannelClosed:
                self._fail_by_exit()
            if isinstance(reply, Crashed):
                self._fail_by_exit(f"raised {reply.exception}")
            if reply is not None:
                self._replied = not isinstance(reply, Sampled)
                return reply
            if ended:
                self._fail_by_exit()
            if unless is not None and unless():
                return None
        self._fail_by_timeout(seconds)

    def _send_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Send all weights; after an interruption the process cannot be used any more and is killed."""
        try:
            self._weights.send(weights)
        except GroupBroken as error:
            if time.monotonic() - self._requested > self._timeout_seconds and not self._process.ended:
                self._fail_by_timeout(self._timeout_seconds)
            # Either the process exits, which raises here, or it reports the failure of its workers
            reply = self._next_reply(_BROKEN_SECONDS)
            self._process.kill()
            self._fail(f"read no more weights: {reply.error if isinstance(reply, Refused) else error}")
        except BaseException:
            self._failure = _failed("the engine's process was killed")
            self._process.kill()
            raise

    def _fail_by_timeout(self, seconds: float) -> NoReturn:
        self._process.kill()
        self._fail(
            f"sent nothing for {seconds:g} seconds and was killed (timeout_seconds and start_seconds set the limit)"
        )

    def _fail_by_exit(self, reason: str | None = None) -> NoReturn:
        self._process.stop()
        self._fail(reason or self._process.describe_exit())

    def _fail(self, reason: str) -> NoReturn:
        seconds = time.monotonic() - self._requested
        self._failure = _failed(
            f"the engine's process ({self._process.pid}) {reason}, {seconds:.1f} seconds into {self._action}"
        )
        self._failure.add_note(self._process.last_output())  # many lines
        raise copy.copy(self._failure)


def _failed(problem: str) -> EngineError:
    return EngineError(problem, remedy="resume the interrupted run", code="engine.failed")


def _group(prompt: Prompt, count: int, received: Mapping[int, Rollout]) -> Group:
    """The rollouts in index order. Raises EngineError if they are not exactly the requested ones."""
    if sorted(received) != list(range(count)):
        raise EngineError(
            f"prompt {prompt.id!r}: {count} rollouts were requested, and on_rollout was called with {len(received)}",
            remedy="call on_rollout once for each rollout",
            code="engine.contract",
        )
    return Group(prompt=prompt, rollouts=tuple(received[index] for index in range(count)))
