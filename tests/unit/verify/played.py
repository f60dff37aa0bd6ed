"""Environments for processes: they log what is executed, and in which process."""

import os
import random
import time
from pathlib import Path


def count(prompt, reply, rng, *, log: str, turns: int = 4, sleep: float = 0.0):
    """Answers with the characters so far and a global random number. Logs each start, turn and end."""
    write(log, "start")
    total = 0
    try:
        for turn in range(1, turns):
            total += len(reply)
            time.sleep(sleep)
            write(log, f"turn {turn}")
            reply = yield f"{turn} {total} {random.random():.9f}"
        write(log, f"turn {turns}")
        return float(total + len(reply))
    finally:
        write(log, "end")


def slow_start(prompt, reply, rng, *, log: str, seconds: float):
    """Each of its three turns takes `seconds`."""
    for turn in range(2):
        time.sleep(seconds)
        write(log, f"turn {turn}")
        yield str(turn)
    time.sleep(seconds)
    return 1.0


def heavy(prompt, reply, rng, *, log: str, megabytes: int):
    """Keeps memory between its two turns."""
    kept = bytearray(megabytes * 2**20)
    write(log, "start")
    yield "?"
    return float(len(kept) > 0)


def write(log, text):
    with Path(log).open("a") as file:
        file.write(f"{os.getpid()} {text}\n")
