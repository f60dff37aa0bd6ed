"""Rewards whose behaviour is the text of a rollout."""

from __future__ import annotations

import ctypes
import os
import signal
import stat
import sys
import time
from typing import Any

import numpy as np

from winnow.records import Outcome, Prompt, Rollout
from winnow.registry import register


def act(prompt: Prompt, rollout: Rollout) -> Any:
    """Execute a text such as `delay 0.03`; any other text is compared with the answer."""
    name, _, argument = rollout.text.partition(" ")
    return _ACTS[name](argument) if name in _ACTS else rollout.text == prompt.answer


def modules(prompt: Prompt, rollout: Rollout) -> Outcome:
    """Answers with its process ids and whether torch got in."""
    found = f"{os.getppid()} {os.getpid()} {'torch' in sys.modules} {os.environ['PYTHONHASHSEED']}"
    return Outcome(reward=1.0, correct=True, kind="correct", answer=found)


def reads_logprobs(prompt: Prompt, rollout: Rollout) -> float:
    return float(np.exp(rollout.logprobs).sum())


@register("reward", reads=("logprobs",))
def mean_logprob(prompt: Prompt, rollout: Rollout) -> Outcome:
    """In the answer, the log-probs' own bytes."""
    return Outcome(
        reward=float(rollout.logprobs.mean()), correct=True, kind="correct", answer=rollout.logprobs.tobytes().hex()
    )


def hang_after_first(prompt: Prompt, rollout: Rollout) -> Outcome:
    return modules(prompt, rollout) if rollout.text == "x" else act(prompt, rollout)


def tokens(prompt: Prompt, rollout: Rollout) -> float:
    return float(rollout.tokens.sum() + prompt.tokens.sum())


_PREPARED: list[bool] = []


def prepares_first(prompt: Prompt, rollout: Rollout, *, seconds: float) -> Any:
    """Imports something large, say, when it is first called in a process."""
    if not _PREPARED:
        time.sleep(seconds)
        _PREPARED.append(True)
    return act(prompt, rollout)


def needs_option(prompt: Prompt, rollout: Rollout, *, bonus: float) -> float:
    return bonus


def _delay(seconds: str) -> bool:
    time.sleep(float(seconds))
    return True


def _spin(_: str) -> None:
    while True:
        pass


def _deaf(_: str) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)
    time.sleep(60)


def _breed(marker: str) -> None:
    """A grandchild that would live on, were its worker killed alone."""
    if os.fork() == 0:
        with open(marker, "w") as file:
            file.write(str(os.getpid()))
    time.sleep(60)


def _hog(_: str) -> None:
    hoard = []
    while True:
        hoard.append(bytearray(2**20))


def _babble(_: str) -> bool:
    """Writes noise into every socket the worker has."""
    for end in range(3, 64):
        try:
            os.write(end, b"noise\n7 {}\n")
        except OSError:
            continue
    return True


def _forge(how: str) -> bool:
    """A line of its own under a ticket, in every socket the worker has."""
    ticket, _, file = how.partition(" ")
    with open(file, "rb") as opened:
        line = ticket.encode() + b" " + opened.read() + b"\n"
    for end in _sockets():
        while line:
            line = line[os.write(end, line) :]
    return True


def _flood(_: str) -> bool:
    while True:
        for end in _sockets():
            os.write(end, b"x" * 2**16)


def _sockets() -> list[int]:
    def is_socket(end: int) -> bool:
        try:
            return stat.S_ISSOCK(os.fstat(end).st_mode)
        except OSError:
            return False

    return [end for end in range(3, 64) if is_socket(end)]


def _supervisor_mb(_: str) -> float:
    with open(f"/proc/{os.getppid()}/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))


def _mark(path: str) -> bool:
    with open(path, "w"):
        return True


def _await(how: str) -> bool:
    """Until so many files are there."""
    folder, count = how.split()
    while len(os.listdir(folder)) < int(count):
        time.sleep(0.005)
    return True


def _after(how: str) -> bool:
    """Marks the second path once the first is there."""
    first, second = how.split()
    while not os.path.exists(first):
        time.sleep(0.005)
    return _mark(second)


def _once(marker: str) -> bool:
    """Crashes the first time, as a machine might."""
    if not os.path.exists(marker):
        with open(marker, "w"):
            os._exit(9)
    return True


def _orphan(status: str) -> None:
    """Exits, and leaves a child that holds its socket open."""
    if os.fork() == 0:
        time.sleep(3600)
    os._exit(int(status))


def _raise(message: str) -> None:
    raise RuntimeError(message)


_ACTS: dict[str, Any] = {
    "pid": lambda _: float(os.getpid()),
    "delay": _delay,
    "spin": _spin,
    "deaf": _deaf,
    "breed": _breed,
    "hog": _hog,
    "giant": lambda _: bytearray(2**40),
    "babble": _babble,
    "forge": _forge,
    "flood": _flood,
    "supervisor_mb": _supervisor_mb,
    "mark": _mark,
    "await": _await,
    "after": _after,
    "once": _once,
    "raise": _raise,
    "leave": lambda _: sys.exit("bye"),
    "exit": lambda status: os._exit(int(status)),
    "orphan": _orphan,
    "shoot": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": lambda _: ctypes.string_at(0),
    "none": lambda _: None,
    "nan": lambda _: float("nan"),
    "inf": lambda _: float("inf"),
    "word": lambda _: "1.0",
    "object": lambda _: object(),
    "false_outcome": lambda _: Outcome(reward=1.0, correct=None, kind="correct"),
    "reseat": lambda _: (os.kill(os.getppid(), signal.SIGKILL), True)[1],
}
