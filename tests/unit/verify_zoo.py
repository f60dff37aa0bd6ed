"""Rewards that misbehave on request: what a rollout's text says is what the reward does."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from typing import Any

from winnow.records import Outcome, Prompt, Rollout


def zoo(prompt: Prompt, rollout: Rollout) -> Any:
    """`delay 0.03` and the like do what they say; any other text is compared with the answer."""
    act, _, argument = rollout.text.partition(" ")
    return _ACTS[act](argument) if act in _ACTS else rollout.text == prompt.answer


def modules(prompt: Prompt, rollout: Rollout) -> Outcome:
    """Answers with its process ids and whether torch got in."""
    found = f"{os.getppid()} {os.getpid()} {'torch' in sys.modules} {os.environ['PYTHONHASHSEED']}"
    return Outcome(reward=1.0, correct=True, kind="correct", answer=found)


def hang_after_first(prompt: Prompt, rollout: Rollout) -> Outcome:
    return modules(prompt, rollout) if rollout.text == "x" else zoo(prompt, rollout)


def tokens(prompt: Prompt, rollout: Rollout) -> float:
    return float(rollout.tokens.sum() + prompt.tokens.sum())


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


def _once(marker: str) -> bool:
    """Crashes the first time, as a machine might."""
    if not os.path.exists(marker):
        with open(marker, "w"):
            os._exit(9)
    return True


def _raise(message: str) -> None:
    raise RuntimeError(message)


_ACTS: dict[str, Any] = {
    "delay": _delay,
    "spin": _spin,
    "deaf": _deaf,
    "breed": _breed,
    "hog": _hog,
    "giant": lambda _: bytearray(2**40),
    "babble": _babble,
    "once": _once,
    "raise": _raise,
    "leave": lambda _: sys.exit("bye"),
    "exit": lambda status: os._exit(int(status)),
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
