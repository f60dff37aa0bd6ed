"""An engine in a process of its own, with its own device and memory, and the same interface as any other.

    engine = second_process(
        "winnow.engines.vllm.server:VllmEngine", {"served": served}, environment={"CUDA_VISIBLE_DEVICES": "1"}
    )

Rollouts come back over a socket, each as soon as it is finished; weights go over one by one (weight_group.py). Every
request names the version of the weights, and an engine that has another one raises EngineError.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, overload

from winnow.engines.base import OnRollout
from winnow.engines.process.lifecycle import EngineProcess
from winnow.engines.process.messages import (
    ChannelClosed,
    Crashed,
    Done,
    Generate,
    LoadWeights,
    MakeEngine,
    Ready,
    Refused,
    Reply,
    Request,
    Sampled,
)
from winnow.engines.process.weight_group import Backend, Broken, Meeting, WeightSender
from winnow.errors import ConfigError, EngineError, WinnowError
from winnow.records import Group, Prompt, Rollout, Sampling
from winnow.seeds import SeedName

if TYPE_CHECKING:
    from torch import Tensor

_POLL_SECONDS = 0.1  # a process that ended can leave its end of the channel open in one that it started
_BROKEN_SECONDS = 30.0  # in which an engine says why it takes no more weights
_READERS_SECONDS = 0.002  # between two looks whether all that weights are for have come for them
_NOTHING: Mapping[str, Any] = {}


def second_process(
    make: str,
    options: Mapping[str, Any] = _NOTHING,
    *,
    timeout_seconds: float = 600.0,
    start_seconds: float = 600.0,
    environment: Mapping[str, str] = _NOTHING,
    readers: int = 1,
    backend: Backend = "gloo",
) -> SecondProcess:
    """Start a process, make the engine `make(**options)` in it, and wait until it is made.

    `make` is "module:function" or "file.py:function" (relative to the working directory), `options` can be pickled, and
    `environment` is added to the trainer's before anything is imported. The process is killed after `timeout_seconds`
    without a reply: not one more rollout is finished, or weights are not taken. Weights are read by `readers`
    processes, that of the engine or as many workers that it has started; by NCCL where each has a GPU that is not the
    trainer's.

    Raises EngineError when the process ends or is not ready within `start_seconds`, ConfigError for options that cannot
    be pickled, and the error of `make` where that is a WinnowError.
    """
    request = MakeEngine(make, options)
    _check_pickles(request)
    return SecondProcess(request, timeout_seconds, start_seconds, environment, readers, backend)


class SecondProcess:
    """See `second_process`. Once its process has ended, every request raises EngineError with the reason."""

    def __init__(
        self,
        make: MakeEngine,
        timeout_seconds: float,
        start_seconds: float,
        environment: Mapping[str, str],
        readers: int = 1,
        backend: Backend = "gloo",
    ) -> None:
        self._process = EngineProcess(environment=environment)
        file = f"{self._process.folder}/weights"
        self._weights = WeightSender(Meeting(file=file, members=1 + readers, seconds=timeout_seconds, backend=backend))
        self._timeout_seconds = timeout_seconds
        self._action = "nothing"  # what was requested last
        self._requested = 0.0  # when
        self._replied = True  # the last reply to it has come
        self._failure: _Failure | None = None  # the reason why every further request fails
        self.memory_mib: dict[str, float] = {}  # last reported: "sampled/cpu/resident" ...
        try:
            ready = self._request(make, "making the engine", start_seconds)
        except WinnowError:  # the process then exits by itself, and ends what it has started
            self._process.stop()
            raise
        except BaseException:
            self._process.kill()
            raise
        assert isinstance(ready, Ready)
        self.version = ready.version
        self.logprob_tolerance = ready.logprob_tolerance

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
        found: list[dict[int, Rollout]] = [{} for _ in prompts]

        def keep(prompt_index: int, rollout: Rollout) -> None:
            found[prompt_index][rollout.index] = rollout
            if on_rollout is not None:
                on_rollout(prompts[prompt_index], rollout)

        self._request(
            Generate(tuple(prompts), tuple(counts), sampling, seed, self.version),
            f"sampling {sum(counts)} rollouts with the weights of version {self.version}",
            self._timeout_seconds,
            keep,
        )
        return [_group(*each) for each in zip(prompts, counts, found, strict=True)]

    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        """See `Engine`; each weight is read once, in the order of the mapping, and sent before the next is read."""
        self._drain()
        offered, seconds = self._weights.offer(list(weights)), self._timeout_seconds
        self._send(LoadWeights(offered, version), f"taking the weights of version {version}", seconds)
        reply = self._next_reply(seconds, unless=self._weights.is_awaited)
        if reply is None:
            self._give(weights)
            reply = self._next_reply(seconds)
        if isinstance(reply, Refused):
            raise reply.error
        assert isinstance(reply, Done)
        self.memory_mib |= reply.memory
        if reply.version != version:
            raise EngineError(
                f"stale weights: the engine was given version {version} and reports version {reply.version}",
                remedy="set `version` in the engine's load_weights",
                code="engine.stale_weights",
            )
        self.version = version

    def close(self) -> None:
        """End the process, which otherwise ends when this object is garbage collected. Idempotent."""
        self._failure = self._failure or _Failure("the engine's process was closed")
        self._process.stop()

    def kill(self) -> None:
        """End the process at once: it waits for what will not come."""
        self._failure = self._failure or _Failure("the engine's process was killed")
        self._process.kill()

    def _request(
        self,
        request: Request,
        action: str,
        seconds: float,
        keep: Callable[[int, Rollout], None] = lambda prompt_index, rollout: None,
    ) -> Ready | Done:
        """Send a request and read its replies to the last; `seconds` is how long each may take."""
        self._send(request, action, seconds)
        while True:
            match self._next_reply(seconds):
                case Sampled(prompt_index, rollout):
                    keep(prompt_index, rollout)
                case Refused(error):
                    raise error
                case Ready() as reply:
                    return reply
                case Done(_, memory) as reply:
                    self.memory_mib |= memory
                    return reply

    def _send(self, request: Request, action: str, seconds: float) -> None:
        self._action, self._requested, self._replied = action, time.monotonic(), False
        try:
            self._process.channel.send(request, seconds)
        except TimeoutError:
            self._fail_by_timeout(seconds)
        except ChannelClosed:
            self._fail_by_end()

    def _drain(self) -> None:
        """Read the replies to a request that was left unfinished, as by an exception in `on_rollout`. Raises
        EngineError.
        """
        if self._failure is not None:
            raise self._failure.error()
        while not self._replied:
            self._next_reply(self._timeout_seconds)

    @overload
    def _next_reply(self, seconds: float) -> Ready | Sampled | Done | Refused: ...
    @overload
    def _next_reply(self, seconds: float, unless: Callable[[], bool]) -> Ready | Sampled | Done | Refused | None: ...
    def _next_reply(
        self, seconds: float, unless: Callable[[], bool] | None = None
    ) -> Ready | Sampled | Done | Refused | None:
        """None once `unless` is true. Raises EngineError once there will be none, or there was none for too long."""
        until = time.monotonic() + seconds
        poll = _POLL_SECONDS if unless is None else _READERS_SECONDS
        while (left := until - time.monotonic()) > 0:
            ended = self._process.ended  # read before the channel: what it sent before its end is still to be received
            try:
                reply: Reply | None = self._process.channel.receive(min(left, poll))
            except ChannelClosed:
                self._fail_by_end()
            if isinstance(reply, Crashed):
                self._fail_by_end(f"raised {reply.exception}")
            if reply is not None:
                self._replied = not isinstance(reply, Sampled)
                return reply
            if ended:
                self._fail_by_end()
            if unless is not None and unless():
                return None
        self._fail_by_timeout(seconds)

    def _give(self, weights: Mapping[str, Tensor]) -> None:
        """Send them all; where that breaks off, the process is of no use any more."""
        try:
            self._weights.send(weights)
        except Broken as error:
            if time.monotonic() - self._requested > self._timeout_seconds and not self._process.ended:
                self._fail_by_timeout(self._timeout_seconds)
            reply = self._next_reply(_BROKEN_SECONDS)  # it ends, or its workers did, of which it will tell
            self._process.kill()
            self._fail(f"read no more weights: {reply.error if isinstance(reply, Refused) else error}")
        except BaseException:
            self.kill()
            raise

    def _fail_by_timeout(self, seconds: float) -> NoReturn:
        self._process.kill()
        self._fail(
            f"sent nothing for {seconds:g} seconds and was killed (timeout_seconds and start_seconds set the limit)"
        )

    def _fail_by_end(self, reason: str | None = None) -> NoReturn:
        self._process.stop()
        self._fail(reason or self._process.how_it_ended())

    def _fail(self, reason: str) -> NoReturn:
        seconds = time.monotonic() - self._requested
        self._failure = _Failure(
            f"the engine's process ({self._process.pid}) {reason}, {seconds:.1f} seconds into {self._action}",
            self._process.last_output(),
        )
        raise self._failure.error()


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why the process answers no more requests."""

    problem: str
    printed: str = ""  # what the process printed last

    def error(self) -> EngineError:
        """A new error; what was printed is a note of it, for it has many lines."""
        error = EngineError(self.problem, remedy="resume the run that was under way", code="engine.failed")
        if self.printed:
            error.add_note(self.printed)
        return error


def _group(prompt: Prompt, count: int, found: Mapping[int, Rollout]) -> Group:
    """The rollouts in index order. Raises EngineError where they are not those asked for."""
    if sorted(found) != list(range(count)):
        raise EngineError(
            f"prompt {prompt.id!r}: {count} rollouts were requested, and the engine announced {len(found)}",
            remedy="call on_rollout once for each rollout",
            code="engine.contract",
        )
    return Group(prompt=prompt, rollouts=tuple(found[index] for index in range(count)))


def _check_pickles(request: MakeEngine) -> None:
    try:
        pickle.dumps(request)
    except Exception as error:
        raise ConfigError(
            f"the options of {request.make!r} cannot be sent to a second process: {error}",
            remedy="give it names, numbers and paths, and let it make the rest there",
            key="rollout.engine",
            code="config.value",
        ) from error
