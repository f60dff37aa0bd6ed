"""The process that runs the reward: it reads a task, judges it and writes the verdict, until it is killed.

Here are also its settings, and whether a reward can be sent to it.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import socket
import sys
import time
import traceback
from dataclasses import asdict, dataclass, replace
from typing import NoReturn, cast

from winnow.control_groups import limit_resource, mapped_memory
from winnow.environments.judging import Judge, JudgeSpec, named_members
from winnow.environments.replay import Environment
from winnow.errors import ConfigError
from winnow.records import Outcome, Prompt, Reply, Rollout
from winnow.registry import resolve
from winnow.verify.codec import decode_task, encode_verdict
from winnow.verify.dispatch import CLOSE, NONE, NUMBERS, Claims
from winnow.verify.failures import OUT_OF_MEMORY

_PR_SET_PDEATHSIG = 1
_READ_BYTES = 2**16  # at once
WARM_UP_LIMITS = 10  # additional time of a reward's very first verdict, in units of timeout_seconds


def judge(reward: Judge, prompt: Prompt, rollout: Rollout, episode: int | None = None) -> Outcome | Reply:
    """The outcome of the reward or environment, or the environment's reply, with `seconds` set.

    With an `episode`, an environment keeps its generator for the next turn.
    """
    started = time.perf_counter()
    verdict = reward(prompt, rollout) if episode is None else cast(Environment, reward)(prompt, rollout, episode)
    return replace(verdict, seconds=time.perf_counter() - started)


def serve(end: socket.socket, claims: Claims, reward: Judge, *, memory_mb: int, parent: int) -> NoReturn:
    """Judge tasks until the other side closes, or exit with status OUT_OF_MEMORY; never returns."""
    status = 1
    try:
        # On Linux the kernel kills a worker whose supervisor has exited; elsewhere the worker exits at its next read.
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)
        # The limit is in addition to what the imports take. A sandbox sets the limit of its programs.
        limit_resource(resource.RLIMIT_AS, mapped_memory()[0] + memory_mb * 2**20)
        # Allow as many open files as the system does: generators that are kept may have some each.
        limit_resource(resource.RLIMIT_NOFILE, resource.RLIM_INFINITY)
        _judge_all(end, claims, reward)
        status = 0
    except MemoryError:
        status = OUT_OF_MEMORY
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)  # skips the supervisor's loop and exit handlers, which the fork has inherited


def _judge_all(end: socket.socket, claims: Claims, reward: Judge) -> None:
    lines = enumerate(end.makefile("rb", _READ_BYTES))
    while (claimed := claims.claim()) is not None:
        line = next((line for number, line in lines if number % NUMBERS == claimed), b"")  # others were taken back
        if not line:
            return
        ticket, episode, task = line.rstrip(b"\n").split(b" ", 2)
        if task == CLOSE:
            cast(Environment, reward).close(int(episode))
            end.sendall(b"%b {}\n" % ticket)
            continue
        verdict = judge(reward, *decode_task(task), None if episode == NONE else int(episode))
        if isinstance(verdict, Outcome) and verdict.cause == "memory":
            raise MemoryError  # the memory may never be freed, so the next task gets a new worker
        end.sendall(b"%b %b\n" % (ticket, encode_verdict(verdict)))


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    reward: JudgeSpec
    base: str  # the folder that "file.py:function" is relative to
    workers: int
    timeout_seconds: float  # for one verdict; of an environment, for one turn
    memory_mb: int  # for one worker, in addition to the reward's imports

    def to_json(self) -> str:
        """The settings as JSON. Raises ConfigError when an option of the reward cannot be sent to another process."""
        try:
            return json.dumps(asdict(self))
        except TypeError as error:
            raise ConfigError(
                f"an option of the reward {reward_name(self.reward)!r} is not plain data ({error}), so it cannot be "
                f"sent to a worker",
                remedy="use numbers, texts, lists and tables",
                key="reward",
                code="config.value",
            ) from error


def reward_name(reward: JudgeSpec) -> str:
    """The name of the reward or environment in messages: "r1_zero", or "math + format" for a sum."""
    uses = (use for _, use in named_members(reward))
    return " + ".join(use if isinstance(use, str) else getattr(use, "__name__", repr(use)) for use in uses)


def can_be_sent(reward: JudgeSpec) -> bool:
    """Whether another process can import every part: a function of a file, or a member of winnow or of a package.

    It cannot import a function object, nor a member that only this process has registered. Raises ConfigError for a
    name that is not registered.
    """
    return all(
        isinstance(use, str) and (".py:" in use or resolve(family, use).package is not None)
        for family, use in named_members(reward)
    )
