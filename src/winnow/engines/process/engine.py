"""An engine that lives in a process of its own, with its own device and memory, behind the same door as any other.

    engine = second_process(
        "winnow.engines.vllm.engine:VllmEngine", {"served": served}, environment={"CUDA_VISIBLE_DEVICES": "1"}
    )

Rollouts come back over a socket, each as soon as it is finished; weights go over in shared memory. The trainer says
which version of the weights it wants rollouts of, and an engine that has another one refuses.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from winnow.engines.base import OnRollout
from winnow.engines.process.lifecycle import Life
from winnow.engines.process.messages import (
    Closed,
    Crashed,
    Done,
    Generate,
    Load,
    Ready,
    Refused,
    Reply,
    Request,
    Sampled,
    Start,
)
from winnow.engines.process.shared_memory import SharedWeights, nameless_file
from winnow.errors import ConfigError, EngineError, WinnowError
from winnow.records import Group, Prompt, Rollout, Sampling
from winnow.seeds import Part

if TYPE_CHECKING:
    from torch import Tensor

_LOOK_AGAIN_SECONDS = 0.1  # a process that died can leave its end of the wire to one that it started
_NOTHING: Mapping[str, Any] = {}


def second_process(
    make: str,
    options: Mapping[str, Any] = _NOTHING,
    *,
    timeout_seconds: float = 600.0,
    start_seconds: float = 600.0,
    environment: Mapping[str, str] = _NOTHING,
) -> SecondProcess:
    """Start a process, make the engine `make(**options)` in it, and wait until it is made.

    `make` is "module:function" or "file.py:function" (relative to the working directory), `options` can be pickled, and
    `environment` is added to the trainer's before anything is imported. `timeout_seconds` is the longest that the
    process may stay silent (not finish one more rollout, or not finish taking weights) before it is killed.

    Raises EngineError when the process ends or is not ready within `start_seconds`, ConfigError for options that cannot
    be pickled, and the error of `make` where that is a WinnowError.
    """
    start = Start(make, options)
    _check_pickles(start)
    return SecondProcess(start, timeout_seconds, start_seconds, environment)


class SecondProcess:
    """See `second_process`. Once its process has ended, every request repeats why."""

    def __init__(
        self, start: Start, timeout_seconds: float, start_seconds: float, environment: Mapping[str, str]
    ) -> None:
        file = nameless_file()
        self._life = Life(weights=file, environment=environment)
        self._weights = SharedWeights(file)
        self._timeout_seconds = timeout_seconds
        self._awaited = "nothing"  # what was asked last
        self._asked = 0.0  # when
        self._settled = True  # no reply to it is due
        self._over: str | None = None  # why nothing can be asked any more
        try:
            ready = self._ask(start, "making the engine", start_seconds)
        except WinnowError:  # it ends by itself, and takes with it what it has started
            self._life.end()
            raise
        except BaseException:
            self._life.kill()
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
        seed: tuple[Part, ...],
        on_rollout: OnRollout | None = None,
    ) -> list[Group]:
        """See `Engine`."""
        self._settle()
        found: list[dict[int, Rollout]] = [{} for _ in prompts]

        def keep(place: int, rollout: Rollout) -> None:
            found[place][rollout.index] = rollout
            if on_rollout is not None:
                on_rollout(prompts[place], rollout)

        self._ask(
            Generate(tuple(prompts), tuple(counts), sampling, seed, self.version),
            f"sampling {sum(counts)} rollouts with the weights of version {self.version}",
            self._timeout_seconds,
            keep,
        )
        return [_group(*each) for each in zip(prompts, counts, found, strict=True)]

    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        """See `Engine`; copied once on this side, into memory that is kept, and once by the engine."""
        self._settle()  # it may still be reading the memory
        layout = self._weights.write(weights)
        done = self._ask(Load(layout, version), f"taking the weights of version {version}", self._timeout_seconds)
        if done.version != version:
            raise EngineError(f"stale weights: the engine was given version {version} and says it has {done.version}")
        self.version = version

    def close(self) -> None:
        """End the process; idempotent, and needed only by who cannot wait until nobody holds the engine any more."""
        self._over = self._over or "the engine's process was closed"
        self._life.end()

    def _ask(
        self,
        request: Request,
        awaited: str,
        seconds: float,
        keep: Callable[[int, Rollout], None] = lambda place, rollout: None,
    ) -> Ready | Done:
        """Send a request and hear its replies out; `seconds` is how long each may take."""
        self._awaited, self._asked, self._settled = awaited, time.monotonic(), False
        try:
            self._life.wire.send(request, seconds)
        except TimeoutError:
            self._kill(seconds)
        except Closed:
            self._bury()
        while True:
            match self._hear(seconds):
                case Sampled(place, rollout):
                    keep(place, rollout)
                case Refused(error):
                    raise error
                case Ready() | Done() as reply:
                    return reply

    def _settle(self) -> None:
        """Hear out a request that was left unfinished, as by an exception in `on_rollout`. Raises EngineError."""
        if self._over is not None:
            raise EngineError(self._over)
        while not self._settled:
            self._hear(self._timeout_seconds)

    def _hear(self, seconds: float) -> Ready | Sampled | Done | Refused:
        """The next reply. Raises EngineError once there will be none, or there was none for too long."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            over = self._life.over  # asked first: what it has said before is still to be read
            try:
                reply: Reply | None = self._life.wire.receive(min(left, _LOOK_AGAIN_SECONDS))
            except Closed:
                self._bury()
            if isinstance(reply, Crashed):
                self._bury(f"raised {reply.exception}")
            if reply is not None:
                self._settled = not isinstance(reply, Sampled)
                return reply
            if over:
                self._bury()
        self._kill(seconds)

    def _kill(self, seconds: float) -> NoReturn:
        self._life.kill()
        self._fail(
            f"said nothing for {seconds:g} seconds and was killed (timeout_seconds and start_seconds set the limit)"
        )

    def _bury(self, fate: str | None = None) -> NoReturn:
        self._life.end()
        self._fail(fate or self._life.fate())

    def _fail(self, fate: str) -> NoReturn:
        self._over = (
            f"the engine's process ({self._life.pid}) {fate}, {time.monotonic() - self._asked:.1f} seconds into "
            f"{self._awaited}. A run that was under way can be resumed; "
            f"{self._life.last_words()}"
        )
        raise EngineError(self._over)


def _group(prompt: Prompt, count: int, found: Mapping[int, Rollout]) -> Group:
    """The rollouts in index order. Raises EngineError where they are not those asked for."""
    if sorted(found) != list(range(count)):
        raise EngineError(
            f"prompt {prompt.id!r}: {count} rollouts were asked for, and the engine announced {len(found)}"
        )
    return Group(prompt=prompt, rollouts=tuple(found[index] for index in range(count)))


def _check_pickles(start: Start) -> None:
    try:
        pickle.dumps(start)
    except Exception as error:
        raise ConfigError(
            f"the options of {start.make!r} cannot go to a second process: {error}; give it names, numbers and paths, "
            f"and let it make the rest there"
        ) from error
