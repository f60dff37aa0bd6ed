"""The process that runs the reward: it reads a task, judges it and writes the verdict, until it is killed."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from winnow.environments.judging import Judge
from winnow.records import Outcome, Prompt, Reply, Rollout
from winnow.verify.claims import NUMBERS, Claims
from winnow.verify.codec import decode_task, encode_verdict
from winnow.verify.failures import OUT_OF_MEMORY

_PR_SET_PDEATHSIG = 1
_READ_BYTES = 2**16  # at once


def judge(reward: Judge, prompt: Prompt, rollout: Rollout) -> Outcome | Reply:
    """The outcome of the reward or environment, or the environment's reply, with `seconds` set."""
    started = time.perf_counter()
    verdict = reward(prompt, rollout)
    return replace(verdict, seconds=time.perf_counter() - started)


def serve(end: socket.socket, claims: Claims, reward: Judge, *, memory_mb: int, parent: int) -> NoReturn:
    """Judge tasks until the other side closes, or exit with status OUT_OF_MEMORY; never returns."""
    status = 1
    try:
        _end_with(parent)
        _limit_memory(memory_mb)
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
        ticket, _, task = line.partition(b" ")
        verdict = judge(reward, *decode_task(task))
        if isinstance(verdict, Outcome) and verdict.cause == "memory":
            raise MemoryError  # the memory may never be freed, so the next task gets a new worker
        end.sendall(b"%b %b\n" % (ticket, encode_verdict(verdict)))


def _end_with(parent: int) -> None:
    """On Linux the kernel kills a worker whose supervisor has exited; elsewhere the worker exits at its next read."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def _limit_memory(megabytes: int) -> None:
    """Limit the address space to `megabytes` in addition to what the reward's imports already take."""
    limit = _address_space() + megabytes * 2**20
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _address_space() -> int:
    """Bytes that this process has mapped; 0 without /proc."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return 0
    return pages * resource.getpagesize()
